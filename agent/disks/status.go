package disks

import (
	"path/filepath"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// LayersDir returns the directory below which the runtime keeps writable layers, as
// this process sees it; "" while it is not known. It is the parent of the reported
// directory, because layers may be in a sibling: CRI-O reports …/overlay-images for
// layers in …/overlay.
func (w *Watch) LayersDir() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.filesystems[Container].path; f != "" {
		return filepath.Dir(f)
	}
	return ""
}

// MountPoint returns the mount point of a disk signal's filesystem, as this process
// sees it; "" while it is not known.
func (w *Watch) MountPoint(s signal.Signal) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range roles {
		if bytes, inodes := r.signals(); s == bytes || s == inodes {
			return w.filesystems[r].mount.Point
		}
	}
	return ""
}

// Statuses returns the status of each filesystem that the node has.
func (w *Watch) Statuses(now time.Time) []evict.FilesystemStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []evict.FilesystemStatus
	for r := range roles {
		if w.applies(r) {
			all = append(all, w.filesystems[r].status(r, now))
		}
	}
	return all
}

func (f *filesystem) status(r Role, now time.Time) evict.FilesystemStatus {
	s := evict.FilesystemStatus{
		Name: r.String(), Path: f.path, Mountpoint: f.mount.Point, Type: f.mount.Type, ReadOnly: f.mount.ReadOnly(), At: f.at, Interval: f.period,
	}
	if f.mount.ID != 0 {
		s.Device = f.mount.Filesystem.String()
	}
	if !f.at.IsZero() {
		s.Available, s.Size = new(signed(f.space.Available)), new(signed(f.space.Bytes))
		if f.space.CountsInodes {
			s.InodesFree, s.Inodes = new(signed(f.space.InodesFree)), new(signed(f.space.Inodes))
		}
	}
	err := f.unreadable(now)
	s.Readable = err == nil
	if err == nil || f.path == "" {
		err = f.pathErr
	}
	if err != nil {
		s.Error = err.Error()
	}
	return s
}
