// Package disk reads what filesystems have left and what directories take up.
//
// Every call here may hang for as long as the filesystem does that it asks: a
// network filesystem whose server is gone, a FUSE one whose process sleeps, a
// disk that retries. No signal ends such a wait. Callers therefore make each on
// a goroutine of its own, and go on without it.
//
// A path is followed as the kernel follows it, in the mount namespace of this
// process.
package disk
