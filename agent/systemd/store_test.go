package systemd

import (
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestStoreAndRemoveFD(t *testing.T) {
	conn := manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	if err := n.StoreFD("lock", ends[1]); err != nil {
		t.Fatal(err)
	}
	unix.Close(ends[1])
	text, fds := receiveFDs(t, conn)
	if want := "FDSTORE=1\nFDNAME=lock\nFDPOLL=0"; text != want || len(fds) != 1 {
		t.Fatalf("StoreFD sends %q with %d descriptors; want %q with 1", text, len(fds), want)
	}
	// While the manager has the write end of the pipe, the read end has no hang-up.
	if hungUp(t, ends[0]) {
		t.Error("the read end has a hang-up while the write end is stored")
	}
	unix.Close(fds[0])
	if !hungUp(t, ends[0]) {
		t.Error("the read end has no hang-up after the stored write end was closed")
	}
	if err := n.RemoveFD("lock"); err != nil {
		t.Fatal(err)
	}
	if text, fds := receiveFDs(t, conn); text != "FDSTOREREMOVE=1\nFDNAME=lock" || len(fds) != 0 {
		t.Errorf("RemoveFD sends %q with %d descriptors; want the name and no descriptor", text, len(fds))
	}
}

// receiveFDs returns the next message and its descriptors.
func receiveFDs(t *testing.T, conn *net.UnixConn) (text string, fds []int) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b, oob := make([]byte, 4096), make([]byte, 4096)
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		passed, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, passed...)
	}
	return string(b[:n]), fds
}

func hungUp(t *testing.T, fd int) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil {
		t.Fatal(err)
	}
	return fds[0].Revents&unix.POLLHUP != 0
}

func TestStoreFDWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.StoreFD("lock", -1); err != nil {
		t.Errorf("StoreFD() without a service manager = %v; want nil", err)
	}
	if err := n.RemoveFD("lock"); err != nil {
		t.Errorf("RemoveFD() without a service manager = %v; want nil", err)
	}
}

// TestStoreNeverBlocks checks that a message to a manager that does not read is an
// error.
func TestStoreNeverBlocks(t *testing.T) {
	manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		if err = n.RemoveFD("lock"); err != nil {
			return
		}
	}
	t.Error("10000 unread messages were sent; want an error")
}

func TestStoredFD(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		name, pid, count, names string
		want                    int
	}{
		{"nothing is passed", "", "", "", -1},
		{"to another process", "1", "1", "lock", -1},
		{"under another name", own, "1", "socket", -1},
		{"more names than descriptors", own, "1", "socket:lock", -1},
		{"nonsense", own, "many", "lock", -1},
		{"empty names", own, "2", "", -1},
		// The descriptor is not used, except to set its close-on-exec flag.
		{"the second", own, "2", "socket:lock", firstPassedFD + 1},
	} {
		t.Setenv("LISTEN_PID", tt.pid)
		t.Setenv("LISTEN_FDS", tt.count)
		t.Setenv("LISTEN_FDNAMES", tt.names)
		if got := StoredFD("lock"); got != tt.want {
			t.Errorf("%s: StoredFD() = %d; want %d", tt.name, got, tt.want)
		}
	}
}

// A NamedFD stores its descriptor under its name.
func TestNamedFD(t *testing.T) {
	conn := manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	f := NamedFD{Notifier: n, Name: "lock"}
	if fd := f.Stored(); fd != nil {
		t.Errorf("Stored() = %d without one", *fd)
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	var b [100]byte
	size, err := conn.Read(b[:])
	if want := "FDSTOREREMOVE=1\nFDNAME=lock"; err != nil || string(b[:size]) != want {
		t.Errorf("Remove sends %q, %v; want %q", b[:size], err, want)
	}
}
