package act

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Killer is the Actuator that acts. It is safe for concurrent use.
type Killer struct {
	hierarchy *cgroup.Hierarchy
	proc      kernel.FS
	runtime   Runtime
	report    func(Progress)

	work sync.WaitGroup
	mu   sync.Mutex
	// soft holds, by UID, how the request to stop a pod is given up whose grace
	// period runs.
	soft map[string]context.CancelFunc
}

// NewKiller returns a Killer that finds cgroups in h and processes in proc. Its
// report is called from several goroutines and must not block. runtime may be
// nil where none is declared: only proven cgroups can be killed then.
func NewKiller(h *cgroup.Hierarchy, proc kernel.FS, runtime Runtime, report func(Progress)) *Killer {
	return &Killer{hierarchy: h, proc: proc, runtime: runtime, report: report, soft: map[string]context.CancelFunc{}}
}

// Wait returns when all that was begun has ended. It must not run beside Evict.
func (k *Killer) Wait() { k.work.Wait() }

// Evict implements Actuator.
func (k *Killer) Evict(ctx context.Context, job Job) {
	if !job.Order.Hard {
		k.stop(ctx, job)
		return
	}
	k.kill(ctx, job)
}

// Harden implements Actuator.
func (k *Killer) Harden(ctx context.Context, job Job) {
	uid := job.Order.UID
	k.mu.Lock()
	cancel := k.soft[uid]
	delete(k.soft, uid)
	k.mu.Unlock()
	k.tell(uid, Hardened, 0, nil)
	// A runtime that refused to stop the pod has ended the soft eviction, and
	// the pod runs: so it is killed in any case.
	k.kill(ctx, job)
	if cancel != nil {
		cancel()
	}
}

func (k *Killer) tell(uid string, stage Stage, processes int, err error) {
	k.tellAt(time.Now(), uid, stage, processes, err)
}

func (k *Killer) tellAt(when time.Time, uid string, stage Stage, processes int, err error) {
	k.report(Progress{UID: uid, Stage: stage, Time: when, Processes: processes, Err: err})
}

// kill signals all that can be killed directly, and leaves the rest to a
// goroutine.
func (k *Killer) kill(ctx context.Context, job Job) {
	uid := job.Order.UID
	var victims []*victim
	var errs []error
	signalled, gone := 0, 0
	untouchable := map[string]bool{} // containers, by ID
	for _, c := range job.Containers {
		if c.Cgroup == "" {
			continue
		}
		v, err := open(k.hierarchy, c, job.Guard)
		if err == nil {
			if err = v.kill(k.proc); err != nil {
				v.close()
			}
		}
		switch {
		case errors.Is(err, cgroup.ErrGone):
			gone++
		case err != nil:
			errs = append(errs, err)
			if wrong := (*WrongVictimError)(nil); errors.As(err, &wrong) && wrong.Never {
				untouchable[c.ID] = true
			}
		default:
			signalled += len(v.signalled)
			victims = append(victims, v)
		}
	}
	k.tellAt(firstSignal(victims), uid, Signalled, signalled, nil)
	k.work.Go(func() {
		for _, v := range victims {
			// Nobody waits for it: it waits for the victim's memory map, which a
			// thread that hangs in the kernel may hold for ever.
			go reap(slices.Clone(v.largest))
		}
		ended, sandbox, empty := k.finish(ctx, job, victims, gone, untouchable)
		errs = append(append(errs, ended...), sandbox)
		for _, v := range victims {
			v.close()
		}
		err := errors.Join(errs...)
		stage := Finished
		if signalled == 0 && err != nil {
			stage = Refused
		}
		k.tell(uid, stage, signalled, err)
		if empty {
			k.stopSandboxLater(ctx, job, sandbox)
		}
	})
}

// firstSignal returns when the first process was signalled, which is some time
// before the last one was; now, where none was.
func firstSignal(victims []*victim) time.Time {
	var first time.Time
	for _, v := range victims {
		if !v.began.IsZero() && (first.IsZero() || v.began.Before(first)) {
			first = v.began
		}
	}
	if first.IsZero() {
		return time.Now()
	}
	return first
}

