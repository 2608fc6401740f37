package disk

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// openDir opens a directory and nothing else, without touching its access time
// where that is allowed.
func openDir(dir int, name string) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	quiet := unix.O_NOATIME
	for {
		fd, err := unix.Openat(dir, name, flags|quiet, 0)
		switch {
		case err == unix.EPERM && quiet != 0:
			quiet = 0
		case err != unix.EINTR:
			return fd, err
		}
	}
}

// dirent takes the first entry off what getdents64 filled (struct
// linux_dirent64): inode 8, offset of the next 8, length 2, type 1, name. The name is
// not empty, and a zero byte follows it.
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
