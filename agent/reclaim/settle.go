package reclaim

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// await waits until the pods' usage was measured since a reclaim began, at most
// until measureFor after that.
func (r *Reclaimer) await(ctx context.Context, since time.Time) {
	if r.o.Unmeasured == nil {
		return
	}
	for {
		lacks := r.o.Unmeasured(since)
		if lacks == "" {
			r.unmeasured = time.Time{}
			return
		}
		if now := time.Now(); now.Sub(since) >= measureFor {
			if now.Sub(r.unmeasured) >= repeatLog {
				r.unmeasured = now
				r.o.Log.Warn("the disk usage of pods was not measured in time; a pod may be chosen by an older measurement", "lacks", lacks)
			}
			return
		}
		if !pause(ctx) {
			return
		}
	}
}

// left returns what a signal's filesystem has left, as far as that is known.
func (r *Reclaimer) left(s signal.Signal) (int64, bool) {
	var o signal.Observations
	r.o.Space.Read(time.Now(), &o)
	return o[s].Available, o[s].Status == signal.Observed
}

// settle waits until a signal has come up to a target, or has not grown for
// settleTimeout since the last removal: runtimes free images and layers after they
// have answered. It returns whether the target is reached.
func (r *Reclaimer) settle(ctx context.Context, s signal.Signal, target int64, removed time.Time) bool {
	patience := r.settings().Settle
	most, grew := int64(-1), removed
	for {
		r.o.Space.Freeing(s)
		if !pause(ctx) {
			return false
		}
		left, ok := r.left(s)
		switch {
		case ok && left >= target:
			return true
		case ok && left > most:
			if most >= 0 {
				grew = time.Now()
			}
			most = left
		}
		if time.Since(grew) >= patience {
			return false
		}
	}
}

// wait waits until a signal has come up to what is known to come back, at most until
// a time; each look calls expected for both.
func (r *Reclaimer) wait(ctx context.Context, s signal.Signal, expected func() (promised int64, until time.Time)) {
	for {
		promised, until := expected()
		if !time.Now().Before(until) {
			return
		}
		if left, ok := r.left(s); !ok || left >= promised {
			return
		}
		r.o.Space.Freeing(s)
		if !pause(ctx) {
			return
		}
	}
}

// pause waits for a moment; it returns false when ctx ends.
func pause(ctx context.Context) bool {
	timer := time.NewTimer(20 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
