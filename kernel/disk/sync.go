package disk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync writes out what the filesystem that path is on still holds in memory
// (syncfs(2)). On a btrfs that also gives back what removed files held: until its
// transaction ends, which may take half a minute, it counts as used.
func Sync(path string) error {
	fd, err := openDir(unix.AT_FDCWD, path)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Syncfs(fd); err != nil {
		return fmt.Errorf("sync %s: %w", path, os.NewSyscallError("syncfs", err))
	}
	return nil
}
