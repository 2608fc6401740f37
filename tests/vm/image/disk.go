package image

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
)

// mkfs makes file an ext4 file system with the content of dir.
func mkfs(ctx context.Context, dir, file, size string) error {
	// Tables that are initialised here need no kernel thread that writes them in the machine.
	_, err := output(command(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", dir, file, size))
	return err
}

// MakeDisk makes file an ext4 file system that holds the content of dir and little more.
func MakeDisk(ctx context.Context, dir, file string) error {
	var bytes, files int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		bytes += (info.Size() + 4095) &^ 4095
		return nil
	})
	if err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	// An inode has 256 bytes and comes with a sixteenth of a mebibyte; the journal and the tables want their share.
	mebibytes := bytes>>20*21/20 + files/16 + 24
	if err := mkfs(ctx, dir, file, fmt.Sprintf("%dM", mebibytes)); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	return nil
}
