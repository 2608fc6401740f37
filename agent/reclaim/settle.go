package reclaim

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// awaitMeasurements waits until the usage of all pods was measured after since, the
// start of the reclaim, at most for orderTimeout from then.
func (r *Reclaimer) awaitMeasurements(ctx context.Context, since time.Time) {
	if r.o.Unmeasured == nil {
		return
	}
	for {
		missing := r.o.Unmeasured(since)
		if missing == "" {
			r.unmeasuredLogged = time.Time{}
			return
		}
		if now := time.Now(); now.Sub(since) >= orderTimeout {
			if now.Sub(r.unmeasuredLogged) >= repeatLogInterval {
				r.unmeasuredLogged = now
				r.o.Log.Warn("disk usage of pods not measured in time; pod selection may use an older measurement", "missing", missing)
			}
			return
		}
		if !pollDelay(ctx) {
			return
		}
	}
}

// available returns the available amount of a signal's filesystem; false if it is
// not known.
func (r *Reclaimer) available(s signal.Signal) (int64, bool) {
	var o signal.Observations
	r.o.Filesystems.Read(time.Now(), &o)
	return o[s].Available, o[s].Status == signal.Observed
}

// settle waits until a signal has reached target, or has not grown for
// settleTimeout since the last removal: runtimes free images and layers after they
// have answered. It returns whether the target is reached.
func (r *Reclaimer) settle(ctx context.Context, s signal.Signal, target int64, removed time.Time) bool {
	timeout := r.currentPolicy().Settle
	most, grew := int64(-1), removed
	for {
		r.o.Filesystems.SyncFreed(s)
		if !pollDelay(ctx) {
			return false
		}
		left, ok := r.available(s)
		switch {
		case ok && left >= target:
			return true
		case ok && left > most:
			if most >= 0 {
				grew = time.Now()
			}
			most = left
		}
		if time.Since(grew) >= timeout {
			return false
		}
	}
}

// waitForLateFree waits until the available amount of a signal has reached promised,
// at most until the given time. expected returns both. It is called before each
// poll, because a pod may be evicted during the wait.
func (r *Reclaimer) waitForLateFree(ctx context.Context, s signal.Signal, expected func() (promised int64, until time.Time)) {
	for {
		promised, until := expected()
		if !time.Now().Before(until) {
			return
		}
		if left, ok := r.available(s); !ok || left >= promised {
			return
		}
		r.o.Filesystems.SyncFreed(s)
		if !pollDelay(ctx) {
			return
		}
	}
}

// pollDelay waits for 20 ms between two polls; it returns false when ctx ends.
func pollDelay(ctx context.Context) bool {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
