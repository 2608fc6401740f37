package meminfo

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// File is an open /proc/meminfo. Its methods may be called concurrently.
type File struct{ fd *sys.FD }

// Open opens the file.
func Open(fs kernel.FS) (*File, error) {
	fd, err := sys.Open(fs.Path("meminfo"), unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open meminfo: %w", err)
	}
	return &File{fd}, nil
}

// Read reads the file into info, with one pread(2) and without allocations. It
// leaves info unchanged on an error.
func (f *File) Read(info *Info) error {
	// The file has about 1600 bytes. The buffer is on the stack, so that concurrent
	// readers share nothing.
	var buf [8 << 10]byte
	b, err := f.fd.Read(buf[:])
	if err != nil {
		return fmt.Errorf("read meminfo: %w", err)
	}
	got, err := Parse(b)
	if err != nil {
		return err
	}
	*info = got
	return nil
}

// Close closes the file. Further calls do nothing.
func (f *File) Close() error { return f.fd.Close() }
