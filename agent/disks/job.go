package disks

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/kernel/disk"
)

const (
	// Looking at the disks may take a twelfth of a processor: with what the Go runtime
	// needs to wake its threads, that is measured as less than a tenth. budgetSaved is
	// what it may take at once after it has taken less, so that most nodes are measured
	// without a rest when a disk becomes low.
	budgetShare = 12
	budgetSaved = 500 * time.Millisecond
	// A job that has made no progress for stallAfter is left behind on its thread and
	// the next one begins; after hangAfter it counts as hung. On a slow disk many jobs
	// stall for a moment: at most maxStalled may, so that they do not make it slower.
	minRest               = 20 * time.Millisecond
	stallAfter, hangAfter = 100 * time.Millisecond, 2 * time.Second
	maxStalled            = 8
	// maxOpenPerPod bounds the jobs of one pod that are left behind, and maxHung those
	// of all pods that hang: each costs a thread, of which Go allows 10,000.
	maxOpenPerPod, maxHung = 8, 256
	// logHangEvery is how often a hang is logged for a pod, which can make its own
	// directories hang and return as often as it likes.
	logHangEvery = time.Hour
)

// tellEvery is how often what a job that goes on has found so far is something new.
const tellEvery = time.Second

// job is one look at the disks for a pod: it may take long, and may never return.
type job struct {
	pod, what string
	began     time.Time
	done      chan struct{}
	resting   atomic.Bool // until the budget allows more
	rests     atomic.Uint64
	restedFor atomic.Int64

	// Of the owner of jobs.
	ended, stalled, hung, logged bool
}

func newJob(pod, what string) *job {
	return &job{pod: pod, what: what, began: time.Now(), done: make(chan struct{})}
}

// hangs reports whether the job hangs; that of nil does not. The caller holds mu.
func (j *job) hangs() bool { return j != nil && j.hung }

// rested returns for how long the job waited for its budget.
func (j *job) rested() time.Duration { return time.Duration(j.restedFor.Load()) }

// jobs are the jobs that were left behind, and the threads.
type jobs struct {
	open          map[string]int // stalled and hung ones, by pod
	stalled, hung int
	logged        map[string]time.Time // by pod, when a hang was logged last
	threads       map[*thread]struct{}
	yielding      bool
}

func newJobs() jobs {
	return jobs{open: map[string]int{}, logged: map[string]time.Time{}, threads: map[*thread]struct{}{}, yielding: true}
}

// refuses reports whether no further job of a pod begins before one has returned.
func (j *jobs) refuses(pod string) bool { return j.open[pod] >= maxOpenPerPod || j.hung >= maxHung }

// full reports whether no further job of a pod begins now.
func (j *jobs) full(pod string) bool { return j.refuses(pod) || j.stalled >= maxStalled }

// yield lowers the priority of all threads, or brings it back to ordinary.
func (j *jobs) yield(yield bool) {
	if j.yielding == yield {
		return
	}
	j.yielding = yield
	for t := range j.threads {
		t.yield(yield)
	}
}

// leave counts a job that is left behind.
func (j *jobs) leave(left *job) {
	left.stalled = true
	j.open[left.pod]++
	j.stalled++
}

// hang counts a job that was left behind as hung.
func (j *jobs) hang(left *job) {
	left.hung = true
	j.stalled--
	j.hung++
}

// end forgets a job that has returned.
func (j *jobs) end(ended *job) {
	ended.ended = true
	switch {
	case !ended.stalled:
		return
	case ended.hung:
		j.hung--
	default:
		j.stalled--
	}
	if j.open[ended.pod]--; j.open[ended.pod] == 0 {
		delete(j.open, ended.pod)
	}
}

// thread runs one job after the other, at no more than ordinary priority.
type thread struct {
	jobs chan func()
	// locked is nil until the thread runs and where its priority can't be set.
	locked atomic.Pointer[disk.Thread]
}

func (u *Usages) newThread() *thread {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.startThread()
}

