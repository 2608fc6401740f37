package lanes

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/evictd/evictd/bpf"
)

// reclaim is the lane of tracepoints: of the kernel's reclaim, which hurries the
// sampler up and is measured, and of its OOM killer. Either may be had without the
// other.
type reclaim struct {
	ring *ring

	mu      sync.Mutex // of those who read beside open and close
	holds   bool       // the ring
	reclaim *bpf.Reclaim
	oom     *bpf.OOM
	missing error // why one of them can't be had

	last ReclaimCounts // of the watch over the lanes
}

// open implements lane.
func (l *reclaim) open(time.Time, *watched) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ring.acquire(); err != nil {
		return err
	}
	l.holds = true
	var err1, err2 error
	l.reclaim, err1 = bpf.OpenReclaim(l.ring.ring)
	l.oom, err2 = bpf.OpenOOM(l.ring.ring)
	if err1 != nil && err2 != nil {
		return errors.Join(err1, err2)
	}
	l.missing = errors.Join(err1, err2)
	return nil
}

// tend implements lane.
func (l *reclaim) tend(time.Time, *watched) error {
	if broken := l.ring.broken.Load(); broken != nil {
		return *broken
	}
	var err error
	l.last, err = l.counts()
	return err
}

// ReclaimCounts are totals of the kernel's reclaim and of its OOM killer, since
// the lane was opened. What can't be had is nil.
type ReclaimCounts struct {
	Reclaim *bpf.ReclaimCounts
	OOM     *bpf.OOMCounts
}

func (l *reclaim) counts() (c ReclaimCounts, err error) {
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

// stalls reads how each cgroup has stalled, by its id.
func (l *reclaim) stalls() (map[uint64]bpf.Stall, error) {
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

// note implements noter.
func (l *reclaim) note() string {
	if l.missing == nil {
		return ""
	}
	return fmt.Sprintf("in part: %v", l.missing)
}

// close implements lane.
func (l *reclaim) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	if l.reclaim != nil {
		errs = append(errs, l.reclaim.Close())
	}
	if l.oom != nil {
		errs = append(errs, l.oom.Close())
	}
	if l.holds {
		errs = append(errs, l.ring.release())
	}
	l.reclaim, l.oom, l.holds, l.missing, l.last = nil, nil, false, nil, ReclaimCounts{}
	return errors.Join(errs...)
}
