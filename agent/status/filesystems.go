package status

import (
	"math"
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
func layoutOf(l evict.Layout, all []disks.Status) string {
	if len(all) == 0 {
		return ""
	}
	for i := range all {
		if all[i].Path == "" || all[i].Mount.ID == 0 {
			return ""
		}
	}
	return l.String()
}

// filesystemStatus is a filesystem's status as evictctl shows it.
func filesystemStatus(s *disks.Status, now time.Time) control.Filesystem {
	f := control.Filesystem{
		Name: s.Role.String(), Path: s.Path, Mountpoint: s.Mount.Point, Type: s.Mount.Type,
		ReadOnly: s.Mount.ReadOnly(), PeriodSeconds: s.Period.Seconds(), Error: s.Error,
	}
	if s.Mount.ID != 0 {
		f.Device = s.Mount.Filesystem.String()
	}
	if s.At.IsZero() {
		return f
	}
	signed := func(n uint64) *int64 { return new(int64(min(n, math.MaxInt64))) }
	f.AvailableBytes, f.SizeBytes, f.AgeSeconds = signed(s.Space.Available), signed(s.Space.Bytes), new(now.Sub(s.At).Seconds())
	if s.Space.CountsInodes {
		f.InodesFree, f.Inodes = signed(s.Space.InodesFree), signed(s.Space.Inodes)
	}
	return f
}