// startThread is newThread for a caller that holds mu.
func (u *Usages) startThread() *thread {
	t := &thread{jobs: make(chan func(), 1)} // a job waits for no processor
	u.jobs.threads[t] = struct{}{}
	go func() {
		locked, err := disk.LockThread()
		if err != nil {
			u.o.Log.Debug("could not set the priority of a thread that measures disk usage", "error", err)
		}
		t.locked.Store(locked)
		u.mu.Lock()
		t.yield(u.jobs.yielding)
		u.mu.Unlock()
		for job := range t.jobs {
			job()
		}
		u.mu.Lock()
		delete(u.jobs.threads, t)
		u.mu.Unlock()
		locked.Ended()
	}()
	return t
}

// yield changes the priority as far as the kernel allows it.
func (t *thread) yield(yield bool) {
	if locked := t.locked.Load(); locked != nil {
		_ = locked.Yield(yield)
	}
}

func (u *Usages) endThread() {
	if u.thread != nil {
		close(u.thread.jobs)
		u.thread = nil
	}
}

// run has a thread do a job and waits as long as progress grows. A job that makes no
// progress is left behind with its thread. Afterwards run waits until the budget
// allows the next job.
func (u *Usages) run(ctx context.Context, j *job, progress func() uint64, do func(pause func())) {
	if u.thread == nil {
		u.thread = u.newThread()
	}
	var rest time.Duration
	u.thread.jobs <- func() {
		m := meter{cpu: u.cpu}
		m.used()
		do(func() { u.rest(ctx, j, u.budget.Spend(m.used(), time.Now())) })
		rest = u.budget.Spend(m.used(), time.Now())
		u.ended(j)
		close(j.done)
	}
	if !u.waitFor(j, progress, stallAfter) {
		u.mu.Lock()
		if !j.ended {
			u.jobs.leave(j)
			u.version++
		}
		left := j.stalled
		u.mu.Unlock()
		if left {
			u.endThread()
			go u.follow(j, progress)
			return
		}
		<-j.done
	}
	u.rest(ctx, j, rest)
}

// waitFor waits until a job has returned, or has made no progress for a time, which
// is false. A job that rests makes progress.
func (u *Usages) waitFor(j *job, progress func() uint64, stall time.Duration) bool {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	told := time.Now()
	for before := progress() + j.rests.Load(); ; timer.Reset(stall) {
		select {
		case <-j.done:
			return true
		case <-timer.C:
		}
		now := progress() + j.rests.Load()
		if now == before && !j.resting.Load() {
			return false
		}
		before = now
		if time.Since(told) >= tellEvery {
			told = time.Now()
			u.mu.Lock()
			u.version++
			u.mu.Unlock()
		}
	}
}

// follow waits for a job that was left behind, and says so where it hangs.
func (u *Usages) follow(j *job, progress func() uint64) {
	if u.waitFor(j, progress, hangAfter-stallAfter) {
		return
	}
	u.mu.Lock()
	if !j.ended {
		u.jobs.hang(j)
		u.version++
		if now := time.Now(); u.jobs.logged[j.pod].IsZero() || now.Sub(u.jobs.logged[j.pod]) >= logHangEvery {
			u.jobs.logged[j.pod], j.logged = now, true
			u.o.Log.Error("looking at a directory hangs; its disk usage is not measured until that returns",
				"pod_uid", j.pod, "path", j.what, "hung", u.jobs.hung)
		}
	}
	u.mu.Unlock()
	tell(u.wake)
}

func (u *Usages) ended(j *job) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if j.logged {
		u.o.Log.Info("looking at a directory that hung has returned", "pod_uid", j.pod, "path", j.what)
	}
	u.jobs.end(j)
	if j.stalled {
		tell(u.wake)
	}
}

// rest waits for the budget, at most until ctx ends. Short waits add up to one of at
// least minRest: each costs a switch of threads.
func (u *Usages) rest(ctx context.Context, j *job, wait time.Duration) {
	if wait < minRest {
		return
	}
	j.rests.Add(1)
	j.resting.Store(true)
	defer func() { j.rests.Add(1); j.resting.Store(false) }()
	began := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	j.restedFor.Add(int64(time.Since(began)))
}

// meter measures the processor time of the calling thread.
type meter struct {
	cpu  func() (time.Duration, error)
	last time.Duration
}

// used returns the time since the call before. Where the kernel does not tell, it is
// nothing.
func (m *meter) used() time.Duration {
	now, err := m.cpu()
	if err != nil {
		return 0
	}
	used := now - m.last
	m.last = now
	return used
}
