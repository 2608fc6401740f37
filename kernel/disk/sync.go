package disk

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sync writes the dirty data of the filesystem that contains path to disk
// (syncfs(2)). On btrfs that also frees the space of removed files, which otherwise
// counts as used until the transaction is committed, for up to half a minute.
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
