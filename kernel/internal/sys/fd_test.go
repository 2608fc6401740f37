package sys

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	f, err := Open(write(t, "4096\n"), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, tt := range []struct {
		buf  int
		want string
		err  error
	}{
		{buf: 16, want: "4096\n"},
		{buf: 6, want: "4096\n"},
		{buf: 5, err: ErrTooLong}, // more may follow
		{buf: 2, err: ErrTooLong},
	} {
		got, err := f.Read(make([]byte, tt.buf))
		if string(got) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("Read into %d bytes = %q, %v; want %q, %v", tt.buf, got, err, tt.want, tt.err)
		}
	}
}

func TestOpenAt(t *testing.T) {
	dir, err := Open(filepath.Dir(write(t, "x")), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	f, err := dir.OpenAt("file", unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := dir.OpenAt("none", unix.O_RDONLY); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("OpenAt(none) = %v; want %v", err, os.ErrNotExist)
	}
}

func TestClose(t *testing.T) {
	f, err := Open(write(t, "x"), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Errorf("Close() = %v; want nil", err)
		}
	}
	if _, err := f.Read(make([]byte, 4)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read after Close = %v; want %v", err, os.ErrClosed)
	}
	if _, err := f.OpenAt("x", 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("OpenAt after Close = %v; want %v", err, os.ErrClosed)
	}
	if err := (*FD)(nil).Close(); err != nil {
		t.Errorf("nil Close() = %v; want nil", err)
	}
	if err := (*FD)(nil).Write(nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("nil Write() = %v; want %v", err, os.ErrClosed)
	}
}

// The descriptor must stay open while it is in use: otherwise the kernel reuses its
// number for the next file that is opened.
func TestCloseWhileInUse(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fd, err := unix.Dup(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r.Close()

	f := New(fd)
	err = f.Use(func(fd int) error {
		if err := f.Close(); err != nil {
			t.Errorf("Close() in use = %v; want nil", err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			t.Errorf("descriptor in use after Close: %v; want it open", err)
		}
		return io.EOF
	})
	if err != io.EOF {
		t.Errorf("Use() = %v; want the error of its function", err)
	}
	// The last reference to the read end was closed.
	if _, err := w.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("write after the last use = %v; want %v", err, unix.EPIPE)
	}
}

func TestConcurrentClose(t *testing.T) {
	path := write(t, "4096\n")
	for range 200 {
		f, err := Open(path, unix.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				b, err := f.Read(make([]byte, 16))
				if err == nil && string(b) != "4096\n" || err != nil && !errors.Is(err, os.ErrClosed) {
					t.Errorf("Read concurrent with Close = %q, %v; want the content or %v", b, err, os.ErrClosed)
				}
			})
		}
		wg.Go(func() { f.Close() })
		wg.Wait()
	}
}
