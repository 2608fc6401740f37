// Package kernel and the packages below it are evictd's interface to the Linux
// kernel, one package per kernel subject.
//
// Each takes the root of the filesystem that it reads as an [FS] value, which is
// the only difference between a container, a test and the host. They have no
// policy, write no log, update no metric and start no goroutine. Every number
// that they return was read from the kernel during the call; a number that can't
// be read is an error and never a zero.
package kernel

import (
	"errors"
	"path/filepath"
)

// ErrUnavailable means that this kernel, as it was built, booted and mounted
// here, lacks a feature. A retry gives the same error; callers use their
// fallback.
var ErrUnavailable = errors.New("not available on this kernel")

// FS is the root of a mounted kernel filesystem: normally /proc, /sys or
// /sys/fs/cgroup.
type FS string

// Path returns the path of a file below the root.
func (fs FS) Path(elem ...string) string {
	return filepath.Join(append([]string{string(fs)}, elem...)...)
}