// finish waits for the killed cgroups to empty while the runtime is told. What
// could not be killed directly the runtime kills; gone counts what needed
// neither. The untouchable hold what must live: the runtime must not kill them
// either, nor the sandbox with them. It returns what went wrong with the
// containers and with the sandbox, and whether no container is left.
func (k *Killer) finish(ctx context.Context, job Job, victims []*victim, gone int, untouchable map[string]bool) (ended []error, sandbox error, empty bool) {
	uid := job.Order.UID
	var once sync.Once
	first := func() { once.Do(func() { k.tell(uid, FirstGone, 0, nil) }) }
	var drains, stops sync.WaitGroup
	drained := make([]error, len(victims))
	for i, v := range victims {
		drains.Go(func() { drained[i] = v.drain(ctx, k.proc, first) })
	}
	stopped := make([]error, len(job.Containers))
	for i, c := range job.Containers {
		if !untouchable[c.ID] {
			stops.Go(func() { stopped[i] = k.stopContainer(ctx, c, 0) })
		}
	}
	last := func() {
		empty = true
		first()
		k.tell(uid, LastGone, 0, nil)
	}
	drains.Wait()
	emptied := errors.Join(drained...) == nil
	direct := len(victims)+gone == len(job.Containers)
	if direct && emptied {
		last()
	}
	stops.Wait()
	if len(untouchable) > 0 {
		return append(drained, stopped...), nil, empty
	}
	// What was not killed directly is gone when the runtime says so.
	if !direct && emptied && k.runtime != nil && errors.Join(stopped...) == nil {
		last()
	}
	return append(drained, stopped...), k.stopSandbox(ctx, job), empty
}

// stopSandbox ends the sandbox of a pod that is evictd's to end, and with it
// the shared memory that it holds.
func (k *Killer) stopSandbox(ctx context.Context, job Job) error {
	if !job.Owned || k.runtime == nil || job.SandboxID == "" {
		return nil
	}
	if err := k.runtime.StopSandbox(ctx, job.SandboxID); err != nil {
		return fmt.Errorf("stop sandbox: %w", err)
	}
	return nil
}

// The waits between attempts to stop a sandbox while the runtime is away.
const firstAgain, longestAgain = 500 * time.Millisecond, 10 * time.Second

// stopSandboxLater stops a sandbox whose containers are gone when the runtime,
// which was away at the first attempt, is back: a pod without containers is not
// listed, so that nobody else would.
func (k *Killer) stopSandboxLater(ctx context.Context, job Job, err error) {
	wait := firstAgain
	for errors.Is(err, cri.ErrUnreachable) || errors.Is(err, cri.ErrTimeout) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, longestAgain)
		err = k.stopSandbox(ctx, job)
	}
}

func (k *Killer) stopContainer(ctx context.Context, c Container, grace time.Duration) error {
	if k.runtime == nil {
		if c.Cgroup == "" {
			return fmt.Errorf("container %s: %s, and there is no runtime that could stop it", c.Name, c.Unproven)
		}
		return nil
	}
	if err := k.runtime.StopContainer(ctx, c.ID, grace); err != nil {
		return fmt.Errorf("stop container %s: %w", c.Name, err)
	}
	return nil
}

// stop asks the runtime to stop the pod within its grace.
func (k *Killer) stop(ctx context.Context, job Job) {
	uid := job.Order.UID
	stopping, cancel := context.WithCancel(ctx)
	k.mu.Lock()
	k.soft[uid] = cancel
	k.mu.Unlock()
	k.tell(uid, Signalled, 0, nil)
	k.work.Go(func() {
		defer cancel()
		errs := make([]error, len(job.Containers))
		var stops sync.WaitGroup
		for i, c := range job.Containers {
			stops.Go(func() { errs[i] = k.stopContainer(stopping, c, job.Order.Grace) })
		}
		stops.Wait()
		k.mu.Lock()
		_, mine := k.soft[uid]
		delete(k.soft, uid)
		k.mu.Unlock()
		if !mine {
			return // hardened: whoever did that reports the end
		}
		err := errors.Join(errs...)
		empty := err == nil
		if empty {
			k.tell(uid, LastGone, 0, nil)
			err = k.stopSandbox(ctx, job)
		}
		stage := Finished
		if !slices.Contains(errs, nil) {
			stage = Refused
		}
		k.tell(uid, stage, 0, err)
		if empty {
			k.stopSandboxLater(ctx, job, err)
		}
	})
}
