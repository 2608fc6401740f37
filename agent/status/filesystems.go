package status

import (
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Largest returns the largest directories outside the pods on the
// filesystem of a disk signal, as far as that is known. It does not wait.
func Largest(w *disks.Watch, u *disks.Usages, s signal.Signal) []evict.DirectoryUsage {
	point := w.MountOf(s)
	if point == "" {
		return nil
	}
	return u.Largest(point, s.IsInodes())
}

// layoutOf names the layout of the filesystems; empty while it is not known
// where one of them is, for which evictd then decides as if there were one.
func layoutOf(l evict.Layout, all []evict.FilesystemStatus) string {
	if len(all) == 0 {
		return ""
	}
	for i := range all {
		if all[i].Path == "" || all[i].Device == "" {
			return ""
		}
	}
	return l.String()
}

// filesystemStatus is a filesystem's status as evictctl shows it: with the age of the
// reading for its time, and seconds for durations.
func filesystemStatus(s *evict.FilesystemStatus, now time.Time) control.Filesystem {
	f := control.Filesystem{
		Name: s.Name, Path: s.Path, Mountpoint: s.Mountpoint, Type: s.Type, Device: s.Device, ReadOnly: s.ReadOnly,
		AvailableBytes: s.Available, SizeBytes: s.Size, InodesFree: s.InodesFree, Inodes: s.Inodes,
		PeriodSeconds: s.Period.Seconds(), Error: s.Error,
	}
	if !s.At.IsZero() {
		f.AgeSeconds = new(now.Sub(s.At).Seconds())
	}
	return f
}
