package kube

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/kerneltest"
)

type buffer = kerneltest.Buffer

// evictdSide is a Server that runs until stop.
type evictdSide struct {
	*Server
	socket  string
	log     buffer
	changes atomic.Int32
	stop    func()
}

func serve(t *testing.T, socket string, facts *Facts, change ...func(*Server)) *evictdSide {
	t.Helper()
	e := &evictdSide{socket: socket}
	e.Server = &Server{
		UID: os.Getuid(), Software: "evictd test", Facts: facts, Log: slog.New(slog.NewTextHandler(&e.log, nil)),
		Changed: func() { e.changes.Add(1) },
	}
	for _, f := range change {
		f(e.Server)
	}
	e.start(t)
	return e
}

// start runs the Server.
func (e *evictdSide) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- e.Serve(ctx, l) }()
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	t.Cleanup(e.stop)
}

// run runs a Feed until the returned function is called.
func run(t *testing.T, f *Feed, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.Run(ctx, socket) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 20s", what)
		}
	}
}

func pods(n int) (list []*Pod) {
	for i := range n {
		p := web()
		p.UID, p.Name = fmt.Sprintf("u%d", i), fmt.Sprintf("web-%d", i)
		list = append(list, p)
	}
	return list
}

func runs(i int) *evict.Pod {
	r := running()
	r.UID, r.Name = fmt.Sprintf("u%d", i), fmt.Sprintf("web-%d", i)
	return r
}

// Facts arrive, change and go, over restarts of either side.
func TestSessions(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	var log buffer
	feed := NewFeed("n1", "test", slog.New(slog.NewTextHandler(&log, nil)))
	feed.Fail("API server away")
	stop := run(t, feed, socket) // evictd is not there yet
	until(t, "log of no session", func() bool { return strings.Contains(log.String(), "no session with evictd") })
	e := serve(t, socket, NewFacts())
	until(t, "state", func() bool { return e.Facts.Status(time.Now()).Error == "API server away" })
	if s := e.Facts.Status(time.Now()); !s.Connected || s.Watching || s.Node != "n1" || !s.AsOf.IsZero() {
		t.Errorf("status %+v; want a session with node n1 that does not watch", s)
	}
	const n = MaxPods / 2 // less than maxFactsSize
	feed.Replace(pods(n))
	feed.Confirm(time.Now())
	until(t, "all pods", func() bool {
		s := e.Facts.Status(time.Now())
		return s.Pods == n && s.Watching && !s.AsOf.IsZero()
	})
	e.Facts.Specification(runs(n))
	feed.Put(pods(n + 1)[n]) // of a pod that runs
	until(t, "call of Changed", func() bool { return e.changes.Load() > 0 })

	changed := pods(1)[0]
	changed.Containers[0].Resources.Requests.Memory = "3Gi"
	feed.Put(changed)
	feed.Remove("u1")
	feed.Remove(fmt.Sprintf("u%d", n))
	until(t, "change", func() bool {
		return e.Facts.Specification(runs(0)).Containers[0].Resources.Requests.Memory.String() == "3Gi" && e.Facts.Status(time.Now()).Pods == n // one is gone, and runs
	})

	// evictd restarts with what it had saved, and gets the list again.
	content := encoded(t, e.Facts)
	e.stop()
	feed.Remove("u2")
	feed.Replace(pods(3)[:2])
	restarted := NewFacts()
	if err := restarted.Restore(content, time.Now()); err != nil {
		t.Fatal(err)
	}
	if s := restarted.Status(time.Now()); s.Pods != n || s.AsOf.IsZero() || s.Connected {
		t.Errorf("status after a restart %+v; want the saved facts and their age", s)
	}
	e = serve(t, socket, restarted)
	until(t, "list again", func() bool {
		about, ok := e.Facts.Describe("u2")
		return ok && about.Gone && e.Facts.Specification(runs(1)) != nil
	})

	// evictd-kube restarts: the facts stay.
	stop()
	until(t, "end of the session", func() bool { return !e.Facts.Status(time.Now()).Connected })
	if s := e.Facts.Status(time.Now()); s.Error != "evictd-kube has disconnected" || e.Facts.Specification(runs(0)) == nil {
		t.Errorf("status without evictd-kube %+v; want facts", s)
	}
	feed = NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	feed.Replace(pods(1))
	run(t, feed, socket)
	until(t, "new session", func() bool {
		about, _ := e.Facts.Describe("u1")
		return e.Facts.Status(time.Now()).Connected && about.Gone
	})
}

// raw connects as an evictd-kube that sends what it wants.
func raw(t *testing.T, socket string, lines ...string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	for _, line := range lines {
		if _, err := conn.Write([]byte(line)); err != nil {
			break // evictd has closed the connection
		}
	}
	return conn, bufio.NewReader(conn)
}

