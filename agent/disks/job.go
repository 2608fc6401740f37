package disks

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/kernel/disk"
)

const (
	// Measuring disk usage may take one part in budgetShare of a processor; with the
	// time that the Go runtime needs to wake its threads, less than a tenth. budgetBurst
	// is the processor time that may be used at once after a time of less use, so
	// that on most nodes all is measured without a pause when a disk becomes low.
	budgetShare = 12
	budgetBurst = 500 * time.Millisecond
	// minThrottle is the shortest pause: each costs a context switch.
	minThrottle = 20 * time.Millisecond
	// A job without progress for stallTimeout, or that has not returned after
	// slowTimeout, is detached: it stays on its thread and the next job begins on
	// another. After hangTimeout without progress it counts as hung. Jobs often
	// stall for a moment on a slow disk, and a pod may have large directories, so
	// detached jobs that do not hang are limited: to maxSlowPerPod for a pod and
	// maxSlow for all pods. A pod without a detached job may start one until there
	// are maxSlowTotal, so that it does not wait for other pods.
	stallTimeout, slowTimeout, hangTimeout = 100 * time.Millisecond, time.Second, 2 * time.Second
	maxSlowPerPod, maxSlow, maxSlowTotal   = 4, 16, 64
	// maxDetachedPerPod limits the detached jobs of one pod, and maxHung the hung jobs
	// of all pods: each costs a thread, of which Go allows 10,000.
	maxDetachedPerPod, maxHung = 8, 256
	// hangLogInterval is the interval at which hangs of a pod are logged: a pod can
	// make its own directories hang and return at any rate.
	hangLogInterval = time.Hour
)

// progressInterval is the interval at which the intermediate result of a running
// job counts as new information (Version).
const progressInterval = time.Second

// job measures or searches a pod's directories once. It may take long, or never
// return.
type job struct {
	pod, what     string
	began         time.Time
	done          chan struct{}
	throttled     atomic.Bool // waits for its budget
	throttleCount atomic.Uint64
	throttledFor  atomic.Int64

	// Guarded by UsageMeter.mu.
	ended, detached, hung, logged bool
}

func newJob(pod, what string) *job {
	return &job{pod: pod, what: what, began: time.Now(), done: make(chan struct{})}
}

// isHung reports whether the job hangs; a nil job does not. mu must be locked.
func (j *job) isHung() bool { return j != nil && j.hung }

// throttledTime returns how long the job has waited for its budget.
func (j *job) throttledTime() time.Duration { return time.Duration(j.throttledFor.Load()) }

// jobs counts detached jobs. UsageMeter.mu guards it.
type jobs struct {
	detachedByPod map[string]int // by pod
	slowByPod     map[string]int // those of detachedByPod that do not hang
	slow          int            // of all pods
	hung          int
	logged        map[string]time.Time // by pod, when a hang was last logged
}

func newJobs() jobs {
	return jobs{detachedByPod: map[string]int{}, slowByPod: map[string]int{}, logged: map[string]time.Time{}}
}

// exhausted reports whether a pod may start no job before a detached job has
// returned.
func (j *jobs) exhausted(pod string) bool {
	return j.detachedByPod[pod] >= maxDetachedPerPod || j.hung >= maxHung
}

// full reports whether a pod may start no job now. A pod without a detached job has
// a higher limit, so that it does not wait for the large directories of other pods.
func (j *jobs) full(pod string) bool {
	most := maxSlow
	if j.detachedByPod[pod] == 0 {
		most = maxSlowTotal
	}
	return j.exhausted(pod) || j.slowByPod[pod] >= maxSlowPerPod || j.slow >= most
}

// detach counts a job as detached.
func (j *jobs) detach(one *job) {
	one.detached = true
	j.detachedByPod[one.pod]++
	j.slowByPod[one.pod]++
	j.slow++
}

// hang counts a detached job as hung.
func (j *jobs) hang(one *job) {
	one.hung = true
	decrement(j.slowByPod, one.pod)
	j.slow--
	j.hung++
}

// end removes a job that has returned from the counts.
func (j *jobs) end(one *job) {
	one.ended = true
	switch {
	case !one.detached:
		return
	case one.hung:
		j.hung--
	default:
		decrement(j.slowByPod, one.pod)
		j.slow--
	}
	decrement(j.detachedByPod, one.pod)
}

func decrement(counts map[string]int, key string) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// worker is a thread that runs one job after the other.
type worker struct{ jobs chan func() }

