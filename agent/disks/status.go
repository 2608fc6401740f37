package disks

import (
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/disk"
)

// Status is how a filesystem fares.
type Status struct {
	Role Role
	// Path is the directory on it that is asked, as this process sees it; empty
	// is not known.
	Path string
	// Mount is zero until it is known.
	Mount disk.Mount
	// Space is of At; both are zero where nothing was read yet.
	Space disk.Space
	At    time.Time
	// Period is until the next reading.
	Period time.Duration
	// Readable tells that its signals can be read now. Error is why not, or why
	// the path may have changed; empty where nothing is wrong.
	Readable bool
	Error    string
}

// LayersDir returns the directory below which the runtime keeps writable layers,
// as this process sees it; "" while that is not known. What it names as their
// place may be beside them: CRI-O has …/overlay-images for what is in …/overlay.
func (w *Watch) LayersDir() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.places[Container].path; p != "" {
		return filepath.Dir(p)
	}
	return ""
}

// MountOf returns where the filesystem of a disk signal is mounted, as this process
// sees it; "" while that is not known.
func (w *Watch) MountOf(s signal.Signal) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range roles {
		if bytes, inodes := r.signals(); s == bytes || s == inodes {
			return w.places[r].mount.Point
		}
	}
	return ""
}

// Statuses returns how each filesystem fares that the node has.
func (w *Watch) Statuses(now time.Time) []Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []Status
	for r := range roles {
		if !w.applies(r) {
			continue
		}
		p := &w.places[r]
		s := Status{Role: r, Path: p.path, Mount: p.mount, Space: p.space, At: p.at, Period: p.period}
		if err := p.unreadable(now); err != nil {
			s.Error = err.Error()
			if p.path == "" {
				s.Error = p.pathErr.Error()
			}
		} else {
			s.Readable = true
			if p.pathErr != nil {
				s.Error = p.pathErr.Error()
			}
		}
		all = append(all, s)
	}
	return all
}
