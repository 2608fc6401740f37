package status

import (
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// LargestDirectories returns the largest known directories outside the pods on the filesystem
// of a disk signal. It does not block.
func LargestDirectories(w *disks.Watch, u *disks.UsageMeter, s signal.Signal) []evict.DirectoryUsage {
	mountPoint := w.MountPoint(s)
	if mountPoint == "" {
		return nil
	}
	return u.LargestDirectories(mountPoint, s.IsInodes())
}

// layoutOf returns the name of the layout of the filesystems. It returns "" while
// the location of one of them is unknown, although evictd then decides as for a
// single filesystem.
func layoutOf(l evict.Layout, filesystems []evict.FilesystemStatus) string {
	if len(filesystems) == 0 {
		return ""
	}
	for i := range filesystems {
		if filesystems[i].Path == "" || filesystems[i].Device == "" {
			return ""
		}
	}
	return l.String()
}

// filesystemStatus converts a filesystem's status for the control socket: the time
// of the reading to its age, durations to seconds.
func filesystemStatus(s *evict.FilesystemStatus, now time.Time) control.Filesystem {
	f := control.Filesystem{
		Name: s.Name, Path: s.Path, Mountpoint: s.Mountpoint, Type: s.Type, Device: s.Device, ReadOnly: s.ReadOnly,
		AvailableBytes: s.Available, SizeBytes: s.Size, InodesFree: s.InodesFree, Inodes: s.Inodes,
		PeriodSeconds: s.Interval.Seconds(), Error: s.Error,
	}
	if !s.At.IsZero() {
		f.AgeSeconds = new(now.Sub(s.At).Seconds())
	}
	return f
}
