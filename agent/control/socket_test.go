package control

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestListen(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, "sub", "evictd.sock")
	old := syscall.Umask(0) // the mode must not depend on it
	l, err := Listen(path)
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode(), fs.ModeSocket|0o600; got != want {
		t.Errorf("mode of the socket = %v; want %v", got, want)
	}
	_, err = Listen(path)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "process ") {
		t.Errorf("Listen(in use) = %v; want %v and the process", err, ErrInUse)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("after a second Listen: Stat(socket) = %v; want the first socket unchanged", err)
	} else {
		conn.Close()
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: Stat(socket) = %v; want the socket removed", err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(socketDir(t), "evictd.sock")
	makeStaleSocket(t, path)
	l, err := Listen(path)
	if err != nil {
		t.Fatalf("Listen(left-over socket) = %v; want it replaced", err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	conn.Close()
}

// makeStaleSocket makes a socket without a listener, as a killed daemon leaves it.
func makeStaleSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

// TestListenInLockedDirectory locks the socket's directory, which every user may
// do that can open it. That must not prevent evictd from starting.
func TestListenInLockedDirectory(t *testing.T) {
	dir := socketDir(t)
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "evictd.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatalf("Listen() in a locked directory = %v; want a listener", err)
	}
	defer l.Close()
	info, err := os.Lstat(path + lockSuffix)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("lock file: mode %v, %v; want 0600", info, err)
	}
}

// TestListenConcurrently checks that exactly one of several concurrent calls gets
// the socket.
func TestListenConcurrently(t *testing.T) {
	path := filepath.Join(socketDir(t), "evictd.sock")
	makeStaleSocket(t, path)
	const many = 16
	results := make(chan error, many)
	for range many {
		go func() {
			l, err := Listen(path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			results <- err
		}()
	}
	won := 0
	for range many {
		err := <-results
		if err == nil {
			won++
		} else if !errors.Is(err, ErrInUse) {
			t.Errorf("Listen() = %v; want a listener or %v", err, ErrInUse)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d got the socket; want 1", won, many)
	}
}

func TestListenRefuses(t *testing.T) {
	dir := socketDir(t)
	target := filepath.Join(dir, "target")
	makeStaleSocket(t, target)
	write := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	// A lock file lies next to its socket, so the path must be below dir.
	directory := filepath.Join(dir, "directory")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	// lockedBy returns the path of a socket whose lock file make has created.
	lockedBy := func(name string, make func(at string) error) string {
		path := filepath.Join(dir, name)
		if err := make(path + lockSuffix); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tests := []struct{ name, path, want string }{
		{"symlink to a socket", link, "is a symbolic link"},
		{"dangling symlink", dangling, "is a symbolic link"},
		{"file", write("file"), "exists and is not a socket"},
		{"directory", directory, "exists and is not a socket"},
		{"below a file", filepath.Join(write("parent"), "evictd.sock"), "not a directory"},
		{"lock file is a symlink", lockedBy("linked", func(at string) error { return os.Symlink(target, at) }), "is a symbolic link"},
		{"lock file is a pipe", lockedBy("piped", func(at string) error { return syscall.Mkfifo(at, 0o600) }), "is not a regular file"},
		{"lock file of mode 0644", lockedBy("open", func(at string) error { return os.WriteFile(at, nil, 0o644) }), "other users can lock it"},
		{"too long", filepath.Join(dir, strings.Repeat("x", 120)), "longer than 107 bytes"},
	}
	if os.Geteuid() == 0 { // only root may change the owner of a file
		foreign := filepath.Join(dir, "foreign")
		makeStaleSocket(t, foreign)
		if err := os.Lchown(foreign, 65534, -1); err != nil {
			t.Fatal(err)
		}
		locked := lockedBy("foreign-lock", func(at string) error {
			return errors.Join(os.WriteFile(at, nil, 0o600), os.Chown(at, 65534, -1))
		})
		tests = append(tests, []struct{ name, path, want string }{
			{"another user's socket", foreign, "belongs to user 65534"},
			{"another user's lock file", locked, "belongs to user 65534"},
		}...)
	}
	for _, tt := range tests {
		l, err := Listen(tt.path)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Listen(%s) = %v; want %q", tt.name, err, tt.want)
		}
	}
	for _, path := range []string{target, link, dangling, filepath.Join(dir, "file")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("after Listen: %v; want the file unchanged", err)
		}
	}
}
