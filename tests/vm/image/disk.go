package image

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
)

// mkfs creates an ext4 file system with the content of dir in file.
func mkfs(ctx context.Context, dir, file, size string) error {
	// Initialize all tables now, so that no kernel thread of the machine has to.
	_, err := output(command(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-d", dir, file, size))
	return err
}

// MakeDisk creates an ext4 file system with the content of dir in file, with little free space.
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
	// Reserve space for inodes of 256 bytes, one per 64 KiB, and for the journal and the tables.
	mebibytes := bytes>>20*21/20 + files/16 + 24
	if err := mkfs(ctx, dir, file, fmt.Sprintf("%dM", mebibytes)); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	return nil
}
