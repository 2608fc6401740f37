package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	// killTime is what the end of the acts of a leader may take that has lost the lease: SIGKILL to each fence agent and
	// its process group, at once, on a busy machine.
	killTime = time.Second
	// longestStop bounds the wait for acts in flight after the leadership has ended.
	longestStop = 4 * time.Second
	// shortestRetry bounds the requests of leader election.
	shortestRetry = 100 * time.Millisecond
)

// Election has the times of leader election.
type Election struct {
	// LeaseDuration is how long after the last renewal of the lease another controller becomes the leader.
	LeaseDuration time.Duration
	// RenewDeadline is how long after the last renewal a leader ends that can't renew the lease.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two attempts to acquire or renew the lease.
	RetryPeriod time.Duration
}

// DefaultElection returns the times that most programs of Kubernetes use.
func DefaultElection() Election {
	return Election{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
}

// Check returns what is wrong with the times, by the flags that set them.
func (e Election) Check() error {
	const lease, renew, retry = "--leader-elect-lease-duration", "--leader-elect-renew-deadline", "--leader-elect-retry-period"
	// As k8s.io/client-go demands it.
	least := time.Duration(leaderelection.JitterFactor * float64(e.RetryPeriod))
	switch {
	case e.RetryPeriod < shortestRetry:
		return fmt.Errorf("%s is at least %s, not %s", retry, shortestRetry, e.RetryPeriod)
	case e.RenewDeadline <= least:
		return fmt.Errorf("%s %s must be more than %s, 1.2 times %s: raise it", renew, e.RenewDeadline, least, retry)
	case e.LeaseDuration%time.Second != 0:
		// The API rounds it down: the lease would pass on before.
		return fmt.Errorf("%s is in whole seconds, not %s", lease, e.LeaseDuration)
	case e.LeaseDuration-e.RenewDeadline <= killTime:
		return fmt.Errorf("%s %s must be more than %s above %s %s: within that time a leader kills its fence agents, before "+
			"the lease can pass on: raise the first, or lower the second", lease, e.LeaseDuration, killTime, renew, e.RenewDeadline)
	}
	return nil
}

// stopTimeout bounds the wait for acts in flight after the leadership has ended. It ends before the lease passes on.
func (e Election) stopTimeout() time.Duration {
	return min(longestStop, (e.LeaseDuration-e.RenewDeadline)*4/5)
}

var (
	errNotRenewed  = errors.New("leadership lost: the lease was not renewed in time")
	errOtherLeader = errors.New("leadership lost: another controller has the lease")
)

// leadership is the lock of leader election. It ends the acts of this process RenewDeadline after the last renewal, and
// gives the lease up only after they have ended. The election alone does neither: it counts the deadline from its next
// attempt to renew, gives up the lease if it can, with requests that may take as long again, and only then says that the
// leadership is lost.
type leadership struct {
	resourcelock.Interface
	times Election
	log   *slog.Logger
	// stop ends all acts and reports whether they have ended.
	stop func() bool
	// holder reads who has the lease.
	holder func(context.Context) (string, error)
	// lost is called once after stop when the leadership is lost.
	lost func(error)
	// uptime is the time since the boot, in which the machine may have been suspended: CLOCK_BOOTTIME.
	uptime func() (time.Duration, error)

	mu      sync.Mutex
	foreign bool // another controller had the lease when it was read last
	// renewed is the time before the request of the last renewal, zero before the first.
	renewed time.Time
	// since is renewed by uptime.
	since time.Duration
	timer *time.Timer // fires RenewDeadline after renewed
	over  error       // why this process must not lead any more, nil if it may
}

// Get implements resourcelock.Interface. By the bytes that it returns the election learns that the lease was renewed:
// they have the time to the second, so that it would take two renewals in one second for one, and count the duration of
// the lease from the first. Here they have the whole time.
func (l *leadership) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return nil, nil, err
	}
	l.saw(record.HolderIdentity)
	return record, record.RenewTime.AppendFormat(raw, time.RFC3339Nano), nil
}

// saw ends the leadership if another controller has the lease.
func (l *leadership) saw(holder string) {
	foreign := holder != "" && holder != l.Identity()
	l.mu.Lock()
	l.foreign = foreign
	leads := !l.renewed.IsZero()
	l.mu.Unlock()
	if foreign && leads {
		go l.end(errOtherLeader)
	}
}

// Create implements resourcelock.Interface.
func (l *leadership) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.renew(func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface. Without a holder it gives the lease up.
func (l *leadership) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	update := func() error { return l.Interface.Update(ctx, record) }
	if record.HolderIdentity != "" {
		return l.renew(update)
	}
	if !l.stop() {
		return errors.New("the lease is not given up: acts have not ended")
	}
	l.mu.Lock()
	foreign := l.foreign
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	if foreign {
		return errOtherLeader // the election may not have noticed, and would give up that of the other
	}
	return update()
}

// renew notes when the lease was renewed by a request.
func (l *leadership) renew(request func() error) error {
	began := time.Now()
	since, err := l.uptime()
	if err != nil {
		return err
	}
	l.mu.Lock()
	over := l.over
	l.mu.Unlock()
	if over != nil {
		return over
	}
	if err := request(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed, l.since = began, since
	left := time.Until(began.Add(l.times.RenewDeadline))
	if l.timer == nil {
		l.timer = time.AfterFunc(left, func() { l.end(errNotRenewed) })
	} else {
		l.timer.Reset(left)
	}
	return l.over
}

// holds reads the lease and returns an error unless this process has it. One that another controller has ends the
// leadership; one that is gone, because a person deleted it, this process may get again. The lock is not used for it:
// the election renews the lease with the version that the lock has read last, and would take it back.
func (l *leadership) holds(ctx context.Context) error {
	holder, err := l.holder(ctx)
	if err != nil {
		return fmt.Errorf("read the lease of leader election: %w", err)
	}
	if l.saw(holder); holder != l.Identity() {
		return fmt.Errorf("the lease of leader election is held by %q", holder)
	}
	return nil
}

// end ends the leadership, unless the lease was renewed in time.
func (l *leadership) end(why error) {
	l.mu.Lock()
	again := l.over != nil
	if errors.Is(why, errNotRenewed) && l.renewedInTime() {
		again = true // the timer was reset when it fired
	}
	if !again {
		l.over = why
	}
	l.mu.Unlock()
	if again {
		return
	}
	ended := l.stop()
	l.log.Error("leadership lost; all acts of this controller are ended", "error", why, "ended", ended)
	l.lost(why)
}

// valid reports whether no other controller can be the leader. The timer of a process that was stopped may not have
// fired yet.
func (l *leadership) valid() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over == nil && l.renewedInTime()
}

// renewedInTime reports whether the last renewal is not older than RenewDeadline, also by the time since the boot: the
// clock of timers stands still while the machine is suspended. l.mu is locked.
func (l *leadership) renewedInTime() bool {
	uptime, err := l.uptime()
	return err == nil && time.Since(l.renewed) < l.times.RenewDeadline && uptime-l.since < l.times.RenewDeadline
}
