package lanes

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/evictd/evictd/bpf"
)

// reclaimLane is the lane of tracepoints: of the kernel's reclaim (kswapd and direct), which
// shortens the sampler's interval and is counted, and of its OOM killer. Each works without
// the other. agent/reclaim is unrelated: it frees disk space.
type reclaimLane struct {
	ring *ring

	mu           sync.Mutex // guards the fields below: other goroutines call directReclaimStalls
	ringAcquired bool
	reclaim      *bpf.Reclaim
	oom          *bpf.OOM
	missing      error // why reclaim or oom is not available

	last ReclaimCounts // used by the Set's goroutine only
}

// open implements lane.
func (l *reclaimLane) open(time.Time, *laneInput) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ring.acquire(); err != nil {
		return err
	}
	l.ringAcquired = true
	var err1, err2 error
	l.reclaim, err1 = bpf.OpenReclaim(l.ring.ring)
	l.oom, err2 = bpf.OpenOOM(l.ring.ring)
	if err1 != nil && err2 != nil {
		return errors.Join(err1, err2)
	}
	l.missing = errors.Join(err1, err2)
	return nil
}

// reconcile implements lane.
func (l *reclaimLane) reconcile(time.Time, *laneInput) error {
	if err := l.ring.readErr.Load(); err != nil {
		return *err
	}
	var err error
	l.last, err = l.counts()
	return err
}

// ReclaimCounts are counts of the kernel's reclaim and OOM killer since the lane was
// opened. A field is nil if its tracepoints are not available.
type ReclaimCounts struct {
	Reclaim *bpf.ReclaimCounts
	OOM     *bpf.OOMCounts
}

func (l *reclaimLane) counts() (c ReclaimCounts, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reclaim != nil {
		n, err := l.reclaim.Counts()
		if err != nil {
			return ReclaimCounts{}, err
		}
		c.Reclaim = &n
	}
	if l.oom != nil {
		n, err := l.oom.Counts()
		if err != nil {
			return ReclaimCounts{}, err
		}
		c.OOM = &n
	}
	return c, nil
}

// directReclaimStalls returns the stalls of tasks in direct reclaim, by cgroup id.
func (l *reclaimLane) directReclaimStalls() (map[uint64]bpf.Stall, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reclaim == nil {
		return nil, nil
	}
	list, err := l.reclaim.Stalls(nil)
	if err != nil {
		return nil, err
	}
	byCgroup := make(map[uint64]bpf.Stall, len(list))
	for _, s := range list {
		byCgroup[s.Cgroup] = s
	}
	return byCgroup, nil
}

// partialFailure implements partialFailer.
func (l *reclaimLane) partialFailure() string {
	if l.missing == nil {
		return ""
	}
	return fmt.Sprintf("partly available: %v", l.missing)
}

// close implements lane.
func (l *reclaimLane) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	if l.reclaim != nil {
		errs = append(errs, l.reclaim.Close())
	}
	if l.oom != nil {
		errs = append(errs, l.oom.Close())
	}
	if l.ringAcquired {
		errs = append(errs, l.ring.release())
	}
	l.reclaim, l.oom, l.ringAcquired, l.missing, l.last = nil, nil, false, nil, ReclaimCounts{}
	return errors.Join(errs...)
}
