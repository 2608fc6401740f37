package systemd

import (
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestKeepAndForget(t *testing.T) {
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
	if err := n.Keep("lock", ends[1]); err != nil {
		t.Fatal(err)
	}
	unix.Close(ends[1])
	text, fds := receiveWith(t, conn)
	if want := "FDSTORE=1\nFDNAME=lock\nFDPOLL=0"; text != want || len(fds) != 1 {
		t.Fatalf("Keep sends %q with %d descriptors; want %q with 1", text, len(fds), want)
	}
	// It is the pipe: while the manager has it, there is no end of file.
	if hungUp(t, ends[0]) {
		t.Error("the other end of what is kept has hung up")
	}
	unix.Close(fds[0])
	if !hungUp(t, ends[0]) {
		t.Error("the other end of what was kept, and closed, has not hung up")
	}
	if err := n.Forget("lock"); err != nil {
		t.Fatal(err)
	}
	if text, fds := receiveWith(t, conn); text != "FDSTOREREMOVE=1\nFDNAME=lock" || len(fds) != 0 {
		t.Errorf("Forget sends %q with %d descriptors; want the name, and none", text, len(fds))
	}
}

func receiveWith(t *testing.T, conn *net.UnixConn) (text string, fds []int) {
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

func TestKeepWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Keep("lock", -1); err != nil {
		t.Errorf("Keep() without a service manager = %v; want nil", err)
	}
	if err := n.Forget("lock"); err != nil {
		t.Errorf("Forget() without a service manager = %v; want nil", err)
	}
}

// A manager that does not read is not waited for.
func TestKeepNeverWaits(t *testing.T) {
	manager(t)
	n, err := NewNotifier()
	if err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		if err = n.Forget("lock"); err != nil {
			return
		}
	}
	t.Error("10000 messages that nobody reads were taken; want an error")
}

func TestKept(t *testing.T) {
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
		// The number is all that is looked at where there is one: what it names in
		// this process is not touched but for its close-on-exec flag.
		{"the second", own, "2", "socket:lock", firstPassed + 1},
	} {
		t.Setenv("LISTEN_PID", tt.pid)
		t.Setenv("LISTEN_FDS", tt.count)
		t.Setenv("LISTEN_FDNAMES", tt.names)
		if got := Kept("lock"); got != tt.want {
			t.Errorf("%s: Kept() = %d; want %d", tt.name, got, tt.want)
		}
	}
}
