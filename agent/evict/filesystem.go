package evict

import "time"

// FilesystemStatus is the state of a filesystem that signals are computed from.
type FilesystemStatus struct {
	Name string // nodefs, imagefs or containerfs
	// Path is the directory whose filesystem is read, as this process sees it; "" if it
	// is unknown.
	Path string
	// Mountpoint is where the filesystem is mounted, Type its type, and Device
	// identifies it; "" if unknown.
	Mountpoint, Type, Device string
	ReadOnly                 bool
	// Available and Size (in bytes), InodesFree and Inodes are from the last successful
	// reading, at At. They are nil and At is zero if there was none. InodesFree and
	// Inodes are nil for a filesystem that does not count inodes.
	Available, Size, InodesFree, Inodes *int64
	At                                  time.Time
	// Interval is the time until the next reading.
	Interval time.Duration
	// Readable is set if the filesystem's signals can be read. Error is why they can't,
	// or why the path may have changed; "" if there is no error.
	Readable bool
	Error    string
}
