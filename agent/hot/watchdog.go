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
	// deadMan is how long the decision loop may be silent while a hard threshold
	// is met.
	deadMan = 2 * time.Second
	// ticks is how often the watchdog looks once the loop's next turn is late.
	// Where its own last look is further back than longestTick, the whole process
	// did not run.
	ticks, longestTick = 100 * time.Millisecond, 300 * time.Millisecond
	// late is how long the loop may be silent before the watchdog wakes up.
	late = deadMan - longestTick
	// threadPatience is how long the thread may take to deal with the watchdog's
	// alarm before the watchdog acts by itself.
	threadPatience = 100 * time.Millisecond
)

// WatchdogLane is the name by which the watchdog raises.
const WatchdogLane = "watchdog"

// Watchdog ends a pod where the decision loop, which should, does not: a thread
// of its own, with its own reading and its own table, that claims at the same
// desk and strikes in the same way.
type Watchdog struct {
	decider
	thread *Thread
	beat   func() time.Time
	settle func() time.Duration
	poller *epoll.Poller
	timer  int       // a timerfd that expires when the loop is late
	last   time.Time // tick
	acted  time.Time
}

// NewWatchdog returns a watchdog beside a thread. beat tells when the decision
// loop took its last turn, zero before the first, and settle how long a victim's
// memory is waited for. read belongs to the watchdog from then on, and so do the
// strikers.
func NewWatchdog(t *Thread, o Options, beat func() time.Time, settle func() time.Duration) (*Watchdog, error) {
	p, err := epoll.New()
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	w := &Watchdog{thread: t, beat: beat, settle: settle, poller: p}
	w.setUp(&o)
	if w.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog: %w", os.NewSyscallError("timerfd_create", err)), p.Close())
	}
	if err := p.Add(w.timer, unix.EPOLLIN, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog: %w", err), w.Close())
	}
	return w, nil
}

// Rewind tells that the decision loop has taken a turn: until the next one is
// late, the watchdog sleeps. It must not be called once Close was.
func (w *Watchdog) Rewind() {
	timer := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(late))}
	// It can't fail: the descriptor is a timer's and the time a valid one.
	_ = unix.TimerfdSettime(w.timer, 0, &timer, nil)
}

// Publish gives the watchdog the table to decide with from now on, which must
// not be the thread's.
func (w *Watchdog) Publish(t *Table) { w.publish(t) }

// Close gives the descriptors up. Further calls do nothing.
func (w *Watchdog) Close() error {
	err := w.poller.Close()
	if w.timer >= 0 {
		err = errors.Join(err, os.NewSyscallError("close", unix.Close(w.timer)))
		w.timer = -1
	}
	return err
}

// Run watches until ctx ends, on a thread of its own: one that sleeps in the
// kernel and not in Go's scheduler, which may be what does not work.
func (w *Watchdog) Run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() { w.poller.Close() })
	defer stop()
	var events [1]epoll.Event
	for timeout := ticks; ; {
		_, err := w.poller.Wait(events[:], timeout)
		if ctx.Err() != nil && (err == nil || errors.Is(err, os.ErrClosed)) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watchdog: %w", err)
		}
		var expired [8]byte
		_, _ = unix.Read(w.timer, expired[:]) // that it has not is no error
		timeout = epoll.Forever
		if w.tick(time.Now()) {
			timeout = ticks
		}
	}
}

// condition is what the watchdog acts on.
type condition struct {
	silent    time.Duration // since the loop's last turn
	ticked    time.Duration // since the watchdog's own last tick
	below     bool          // its own fresh reading crosses a hard threshold
	unsettled bool          // a victim is on its way
	acted     time.Duration // since it acted last; negative for never
	settle    time.Duration
}

// due reports whether the watchdog has to act.
func (c condition) due() bool {
	return c.silent >= deadMan && c.ticked < longestTick && c.below && !c.unsettled && (c.acted < 0 || c.acted >= c.settle)
}

// tick looks once, and reports whether the loop's next turn is late.
func (w *Watchdog) tick(now time.Time) bool {
	c := condition{ticked: longestTick, acted: -1, settle: w.settle()}
	if !w.last.IsZero() {
		c.ticked = now.Sub(w.last)
	}
	w.last = now
	beat := w.beat()
	if beat.IsZero() {
		return false
	}
	if c.silent = now.Sub(beat); c.silent < deadMan {
		return c.silent >= late // there is nothing to read for
	}
	w.adopt()
	if w.table == nil {
		return true
	}
	if !w.acted.IsZero() {
		c.acted = now.Sub(w.acted)
	}
	w.table.trail()
	w.read.Read(now, now, &w.observed)
	c.below = w.table.Decision.Headroom(&w.observed) < 0
	w.table.Decision.Follow(now)
	c.unsettled = w.table.Decision.Unsettled()
	if c.due() {
		w.acted = now
		w.act(lanes.Raise{Lane: WatchdogLane, Seen: now})
	}
	return true
}

// act raises with the thread, which knows best what it has killed meanwhile, and
// acts where that does not answer.
func (w *Watchdog) act(r lanes.Raise) {
	before := w.thread.dealt()
	if w.thread.Raise(r) == nil {
		var none [1]epoll.Event
		for end := time.Now().Add(threadPatience); time.Now().Before(end); {
			if w.thread.dealt() != before {
				return
			}
			if _, err := w.poller.Wait(none[:], time.Millisecond); err != nil {
				return
			}
		}
	}
	w.handle(r)
}
