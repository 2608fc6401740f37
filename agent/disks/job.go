package disks

import (
	"context"
	"math"
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
	// minRest is the shortest rest: each costs a switch of threads.
	minRest = 20 * time.Millisecond
	// A job that has made no progress for stallAfter, or has not returned after
	// slowAfter, is left behind on its thread and the next one begins; after hangAfter
	// without progress it counts as hung. On a slow disk many jobs stall for a moment,
	// and a pod may have large directories: at most maxSlowPerPod are left behind for
	// a pod and maxSlow for all, or maxSlowInAll with those of pods that have no other
	// job, so that the others do not wait for them.
	stallAfter, slowAfter, hangAfter     = 100 * time.Millisecond, time.Second, 2 * time.Second
	maxSlowPerPod, maxSlow, maxSlowInAll = 4, 16, 64
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
	ended, left, hung, logged bool
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
	open     map[string]int // by pod
	slowOf   map[string]int // those of open that do not hang
	slow     int            // of all pods
	hung     int
	logged   map[string]time.Time // by pod, when a hang was logged last
	threads  map[*thread]struct{}
	yielding bool
}

func newJobs() jobs {
	return jobs{open: map[string]int{}, slowOf: map[string]int{}, logged: map[string]time.Time{}, threads: map[*thread]struct{}{}, yielding: true}
}

// refuses reports whether no further job of a pod begins before one has returned.
func (j *jobs) refuses(pod string) bool { return j.open[pod] >= maxOpenPerPod || j.hung >= maxHung }

// full reports whether no further job of a pod begins now. The large directories of some
// pods do not keep a pod waiting that has no job under way.
func (j *jobs) full(pod string) bool {
	most := maxSlow
	if j.open[pod] == 0 {
		most = maxSlowInAll
	}
	return j.refuses(pod) || j.slowOf[pod] >= maxSlowPerPod || j.slow >= most
}

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
	left.left = true
	j.open[left.pod]++
	j.slowOf[left.pod]++
	j.slow++
}

// hang counts a job that was left behind as hung.
func (j *jobs) hang(left *job) {
	left.hung = true
	decrement(j.slowOf, left.pod)
	j.slow--
	j.hung++
}

// end forgets a job that has returned.
func (j *jobs) end(ended *job) {
	ended.ended = true
	switch {
	case !ended.left:
		return
	case ended.hung:
		j.hung--
	default:
		decrement(j.slowOf, ended.pod)
		j.slow--
	}
	decrement(j.open, ended.pod)
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
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

// run has a thread do a job and waits for it. A job that makes no progress, or takes
// long, is left behind with its thread, so that it holds up no other. Afterwards run waits until the budget
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
	if !u.waitFor(j, progress, stallAfter, slowAfter) {
		u.mu.Lock()
		if !j.ended {
			u.jobs.leave(j)
			u.version++
		}
		left := j.left
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

// waitFor waits until a job has returned. It is false once the job has made no progress
// for stall, or has not returned after limit. A job that rests makes progress.
func (u *Usages) waitFor(j *job, progress func() uint64, stall, limit time.Duration) bool {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	began := time.Now()
	told := began
	for before := progress() + j.rests.Load(); ; timer.Reset(stall) {
		select {
		case <-j.done:
			return true
		case <-timer.C:
		}
		now := progress() + j.rests.Load()
		if now == before && !j.resting.Load() || time.Since(began) >= limit {
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
	if u.waitFor(j, progress, hangAfter-stallAfter, math.MaxInt64) {
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
	if j.left {
		tell(u.wake)
	}
}

// rest waits for the budget, at most until ctx ends. Short waits add up to one of at
// least minRest.
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
