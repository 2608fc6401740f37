package disk

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// inode identifies a file.
type inode struct {
	major, minor uint32
	number       uint64
}

// The fields and flags of statx(2). AT_STATX_DONT_SYNC keeps a network filesystem
// from asking its server.
const (
	statMask  = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_MNT_ID
	statFlags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
)

// stat calls statx(2) and stores the result in w.st.
func (w *Walker) stat(dir int, name string, flags int) error {
	for {
		if err := unix.Statx(dir, name, flags|statFlags, statMask, &w.st); err != unix.EINTR {
			return err
		}
	}
}

// statEntry is stat for a name in the current directory as returned by [dirent]: not
// empty, and followed by a zero byte. It does not copy the name.
func (w *Walker) statEntry(name []byte) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(w.fd), uintptr(unsafe.Pointer(&name[0])), statFlags, statMask,
			uintptr(unsafe.Pointer(&w.st)), 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// mountID returns the mount ID of the file in w.st, or an ID made of its device
// number before Linux 5.8.
func (w *Walker) mountID() uint64 {
	if w.st.Mask&unix.STATX_MNT_ID == 0 {
		return 1<<63 | uint64(w.st.Dev_major)<<32 | uint64(w.st.Dev_minor)
	}
	return w.st.Mnt_id
}

func (w *Walker) inode() inode { return inode{w.st.Dev_major, w.st.Dev_minor, w.st.Ino} }
