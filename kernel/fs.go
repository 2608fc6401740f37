// Package kernel and the packages below it read what the Linux kernel tells
// about a node, and hand it orders: one package per kernel subject.
//
// Each takes the root of the filesystem that it reads as an [FS] value, so that
// a container, a test and the host differ in nothing else. They keep no policy,
// write no log, count no metric and start no goroutine. A number that they
// return was read from the kernel just then; what could not be read is an error
// and never a zero.
package kernel

import (
	"errors"
	"path/filepath"
)

// ErrUnavailable says that this kernel, as it was built, booted and mounted
// here, lacks what was asked for. Asking again does not help; the next best way
// does.
var ErrUnavailable = errors.New("not available on this kernel")

// FS is the root of a mounted kernel filesystem: normally /proc, /sys or
// /sys/fs/cgroup.
type FS string

// Path returns the path of a file below the root.
func (fs FS) Path(elem ...string) string {
	return filepath.Join(append([]string{string(fs)}, elem...)...)
}
