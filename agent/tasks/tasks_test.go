package tasks

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// node is a copy of the files that are read.
type node struct {
	t    *testing.T
	root string
}

func newNode(t *testing.T, tasks int) *node {
	n := &node{t, kerneltest.Tree(t, map[string]string{"sys/kernel/pid_max": "32768\n", "sys/kernel/threads-max": "192730\n"})}
	n.run(tasks)
	return n
}

// run replaces loadavg as a whole, because the kernel's file is never half written.
func (n *node) run(tasks int) {
	n.t.Helper()
	kerneltest.Write(n.t, n.root, map[string]string{"next": fmt.Sprintf("0.00 0.00 0.00 1/%d 4711\n", tasks)})
	if err := os.Rename(filepath.Join(n.root, "next"), filepath.Join(n.root, "loadavg")); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) pods(current int, limit string) {
	n.t.Helper()
	kerneltest.Write(n.t, n.root, map[string]string{"pids/kubepods/pids.current": fmt.Sprintln(current), "pids/kubepods/pids.max": limit + "\n"})
}

func (n *node) watch() *Watch {
	n.t.Helper()
	w, err := New(Options{Procfs: kernel.FS(n.root), Pods: func() (kernel.FS, string, bool) {
		return kernel.FS(filepath.Join(n.root, "pids")), "/kubepods", true
	}})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { w.Close() })
	return w
}

func policy(t *testing.T, threshold string) *evict.Policy {
	t.Helper()
	dir := kerneltest.Tree(t, map[string]string{"c.yaml": "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nevictionHard: {pid.available: " + threshold + "}\n"})
	c, err := config.Load(config.Options{Path: filepath.Join(dir, "c.yaml"), PathGiven: true})
	if err != nil {
		t.Fatal(err)
	}
	return c.Policy(evict.SingleFs)
}

func TestObserve(t *testing.T) {
	n := newNode(t, 768)
	w := n.watch()
	check := func(what string, available, capacity int64) {
		t.Helper()
		if o, _ := w.observe(time.Now()); o.Status != signal.Observed || o.Available != available || o.Capacity != capacity {
			t.Errorf("%s: %+v; want %d of %d", what, o, available, capacity)
		}
	}
	check("no cgroup of all pods", 32000, 32768)
	n.pods(100, "max")
	check("no limit for all pods", 32000, 32768)
	n.pods(100, "10000")
	check("fewer tasks available to the pods", 9900, 10000)
	n.pods(100, "40000")
	check("fewer tasks available to the node", 32000, 32768)
	n.pods(120, "100")
	check("above the limit", -20, 100)
	n.pods(0, "many")
	if o, _ := w.observe(time.Now()); o.Status != signal.Unreadable {
		t.Errorf("a malformed limit: %+v; want it unreadable", o)
	}
	kerneltest.Write(t, n.root, map[string]string{"loadavg": "x"})
	if o, _ := w.observe(time.Now()); o.Status != signal.Unreadable || !strings.Contains(o.Err.Error(), "loadavg") {
		t.Errorf("a malformed loadavg: %+v; want it unreadable", o)
	}
}

// fakeCounter is a counter that the test sets. With silent, it raises no alarm.
type fakeCounter struct {
	fd int

	mu     sync.Mutex
	count  int64
	limit  int64
	armed  bool
	silent bool
	alarms uint64
}

func newCounter(t *testing.T) *fakeCounter {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &fakeCounter{fd: fd}
}

func (c *fakeCounter) FD() int { return c.fd }

func (c *fakeCounter) Count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *fakeCounter) Alarms() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.alarms
}

func (c *fakeCounter) Arm(limit int64) {
	c.Disarm()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.armed = limit, true
}

func (c *fakeCounter) Disarm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	_, _ = unix.Read(c.fd, make([]byte, 8))
}

// forks adds tasks.
func (c *fakeCounter) forks(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += n
	if c.armed && c.count >= c.limit && !c.silent {
		c.armed = false
		c.alarms++
		_, _ = unix.Write(c.fd, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

func (c *fakeCounter) isArmed() (limit int64, armed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit, c.armed
}

// With a counter the watch sleeps until the fork that crosses a threshold, of the node or of
// all pods, whichever comes first.
func TestCounter(t *testing.T) {
	n := newNode(t, 1000) // 31768 available of 32768
	n.pods(100, "20000")  // 19900 available
	w := n.watch()
	c := newCounter(t)
	w.SetPolicy(policy(t, "50%"))
	if err := w.SetCounter(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	armed := func(want int64) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			limit, ok := c.isArmed()
			if ok && limit == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("armed %v at %d; want it at %d", ok, limit, want)
			}
		}
	}
	<-w.Crossed() // the first reading
	armed(9901)   // the pods' 19900 - 10000; for the node it would be 31768 - 16384
	n.run(1000 + 9901)
	c.forks(9901) // raises an alarm, but the tasks are not the pods': the node has 21867 available, 5483 above its half
	armed(9901 + 5484)
	select {
	case <-w.Crossed():
		t.Fatal("crossing reported; want none yet")
	default:
	}
	n.run(1000 + 9901 + 5484)
	c.forks(5484)
	select {
	case <-w.Crossed():
	case <-time.After(20 * time.Second):
		t.Fatal("crossing not reported after 20s")
	}
	if w.Missed() {
		t.Error("Missed() = true; want false")
	}
	// Tasks that exit lower the count only later. The lead of the counter must not delay the alarm.
	n.run(1000)
	<-w.Crossed()
	armed(9901)
	c.forks(-9901 - 5484)
	armed(9901)
	// A poll finds out that a counter counts but raises no alarm.
	c.silent = true
	c.forks(9901 + maxForksInFlight + 1)
	for deadline := time.Now().Add(20 * time.Second); !w.Missed(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("Missed() = false after 20s; want true")
		}
	}
	if err := w.SetCounter(nil); err != nil || w.Missed() {
		t.Errorf("SetCounter(nil) = %v, Missed() = %v; want neither", err, w.Missed())
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if err := w.SetCounter(nil); err != nil {
		t.Errorf("SetCounter(nil) after the end of Run = %v; want nil", err)
	}
}

// A crossing by a fork bomb is reported at once, and so is its end.
func TestCrossing(t *testing.T) {
	n := newNode(t, 100)
	w := n.watch()
	w.SetPolicy(policy(t, "5000"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	crossed := func(what string) {
		t.Helper()
		select {
		case <-w.Crossed():
		case <-time.After(20 * time.Second):
			t.Fatalf("%s not reported after 20s", what)
		}
	}
	crossed("the first reading")
	for tasks := 100; tasks < 32000 && len(w.Crossed()) == 0; tasks += 100 {
		n.run(tasks)
		time.Sleep(2 * time.Millisecond) // at most 50,000 per second
	}
	crossed("the crossing")
	var o signal.Observations
	w.Read(time.Now(), &o)
	if got := o[signal.PIDAvailable]; !got.Below(5000) {
		t.Errorf("reported at %+v; want less than 5000", got)
	}
	n.run(100)
	crossed("the end of the crossing")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if w.Read(time.Now().Add(2*staleAfter), &o); o[signal.PIDAvailable].Status != signal.Unreadable {
		t.Errorf("ten seconds without a reading: %+v; want it unreadable", o[signal.PIDAvailable])
	}
	w.SetPolicy(policy(t, "5000")) // after the end of Run
}
