package act

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
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
	// Urgent is the thread for victims of many processes; nil is none. It is set
	// before the first order.
	Urgent *Urgent

	work sync.WaitGroup
	mu   sync.Mutex
	// soft holds, by UID, the newest request to stop a pod whose grace period
	// runs.
	soft map[string]*request
}

// request is a request to stop a pod, and how it is given up.
type request struct{ cancel context.CancelFunc }

// NewKiller returns a Killer that finds cgroups in h and processes in proc. Its
// report is called from several goroutines and must not block. runtime may be
// nil where none is declared: only proven cgroups can be killed then.
func NewKiller(h *cgroup.Hierarchy, proc kernel.FS, runtime Runtime, report func(Progress)) *Killer {
	return &Killer{hierarchy: h, proc: proc, runtime: runtime, report: report, soft: map[string]*request{}}
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
	softly := k.soft[uid]
	delete(k.soft, uid)
	k.mu.Unlock()
	k.tell(uid, Hardened, 0, nil)
	// A runtime that refused to stop the pod has ended the soft eviction, and
	// the pod runs: so it is killed in any case.
	k.kill(ctx, job)
	if softly != nil {
		softly.cancel()
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
			v.urgent = k.Urgent
			k.Urgent.do(func() { err = v.kill(k.proc) }) // how many they are is not known yet
			if err != nil {
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
			if note := v.verdict.note(); note != nil {
				errs = append(errs, note)
			}
		}
	}
	k.tellAt(firstSignal(victims), uid, Signalled, signalled, nil)
	k.work.Go(func() {
		for _, v := range victims {
			// Nobody waits for it: it waits for the victim's memory map, which a
			// thread that hangs in the kernel may hold for ever.
			go reap(slices.Clone(v.largest))
		}
		k.conclude(ctx, job, victims, gone, untouchable, signalled, errs)
	})
}

// conclude waits for the end of what was signalled and tells of it.
func (k *Killer) conclude(ctx context.Context, job Job, victims []*victim, gone int, untouchable map[string]bool, signalled int, errs []error) {
	ended, sandbox, empty := k.finish(ctx, job, victims, gone, untouchable)
	errs = append(append(errs, ended...), sandbox)
	for _, v := range victims {
		if v.finished != nil {
			signalled += max(0, int(v.finished.Load())-v.struck)
		}
		v.close()
	}
	err := errors.Join(errs...)
	stage := Finished
	direct := len(victims)+gone == len(job.Containers)
	if signalled == 0 && err != nil && !(direct && empty) {
		stage = Refused
	}
	k.tell(job.Order.UID, stage, signalled, err)
	if empty {
		k.stopSandboxLater(ctx, job, sandbox)
	}
}

// Follow implements Actuator.
func (k *Killer) Follow(ctx context.Context, order evict.Order, hold *Hold, strike Strike) {
	job := hold.job
	job.Order = order
	if hold.beingStruck() {
		hold.Close() // what it has open, the thread that strikes it keeps
		k.kill(ctx, job)
		return
	}
	if !hold.keep() {
		// Its descriptors are others' by now.
		k.kill(ctx, job)
		return
	}
	first := strike.First
	if first.IsZero() {
		first = time.Now()
	}
	k.tellAt(first, order.UID, Signalled, strike.Processes, nil)
	k.work.Go(func() {
		defer hold.Close()
		defer hold.release()
		var victims []*victim
		var errs []error
		untouchable := map[string]bool{}
		proven := 0
		for _, c := range job.Containers {
			if c.Cgroup != "" {
				proven++
			}
		}
		if hold.guard == nil {
			hold.guard = job.Guard // nothing was struck
		}
		for _, m := range hold.members {
			var wrong *WrongVictimError
			v, err, note := m.victim(hold), m.err, m.note
			if err == nil && m.unjudged {
				err = v.judge(k.proc)
				note = v.verdict.note()
			}
			if !errors.As(err, &wrong) {
				if note != nil {
					errs = append(errs, note)
				}
				// What the strike could not finish, the rounds of the drain do.
				v.urgent = k.Urgent
				victims = append(victims, v)
				continue
			}
			errs = append(errs, err)
			if wrong.Never {
				untouchable[m.ID] = true
			}
		}
		k.conclude(ctx, job, victims, proven-len(hold.members), untouchable, strike.Processes, errs)
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
	for _, v := range victims {
		v.spares = v.sparing
	}
	for i, v := range victims {
		drains.Go(func() { drained[i] = v.drain(ctx, k.proc, first) })
	}
	stopped := make([]error, len(job.Containers))
	// Where a process is to be spared that was moved into the cgroup, the runtime is asked
	// when the container has ended: before, it might signal all that is in the cgroup.
	stop := func(sparing bool) {
		for i, c := range job.Containers {
			spares := slices.ContainsFunc(victims, func(v *victim) bool { return v.container.ID == c.ID && v.spares })
			if !untouchable[c.ID] && spares == sparing {
				stops.Go(func() { stopped[i] = k.stopKilled(ctx, c) })
			}
		}
	}
	stop(false)
	last := func() {
		empty = true
		first()
		k.tell(uid, LastGone, 0, nil)
	}
	drains.Wait()
	stop(true)
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

// afterDeath is how long a runtime gets to learn that a container has died.
const afterDeath = 100 * time.Millisecond

// stopKilled has the runtime stop what is being killed. A runtime that is asked
// just while the container dies may fail over that (containerd's "ttrpc: closed",
// the shim being on its way out): it is asked once more when it knows.
func (k *Killer) stopKilled(ctx context.Context, c evict.ContainerHandle) error {
	err := k.stopContainer(ctx, c, 0)
	if err == nil || k.runtime == nil || errors.Is(err, cri.ErrUnreachable) || errors.Is(err, cri.ErrTimeout) {
		return err
	}
	select {
	case <-ctx.Done():
		return err
	case <-time.After(afterDeath):
	}
	return k.stopContainer(ctx, c, 0)
}

func (k *Killer) stopContainer(ctx context.Context, c evict.ContainerHandle, grace time.Duration) error {
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
	own := &request{cancel}
	k.mu.Lock()
	before := k.soft[uid]
	k.soft[uid] = own
	k.mu.Unlock()
	if before != nil {
		before.cancel() // the pod came back: this request is for all of it
	}
	k.tell(uid, Signalled, 0, nil)
	k.work.Go(func() {
		defer cancel()
		errs := k.stopInTurn(stopping, &job)
		k.mu.Lock()
		mine := k.soft[uid] == own
		if mine {
			delete(k.soft, uid)
		}
		k.mu.Unlock()
		if !mine {
			return // hardened, or asked anew: whoever did that reports the end
		}
		if k.ended(job.Containers, errs) {
			k.tell(uid, LastGone, 0, nil)
			sandbox := k.stopSandbox(ctx, job)
			k.tell(uid, Finished, 0, errors.Join(append(errs, sandbox)...))
			k.stopSandboxLater(ctx, job, sandbox)
			return
		}
		stage := Finished
		if !slices.Contains(errs, nil) {
			stage = Refused
		}
		err := errors.Join(errs...)
		k.tell(uid, stage, 0, err)
		if (errors.Is(err, cri.ErrTimeout) || errors.Is(err, cri.ErrUnreachable)) && k.endsLater(ctx, job.Containers, errs) {
			k.stopSandboxLater(ctx, job, k.stopSandbox(ctx, job))
		}
	})
}
