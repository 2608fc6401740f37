package kdump

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/bmc"
)

// testListener is a listener for datagrams of this machine, which is node a.
type testListener struct {
	*Listener
	port  int
	began chan string

	mu    sync.Mutex
	count map[Result]int
}

func (l *testListener) counted(r Result) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[r]
}

// await waits until a condition is true.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// listen starts a listener at a free port of both families.
func listen(t *testing.T) *testListener {
	t.Helper()
	free, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.LocalAddr().(*net.UDPAddr).Port
	free.Close()
	l := listener(t, port)
	await(t, "listens", func() bool { return !l.Since().IsZero() })
	return l
}

func listener(t *testing.T, port int) *testListener {
	l := &testListener{port: port, began: make(chan string, 10), count: map[Result]int{}}
	l.Listener = &Listener{
		Address: ":" + strconv.Itoa(port), Log: slog.New(slog.DiscardHandler),
		Nodes: func() map[netip.Addr]string {
			return map[netip.Addr]string{netip.MustParseAddr("127.0.0.1"): "a", netip.MustParseAddr("::1"): "b"}
		},
		Began: func(node string) { l.began <- node },
		Count: func(r Result) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.count[r]++
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("Run has not ended after its context")
		}
		if !l.Since().IsZero() {
			t.Error("Since is set after the end of Run")
		}
	})
	return l
}

func (l *testListener) dial(t *testing.T, host string) net.Conn {
	t.Helper()
	conn, err := net.Dial("udp", net.JoinHostPort(host, strconv.Itoa(l.port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, datagram []byte) {
	t.Helper()
	if _, err := conn.Write(datagram); err != nil {
		t.Fatal(err)
	}
}

func TestListener(t *testing.T) {
	before := time.Now()
	l := listen(t)
	if since := l.Since(); !l.Tried() || since.Before(before) || since.After(time.Now()) {
		t.Errorf("Since = %v, Tried = %v", since, l.Tried())
	}
	conn := l.dial(t, "127.0.0.1")
	for _, datagram := range [][]byte{fromX86[:7], append(fromX86[:8:8], 1), make([]byte, 60_000), {}, fromX86, fromX86} {
		send(t, conn, datagram)
	}
	await(t, "6 datagrams", func() bool { return l.counted(Accepted) == 2 && l.counted(Malformed) == 4 })
	if s := l.Session("a"); s.Datagrams != 2 || s.First.Before(before) || s.Last.Before(s.First) {
		t.Errorf("session %v; want one of 2 datagrams", s)
	}
	if node := <-l.began; node != "a" || len(l.began) > 0 {
		t.Errorf("began: %s and %d more; want a once", node, len(l.began))
	}
	stranger, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}, conn.RemoteAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	send(t, stranger, fromX86)
	await(t, "a datagram of an unknown sender", func() bool { return l.counted(UnknownSender) == 1 })
	if six, err := net.Dial("udp", net.JoinHostPort("::1", strconv.Itoa(l.port))); err == nil {
		defer six.Close()
		send(t, six, fromX86)
		await(t, "a datagram over IPv6", func() bool { return l.Session("b").Datagrams == 1 })
	}
}

// The listener waits for its port, and says that it does not listen.
func TestPortInUse(t *testing.T) {
	other, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	l := listener(t, other.LocalAddr().(*net.UDPAddr).Port)
	await(t, "tried", l.Tried)
	if !l.Since().IsZero() {
		t.Error("Since is set while another program has the port")
	}
	other.Close()
	await(t, "listens", func() bool { return !l.Since().IsZero() })
}

// A flood costs neither memory nor goroutines, and the session goes on.
func TestListenerFlooded(t *testing.T) {
	l := listen(t)
	conn := l.dial(t, "127.0.0.1")
	send(t, conn, fromX86)
	<-l.began
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	garbage := make([]byte, 1400)
	for i := range 50_000 {
		// The kernel drops what does not fit into the socket's buffer.
		conn.Write(fromX86)
		conn.Write(garbage[:i%len(garbage)])
	}
	await(t, "read the flood", func() bool { return l.counted(Dropped) > 0 && l.counted(Malformed) > 0 })
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines; %d before the flood", n, goroutines)
	}
	accepted := l.counted(Accepted)
	await(t, "a datagram after the flood", func() bool { conn.Write(fromX86); return l.counted(Accepted) > accepted })
	if len(l.began) > 0 || l.Since().IsZero() {
		t.Errorf("%d sessions began, since %v; want none, and no gap", len(l.began), l.Since())
	}
}

// What comes in a second above the bound waits in the kernel.
func TestReads(t *testing.T) {
	var r reads
	for i := range 3 * maxReads {
		now := start.Add(time.Duration(i/maxReads)*time.Second + time.Duration(i%maxReads)*50*time.Microsecond)
		want := time.Duration(0)
		if i%maxReads == maxReads-1 {
			want = time.Second - (maxReads-1)*50*time.Microsecond
		}
		if pause := r.next(now); pause != want {
			t.Fatalf("datagram %d: pause %v; want %v", i, pause, want)
		}
	}
	if pause := r.next(start); pause != 0 || r.n != 1 {
		t.Errorf("the clock was set back: pause %v, %d reads; want 0, 1", pause, r.n)
	}
}

// TestFenceKdumpSend receives what the program of fence-agents sends.
func TestFenceKdumpSend(t *testing.T) {
	program, err := bmc.Program("fence_kdump_send")
	if errors.Is(err, bmc.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	args := []string{"-p", strconv.Itoa(l.port), "-i", "1", "-c", "2", "-f", "ipv4", "127.0.0.1"}
	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", program, err, out)
	}
	await(t, "2 datagrams", func() bool { return l.Session("a").Datagrams == 2 })
	if n := l.counted(Accepted); n != 2 {
		t.Errorf("%d datagrams accepted; want 2", n)
	}
}
