package disk

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// openDir opens a directory. It fails if name is not a directory or is a symbolic
// link. It does not update the access time if the kernel permits that.
func openDir(dir int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	noatime := unix.O_NOATIME
	for {
		fd, err := unix.Openat(dir, name, flags|noatime, 0)
		switch {
		case err == unix.EPERM && noatime != 0:
			noatime = 0
		case err != unix.EINTR:
			return fd, err
		}
	}
}

// dirent returns the first entry of a getdents64(2) buffer, and the rest of the
// buffer. The layout of struct linux_dirent64 is: inode 8 bytes, offset of the next
// entry 8, length 2, type 1, name. The name is not empty, and a zero byte follows it.
// ok is false for a malformed entry.
func dirent(buf []byte) (name []byte, next int64, rest []byte, ok bool) {
	const header = 19
	if len(buf) < header {
		return nil, 0, nil, false
	}
	next = int64(binary.NativeEndian.Uint64(buf[8:]))
	length := int(binary.NativeEndian.Uint16(buf[16:]))
	if length <= header || length > len(buf) {
		return nil, 0, nil, false
	}
	name = buf[header:length]
	for i, c := range name {
		if c == 0 && i > 0 {
			return name[:i], next, buf[length:], true
		}
	}
	return nil, 0, nil, false
}