func (u *UsageMeter) newWorker() *worker {
	w := &worker{jobs: make(chan func(), 1)} // sending does not wait for the worker to be scheduled
	go func() {
		if err := disk.LockThread(); err != nil {
			u.o.Log.Debug("could not set the priority of a thread that measures disk usage", "error", err)
		}
		for job := range w.jobs {
			job()
		}
	}()
	return w
}

func (u *UsageMeter) stopWorker() {
	if u.worker != nil {
		close(u.worker.jobs)
		u.worker = nil
	}
}

// run executes a job on the worker thread and waits for it. A job without progress,
// or that takes long, is detached with its thread, so that it does not delay
// others. Then run waits until the budget allows the next job.
func (u *UsageMeter) run(ctx context.Context, j *job, progress func() uint64, do func(pause func())) {
	if u.worker == nil {
		u.worker = u.newWorker()
	}
	var throttleFor time.Duration // after the job
	u.worker.jobs <- func() {
		m := cpuMeter{cpu: u.cpu}
		m.used()
		do(func() { u.throttle(ctx, j, u.budget.Spend(m.used(), time.Now())) })
		throttleFor = u.budget.Spend(m.used(), time.Now())
		u.jobEnded(j)
		close(j.done)
	}
	if !u.waitFor(j, progress, stallTimeout, slowTimeout) {
		u.mu.Lock()
		if !j.ended {
			u.jobs.detach(j)
			u.version++
		}
		detached := j.detached
		u.mu.Unlock()
		if detached {
			u.stopWorker()
			go u.watchDetached(j, progress)
			return
		}
		<-j.done
	}
	u.throttle(ctx, j, throttleFor)
}

// waitFor waits until a job has returned. It returns false once the job has made no
// progress for stall, or has not returned after limit. A throttled job counts as
// progressing.
func (u *UsageMeter) waitFor(j *job, progress func() uint64, stall, limit time.Duration) bool {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	began := time.Now()
	notified := began
	for before := progress() + j.throttleCount.Load(); ; timer.Reset(stall) {
		select {
		case <-j.done:
			return true
		case <-timer.C:
		}
		now := progress() + j.throttleCount.Load()
		if now == before && !j.throttled.Load() || time.Since(began) >= limit {
			return false
		}
		before = now
		if time.Since(notified) >= progressInterval {
			notified = time.Now()
			u.mu.Lock()
			u.version++
			u.mu.Unlock()
		}
	}
}

// watchDetached waits for a detached job and logs it if it hangs.
func (u *UsageMeter) watchDetached(j *job, progress func() uint64) {
	if u.waitFor(j, progress, hangTimeout-stallTimeout, math.MaxInt64) {
		return
	}
	u.mu.Lock()
	if !j.ended {
		u.jobs.hang(j)
		u.version++
		if now := time.Now(); u.jobs.logged[j.pod].IsZero() || now.Sub(u.jobs.logged[j.pod]) >= hangLogInterval {
			u.jobs.logged[j.pod], j.logged = now, true
			u.o.Log.Error("measuring a directory hangs; its disk usage is unknown until the call returns",
				"pod_uid", j.pod, "path", j.what, "hung", u.jobs.hung)
		}
	}
	u.mu.Unlock()
	notify(u.wake)
}

func (u *UsageMeter) jobEnded(j *job) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if j.logged {
		u.o.Log.Info("measuring a directory that hung has returned", "pod_uid", j.pod, "path", j.what)
	}
	u.jobs.end(j)
	if j.detached {
		notify(u.wake)
	}
}

// throttle pauses a job for wait, or until ctx ends. A wait shorter than minThrottle is
// skipped: the budget adds it to a later one.
func (u *UsageMeter) throttle(ctx context.Context, j *job, wait time.Duration) {
	if wait < minThrottle {
		return
	}
	j.throttleCount.Add(1)
	j.throttled.Store(true)
	defer func() { j.throttleCount.Add(1); j.throttled.Store(false) }()
	began := time.Now()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	j.throttledFor.Add(int64(time.Since(began)))
}

// cpuMeter measures the processor time of the calling thread.
type cpuMeter struct {
	cpu  func() (time.Duration, error)
	last time.Duration
}

// used returns the processor time since the previous call, and zero if the kernel
// does not report it.
func (m *cpuMeter) used() time.Duration {
	now, err := m.cpu()
	if err != nil {
		return 0
	}
	used := now - m.last
	m.last = now
	return used
}
