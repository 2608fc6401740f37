package proactive

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"runtime"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

const (
	// reclaimStep is the size of one write to memory.reclaim, in bytes.
	reclaimStep = 16 << 20
	// podCooldown is how long a pod is left alone afterwards. It reads in again what it
	// needs; reclaiming that again and again would keep memory above the threshold
	// during the whole grace period while the pod makes no progress.
	podCooldown = 10 * time.Minute
	// podSliceTimeout is how long memory is reclaimed from one pod before the next one
	// has its turn, and podTimeout how long altogether before its cooldown: swapping out
	// to a slow disk takes time.
	podSliceTimeout, podTimeout = 3 * time.Second, 30 * time.Second
	// maxIdleSteps is the number of steps in a row that may not lower a pod's working
	// set, beyond those that its inactive file cache takes.
	maxIdleSteps = 8
	// nice is the nice value of the thread: reclaiming takes CPU time, which is no more
	// urgent than that of the pods.
	nice = 0
)

// Plan is the amount of memory to reclaim and the pods to reclaim it from.
type Plan struct {
	// Missing is the amount, in bytes; 0 if no memory is missing.
	Missing int64
	Pods    []Pod
}

// Pod is a pod and the cgroups of its containers.
type Pod struct {
	UID, Pod string
	Groups   []Group
}

// Group is a cgroup by path and inode.
type Group struct {
	Path string
	ID   uint64
}

// Report is the result for one pod.
type Report struct {
	At  time.Time
	Pod string
	// Asked is the amount requested from the kernel, and Gained that by which the pod's
	// working set fell, both in bytes.
	Asked, Gained int64
	Took          time.Duration
	Err           error
}

// Options configure a Reclaimer.
type Options struct {
	Hierarchy *cgroup.Hierarchy
	// Plan returns the current plan. It must not block.
	Plan func() Plan
	// Done is called with the result for each pod.
	Done func(Report)
	Log  *slog.Logger
}

// Reclaimer reclaims memory from pods.
type Reclaimer struct {
	o        Options
	wake     chan struct{}
	attempts map[string]*attempt // by UID
}

// attempt is what has been reclaimed from a pod since its last cooldown.
type attempt struct {
	began time.Time
	took  time.Duration
	more  bool // the pod may have more to reclaim
}

// New returns a Reclaimer that does not run yet.
func New(o Options) *Reclaimer {
	return &Reclaimer{o: o, wake: make(chan struct{}, 1), attempts: map[string]*attempt{}}
}

// Notify wakes Run, because memory may be short. It does not block.
func (r *Reclaimer) Notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reclaims while memory is short, until ctx ends or memory.reclaim is found to be
// unavailable. It returns nil.
func (r *Reclaimer) Run(ctx context.Context) error {
	runtime.LockOSThread() // the thread ends with the goroutine
	if err := process.SetThreadNice(nice); err != nil {
		r.o.Log.Debug("could not set nice value; proactive reclaim runs at evictd's priority", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		if p := r.o.Plan(); p.Missing > 0 {
			if err := r.round(ctx, p); errors.Is(err, kernel.ErrUnavailable) {
				r.o.Log.Info("memory.reclaim is not available; proactive reclaim is off", "error", err)
				return nil
			}
		}
	}
}

// round passes over the pods until memory is no longer short or no pod has more to give.
func (r *Reclaimer) round(ctx context.Context, p Plan) error {
	for more := true; more && p.Missing > 0 && ctx.Err() == nil; p = r.o.Plan() {
		var err error
		if more, err = r.pass(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// pass reclaims from each pod once, and reports whether any pod may have more to give.
func (r *Reclaimer) pass(ctx context.Context, p Plan) (more bool, err error) {
	began := time.Now()
	maps.DeleteFunc(r.attempts, func(_ string, a *attempt) bool { return began.Sub(a.began) >= podCooldown })
	missing := p.Missing
	for i := range p.Pods {
		pod := &p.Pods[i]
		a := r.attempts[pod.UID]
		switch {
		case a == nil:
			a = &attempt{began: began}
			r.attempts[pod.UID] = a
		case !a.more:
			continue
		}
		var report Report
		report, a.more = r.reclaimPod(ctx, pod, missing)
		if errors.Is(report.Err, kernel.ErrUnavailable) {
			return false, report.Err
		}
		a.took += report.Took
		a.more = a.more && report.Gained > 0 && a.took < podTimeout
		more = more || a.more
		r.o.Done(report)
		if missing -= report.Gained; missing <= 0 || !r.stillShort(ctx) {
			return false, nil
		}
	}
	return more, nil
}

// stillShort reports whether memory is still short.
func (r *Reclaimer) stillShort(ctx context.Context) bool {
	return ctx.Err() == nil && r.o.Plan().Missing > 0
}

// reclaimPod reclaims what is missing from one pod. more reports whether its time ran out
// before it had no more to give.
func (r *Reclaimer) reclaimPod(ctx context.Context, pod *Pod, missing int64) (report Report, more bool) {
	report = Report{At: time.Now(), Pod: pod.Pod}
	for _, g := range pod.Groups {
		if missing <= report.Gained {
			break
		}
		if time.Since(report.At) >= podSliceTimeout {
			more = true
			break
		}
		inTime, err := r.reclaimCgroup(ctx, g, missing-report.Gained, &report)
		if err != nil && !errors.Is(err, cgroup.ErrGone) {
			report.Err = err
			break
		}
		more = more || !inTime
	}
	report.Took = time.Since(report.At)
	return report, more
}

// reclaimCgroup reclaims what is missing from one cgroup. inTime is false if the pod's time
// ran out first.
func (r *Reclaimer) reclaimCgroup(ctx context.Context, g Group, missing int64, report *Report) (inTime bool, err error) {
	group, err := r.o.Hierarchy.Open(g.Path)
	if err != nil {
		return true, err
	}
	defer group.Close()
	if group.ID() != g.ID {
		return true, cgroup.ErrGone
	}
	before, err := group.Memory()
	if err != nil {
		return true, err
	}
	least, idleSteps := before.WorkingSet, 0
	maxIdle := maxIdleSteps + int(before.InactiveFile/reclaimStep)
	for all := false; !all && missing > 0 && idleSteps < maxIdle && r.stillShort(ctx); {
		if time.Since(report.At) >= podSliceTimeout {
			return false, nil
		}
		err := group.Reclaim(reclaimStep)
		if all = errors.Is(err, cgroup.ErrNotReclaimed); err != nil && !all {
			return true, err
		}
		report.Asked += reclaimStep
		now, err := group.Memory()
		if err != nil {
			return true, err
		}
		if idleSteps++; now.WorkingSet < least {
			gained := int64(least - now.WorkingSet)
			report.Gained += gained
			missing -= gained
			least, idleSteps = now.WorkingSet, 0
		}
	}
	return true, nil
}
