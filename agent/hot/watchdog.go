package hot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/kernel/epoll"
)

const (
	// loopTimeout is how long the decision loop may make no iteration while a hard
	// threshold is crossed, before the watchdog kills.
	loopTimeout = 2 * time.Second
	// tickInterval is how often the watchdog checks once the loop's next iteration is
	// late. If its own last check is maxTickGap ago, the whole process did not run.
	tickInterval, maxTickGap = 100 * time.Millisecond, 300 * time.Millisecond
	// wakeAfter is how long after an iteration the watchdog wakes up: early enough for
	// the checks that have to precede a kill.
	wakeAfter = loopTimeout - maxTickGap
	// ThreadTimeout is how long the thread may take to answer an alarm of the watchdog or a
	// request of the loop, before that kills without it: about a hundred times as long as a
	// kill takes.
	ThreadTimeout = 100 * time.Millisecond
)

// WatchdogLane is the lane of the watchdog's alarms.
const WatchdogLane = "watchdog"

// Watchdog kills a pod if the decision loop should and does not. It is a thread with a
// reader and a table of its own, and acquires generations of the same [Arbiter].
type Watchdog struct {
	decider
	thread        *Thread
	lastIteration func() time.Time
	settleTimeout func() time.Duration
	poller        *epoll.Poller
	timer         int // a timerfd that expires when the loop is late
	lastTick      time.Time
	lastAct       time.Time
}

// NewWatchdog returns a watchdog next to a thread. lastIteration returns when the decision
// loop began its last iteration, zero before the first. settleTimeout returns how long the
// decision waits for a victim's memory. The reader and the killers of o belong to the watchdog.
func NewWatchdog(t *Thread, o Options, lastIteration func() time.Time, settleTimeout func() time.Duration) (*Watchdog, error) {
	p, err := epoll.New()
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	w := &Watchdog{thread: t, lastIteration: lastIteration, settleTimeout: settleTimeout, poller: p}
	w.setUp(&o)
	if w.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog: %w", os.NewSyscallError("timerfd_create", err)), p.Close())
	}
	if err := p.Add(w.timer, unix.EPOLLIN, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog: %w", err), w.Close())
	}
	return w, nil
}

// Reset restarts the timer after an iteration of the decision loop: the watchdog sleeps
// until the next one is late. It must not be called after Close.
func (w *Watchdog) Reset() {
	timer := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wakeAfter))}
	// This can't fail: the descriptor is a timerfd and the time is valid.
	_ = unix.TimerfdSettime(w.timer, 0, &timer, nil)
}

// Publish sets the table that the watchdog decides by from now on. It must not be the
// thread's.
func (w *Watchdog) Publish(t *Table) { w.publish(t) }

// Close closes the poller and the timer. Further calls do nothing.
func (w *Watchdog) Close() error {
	err := w.poller.Close()
	if w.timer >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(w.timer)))
		w.timer = -1
	}
	return err
}

// Run checks the loop until ctx ends, on a locked thread. It sleeps in the kernel, because
// Go's scheduler may be what does not work.
func (w *Watchdog) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() { w.poller.Close() })
	defer stop()
	var events [1]epoll.Event
	for timeout := tickInterval; ; {
		_, err := w.poller.Wait(events[:], timeout)
		if ctx.Err() != nil && (err == nil || errors.Is(err, os.ErrClosed)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watchdog: %w", err)
		}
		var expired [8]byte
		_, _ = unix.Read(w.timer, expired[:]) // EAGAIN if it has not expired
		timeout = epoll.Forever
		if w.tick(time.Now()) {
			timeout = tickInterval
		}
	}
}

// condition is what the watchdog decides by.
type condition struct {
	sinceIteration time.Duration // since the loop's last iteration
	sinceTick      time.Duration // since the watchdog's own last check
	below          bool          // a fresh reading crosses a hard threshold
	unsettled      bool          // a victim is in flight
	sinceAct       time.Duration // since the watchdog's last alarm; negative for never
	settleTimeout  time.Duration
}

// due reports whether the watchdog must raise an alarm.
func (c condition) due() bool {
	return c.sinceIteration >= loopTimeout && c.sinceTick < maxTickGap && c.below && !c.unsettled && (c.sinceAct < 0 || c.sinceAct >= c.settleTimeout)
}

// tick checks once, and reports whether the loop's next iteration is late.
func (w *Watchdog) tick(now time.Time) bool {
	c := condition{sinceTick: maxTickGap, sinceAct: -1, settleTimeout: w.settleTimeout()}
	if !w.lastTick.IsZero() {
		c.sinceTick = now.Sub(w.lastTick)
	}
	w.lastTick = now
	iteration := w.lastIteration()
	if iteration.IsZero() {
		return false
	}
	if c.sinceIteration = now.Sub(iteration); c.sinceIteration < loopTimeout {
		return c.sinceIteration >= wakeAfter // too early to take a reading
	}
	w.takeTable()
	if w.table == nil {
		return true
	}
	if !w.lastAct.IsZero() {
		c.sinceAct = now.Sub(w.lastAct)
	}
	w.table.updateKilled()
	w.reader.Read(now, now, &w.observed)
	c.below = w.table.Decision.Headroom(&w.observed) < 0
	w.table.Decision.SettleVictims(now)
	c.unsettled = w.table.Decision.HasUnsettled()
	if c.due() {
		w.lastAct = now
		w.respond(lanes.Alarm{Lane: WatchdogLane, Seen: now})
	}
	return true
}

// respond raises an alarm at the thread, whose table has the thread's own kills. The
// watchdog decides itself if the thread does not decide in time, or could not decide because
// it has no valid table or no handle (see decided). After a kill of the watchdog's own, only
// the watchdog's table is valid until the loop publishes new ones.
func (w *Watchdog) respond(alarm lanes.Alarm) {
	decided, processed := w.thread.decided(), w.thread.processed()
	if w.thread.Raise(alarm) == nil {
		var none [1]epoll.Event
		for end := time.Now().Add(ThreadTimeout); time.Now().Before(end); {
			if w.thread.decided() != decided {
				return
			}
			if w.thread.processed() != processed {
				break
			}
			if _, err := w.poller.Wait(none[:], time.Millisecond); err != nil {
				return
			}
		}
	}
	w.process(alarm)
}
