package main

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// writeFile writes the tar of an image. A file of that name is replaced only by a complete image: the image is written to another
// file in the same directory, which is removed after an error or a signal.
func writeFile(ctx context.Context, path string, files []file, created time.Time) (err error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s exists and is not a regular file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".evictd-image-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := writeTar(&interruptible{ctx, f}, files, created); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	// Some filesystems report a full disk only here.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func writeTar(to io.Writer, files []file, created time.Time) error {
	w := tar.NewWriter(to)
	for _, file := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: 0o644, Size: int64(len(file.content)), ModTime: created, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(file.content); err != nil {
			return err
		}
	}
	return w.Close()
}

// interruptible is a writer that fails after the end of its context.
type interruptible struct {
	ctx context.Context
	io.Writer
}

func (w *interruptible) Write(b []byte) (int, error) {
	if w.ctx.Err() != nil {
		return 0, context.Cause(w.ctx)
	}
	return w.Writer.Write(b)
}
