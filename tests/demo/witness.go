package main

import (
	"context"
	"sync"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
)

// sampleEvery is how often the witness looks.
const sampleEvery = time.Millisecond

// witness watches memory.available besides evictd, so that what evictd says of itself is not taken on trust.
type witness struct {
	file      *meminfo.File
	threshold int64

	mu   sync.Mutex // guards what follows
	seen testimony
	err  error
}

// testimony is what a witness saw. A time is zero while it has not come.
type testimony struct {
	available int64
	crossed   time.Time // when it first was below the threshold
	recovered time.Time // when it last came back
	lowest    int64     // since crossed
}

// available is memory.available as evictd computes it where active file cache counts as available.
func available(f *meminfo.File) (int64, error) {
	var i meminfo.Info
	if err := f.Read(&i); err != nil {
		return 0, err
	}
	return int64(i.MemTotal) - int64(i.Hugetlb) - int64(i.WorkingSet()) + int64(i.ActiveFile), nil
}

func openMeminfo() (*meminfo.File, error) { return meminfo.Open(kernel.FS("/proc")) }

// watch looks until ctx ends.
func (w *witness) watch(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		n, err := available(w.file)
		w.mu.Lock()
		w.see(now, n, err)
		w.mu.Unlock()
	}
}

func (w *witness) see(now time.Time, n int64, err error) {
	s := &w.seen
	if err != nil {
		w.err = err
		return
	}
	s.available = n
	switch below := n < w.threshold; {
	case below && s.crossed.IsZero():
		s.crossed, s.lowest = now, n
	case below:
		s.lowest, s.recovered = min(s.lowest, n), time.Time{}
	case !s.crossed.IsZero() && s.recovered.IsZero():
		s.recovered = now
	}
}

// believe takes another's word for a crossing that was over before the witness looked again, and reports whether it
// had to.
func (w *witness) believe(crossed time.Time, lowest int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen.crossed.IsZero() {
		return false
	}
	w.seen.crossed, w.seen.lowest = crossed, lowest
	return true
}

// testify returns what was seen so far.
func (w *witness) testify() (testimony, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen, w.err
}
