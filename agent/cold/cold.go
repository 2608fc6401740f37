package cold

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
	// chunk is how much is asked for at a time, in bytes.
	chunk = 16 << 20
	// again is how long a pod is left alone that was asked: what it needs it reads in
	// again, and to take it away time after time would keep the threshold from being
	// met for as long as the grace period takes, while the pod does nothing else.
	again = 10 * time.Minute
	// perPod is how long one pod is asked before the next one is, and altogether how
	// long until it is left alone, where it still had some to give: what is swapped to a
	// slow disk takes its time.
	perPod, altogether = 3 * time.Second, 30 * time.Second
	// lean is how many times in a row a pod may bring nothing that counts, beyond
	// those for its cache that counts as available already.
	lean = 8
	// nice is the thread's: to reclaim takes processor time, which is no more urgent
	// than that of the pods.
	nice = 0
)

// Plan is what is missing, and who is to be asked for it.
type Plan struct {
	// Short is in bytes; 0 is nothing.
	Short int64
	Pods  []Pod
}

// Pod is a pod and the cgroups of its containers.
type Pod struct {
	UID, Pod string
	Groups   []Group
}

// Group is a cgroup by its path, and its inode.
type Group struct {
	Path string
	ID   uint64
}

// Report tells what became of one pod.
type Report struct {
	At  time.Time
	Pod string
	// Asked is what the kernel was asked for, and Gained by how much less the pod
	// used then that does not count as available, both in bytes.
	Asked, Gained int64
	Took          time.Duration
	Err           error
}

// Options are what a Reclaimer is made of.
type Options struct {
	Hierarchy *cgroup.Hierarchy
	// Plan returns what is missing now. It must answer at once.
	Plan func() Plan
	// Done hears of each pod that was asked.
	Done func(Report)
	Log  *slog.Logger
}

// Reclaimer asks.
type Reclaimer struct {
	o     Options
	poked chan struct{}
	asked map[string]*asking // by UID
}

// asking is what was done about a pod.
type asking struct {
	began time.Time // the first time
	took  time.Duration
	more  bool // it had not given all when it was left for the next
}

// New returns a Reclaimer, which does nothing before it runs.
func New(o Options) *Reclaimer {
	return &Reclaimer{o: o, poked: make(chan struct{}, 1), asked: map[string]*asking{}}
}

// Poke tells that memory may be short. It never waits.
func (r *Reclaimer) Poke() {
	select {
	case r.poked <- struct{}{}:
	default:
	}
}

// Run asks where memory is short, until ctx ends. It returns nil.
func (r *Reclaimer) Run(ctx context.Context) error {
	runtime.LockOSThread() // and ends with it
	if err := process.SetThreadNice(nice); err != nil {
		r.o.Log.Debug("cold memory is reclaimed at evictd's own priority", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.poked:
		}
		if p := r.o.Plan(); p.Short > 0 {
			if err := r.round(ctx, p); errors.Is(err, kernel.ErrUnavailable) {
				r.o.Log.Info("cold memory of pods can't be reclaimed", "error", err)
				return nil
			}
		}
	}
}

// round asks one pod after the other, and those again that have more to give, until
// there is enough.
func (r *Reclaimer) round(ctx context.Context, p Plan) error {
	for more := true; more && p.Short > 0 && ctx.Err() == nil; p = r.o.Plan() {
		var err error
		if more, err = r.pass(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// pass asks each pod once, and reports whether any of them has more to give.
func (r *Reclaimer) pass(ctx context.Context, p Plan) (more bool, err error) {
	began := time.Now()
	maps.DeleteFunc(r.asked, func(_ string, a *asking) bool { return began.Sub(a.began) >= again })
	missing := p.Short
	for i := range p.Pods {
		pod := &p.Pods[i]
		a := r.asked[pod.UID]
		switch {
		case a == nil:
			a = &asking{began: began}
			r.asked[pod.UID] = a
		case !a.more:
			continue
		}
		var report Report
		report, a.more = r.ask(ctx, pod, missing)
		if errors.Is(report.Err, kernel.ErrUnavailable) {
			return false, report.Err
		}
		a.took += report.Took
		a.more = a.more && report.Gained > 0 && a.took < altogether
		more = more || a.more
		r.o.Done(report)
		if missing -= report.Gained; missing <= 0 || !r.still(ctx) {
			return false, nil
		}
	}
	return more, nil
}

// still reports whether memory is short.
func (r *Reclaimer) still(ctx context.Context) bool { return ctx.Err() == nil && r.o.Plan().Short > 0 }

// ask takes from one pod what is missing, as far as it has that, and reports whether
// it was left while it may have had more.
func (r *Reclaimer) ask(ctx context.Context, pod *Pod, missing int64) (report Report, more bool) {
	report = Report{At: time.Now(), Pod: pod.Pod}
	for _, g := range pod.Groups {
		if missing <= report.Gained {
			break
		}
		if time.Since(report.At) >= perPod {
			more = true
			break
		}
		inTime, err := r.take(ctx, g, missing-report.Gained, &report)
		if err != nil && !errors.Is(err, cgroup.ErrGone) {
			report.Err = err
			break
		}
		more = more || !inTime
	}
	report.Took = time.Since(report.At)
	return report, more
}

// take takes what is missing from one cgroup; inTime is false where time was over
// before that.
func (r *Reclaimer) take(ctx context.Context, g Group, missing int64, report *Report) (inTime bool, err error) {
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
	least, idle := before.WorkingSet, 0
	most := lean + int(before.InactiveFile/chunk)
	for all := false; !all && missing > 0 && idle < most && r.still(ctx); {
		if time.Since(report.At) >= perPod {
			return false, nil
		}
		err := group.Reclaim(chunk)
		if all = errors.Is(err, cgroup.ErrNotReclaimed); err != nil && !all {
			return true, err
		}
		report.Asked += chunk
		now, err := group.Memory()
		if err != nil {
			return true, err
		}
		if idle++; now.WorkingSet < least {
			gained := int64(least - now.WorkingSet)
			report.Gained += gained
			missing -= gained
			least, idle = now.WorkingSet, 0
		}
	}
	return true, nil
}