const hello = `{"hello":{"version":4,"software":"raw","node":"n1"}}` + "\n"

// Hostile lines end their session, each with a reason, and nothing else.
func TestHostileLines(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e := serve(t, socket, NewFacts())
	first, err := encodePod(pods(1)[0])
	if err != nil {
		t.Fatal(err)
	}
	const list = "\n" + `{"list":{"id":1}}` + "\n" + `{"listed":{"id":1}}` // evictd answers it
	long := string(first[:len(first)-2]) + strings.Repeat(" ", maxPodSize) + "}" + list
	for _, line := range append(hostile, long, `{"accepted":{"pods":1}}`, `{"resend":{}}`, `{"want":{"uids":["u1"]}}`, `{"hello":{"version":4,"software":""}}`, `{"listed":{"id":7}}`, strings.Repeat("x", 3*maxLine)) {
		conn, r := raw(t, socket, hello, string(first), line+"\n")
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatalf("%.60q: no hello: %v", line, err)
		}
		if _, err := r.ReadString('\n'); err == nil {
			t.Errorf("%.60q: answered; want the connection closed", line)
		}
		until(t, "end of the session", func() bool { return !e.Facts.Status(time.Now()).Connected })
		if s := e.Facts.Status(time.Now()); s.Pods != 1 || s.Error == "" {
			t.Errorf("%.60q: status %+v; want the facts kept, and a reason", line, s)
		}
		conn.Close()
	}
}

// A peer of another version gets evictd's hello, and nothing that it sends after its own counts:
// the facts stay, here in spite of an empty list.
func TestAnotherVersion(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e := serve(t, socket, NewFacts())
	first, err := encodePod(pods(1)[0])
	if err != nil {
		t.Fatal(err)
	}
	before, _ := raw(t, socket, hello, string(first))
	until(t, "facts", func() bool { return e.Facts.Status(time.Now()).Pods == 1 })
	before.Close()

	_, r := raw(t, socket, `{"hello":{"version":5,"software":"v9.0","mood":"new"}}`+"\n"+`{"list":{"id":1}}`+"\n"+`{"listed":{"id":1}}`+"\n")
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, `"version":4`) {
		t.Errorf("answer %q, %v; want evictd's hello", line, err)
	}
	if _, err := r.ReadString('\n'); err == nil {
		t.Error("the session goes on")
	}
	until(t, "reason", func() bool {
		return strings.Contains(e.Facts.Status(time.Now()).Error, "peer (v9.0) has version 5 of the protocol, this is version 4")
	})
	if about, ok := e.Facts.Describe("u0"); !ok || about.Gone {
		t.Errorf("facts after the session %+v, %t; want them kept", about, ok)
	}

	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "later.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			fmt.Fprintf(conn, "%s\n", `{"hello":{"version":5,"software":"v9.0"}}`)
		}
	}()
	var log buffer
	run(t, NewFeed("n1", "test", slog.New(slog.NewTextHandler(&log, nil))), l.Addr().String())
	until(t, "log", func() bool { return strings.Contains(log.String(), "has version 5 of the protocol") })
}

// A peer of another user is refused before a byte of it is read.
func TestOtherUser(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	facts := NewFacts()
	e := serve(t, socket, facts)
	e.stop()
	e.UID = os.Getuid() + 1
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Serve(ctx, l) }()
	_, r := raw(t, socket, hello)
	if line, err := r.ReadString('\n'); err == nil {
		t.Errorf("answer %q; want none", line)
	}
	want := fmt.Sprintf("process %d has user ID %d; kube.uid in the configuration is %d", os.Getpid(), os.Getuid(), e.UID)
	until(t, "reason", func() bool { return facts.Status(time.Now()).Error == want })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A new connection ends the session before, so that a restarted evictd-kube need not
// wait for it to time out. Garbage before the hello does not end a session's facts.
func TestNewConnectionReplaces(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kube.sock")
	e := serve(t, socket, NewFacts())
	_, old := raw(t, socket, hello)
	if _, err := old.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	next, r := raw(t, socket, strings.Replace(hello, "n1", "n2", 1), `{"list":{"id":3}}`+"\n", `{"listed":{"id":3}}`+"\n")
	if _, err := old.ReadString('\n'); err == nil {
		t.Error("the old session goes on")
	}
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); err != nil || line != `{"accepted":{"pods":0}}`+"\n" {
		t.Errorf("answer to the list %q, %v", line, err)
	}
	if s := e.Facts.Status(time.Now()); !s.Connected || s.Node != "n2" {
		t.Errorf("status %+v; want the session of n2", s)
	}
	next.Close()
	until(t, "end", func() bool { return !e.Facts.Status(time.Now()).Connected })
}
