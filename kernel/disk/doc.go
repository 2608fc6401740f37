// Package disk reads the free space of filesystems and the disk usage of
// directories.
//
// Every call here can hang as long as the filesystem does: a network filesystem
// without its server, a FUSE filesystem whose process sleeps, a disk that retries.
// No signal ends such a wait, so callers make each call on a goroutine of its own
// that they can abandon.
//
// Paths are resolved by the kernel in the mount namespace of this process.
package disk
