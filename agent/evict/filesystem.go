package evict

import "time"

// FilesystemStatus is the state of a filesystem that signals are about.
type FilesystemStatus struct {
	Name string // nodefs, imagefs or containerfs
	// Path is the directory on it that is read, as this process sees it; "" is not
	// known.
	Path string
	// Mountpoint is where it is mounted, Type what it is, and Device tells one from
	// another; "" until they are known.
	Mountpoint, Type, Device string
	ReadOnly                 bool
	// Available and Size, in bytes, and InodesFree and Inodes are of the last reading
	// that succeeded, at At. They are nil and At is zero where there was none; a
	// filesystem that counts no inodes has nil for those.
	Available, Size, InodesFree, Inodes *int64
	At                                  time.Time
	// Period is until the next reading.
	Period time.Duration
	// Readable says that its signals can be read now. Error is why not, or why
	// the path may have changed; "" where nothing is wrong.
	Readable bool
	Error    string
}
