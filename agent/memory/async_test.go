package memory

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// openAsync opens a reader that runs until the test ends.
func openAsync(t *testing.T, o Options) *AsyncReader {
	t.Helper()
	return runAsync(t, o, nil)
}

// runAsync is openAsync with a function for the start of the reader thread.
func runAsync(t *testing.T, o Options, onStart func()) *AsyncReader {
	t.Helper()
	a, err := OpenAsyncReader(o, onStart)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, a.Close()); err != nil {
			t.Errorf("Run() and Close() = %v; want no error", err)
		}
	})
	return a
}

// copiedNode is a node with kubepods, of which 3 of 4 MiB are free.
func copiedNode(t *testing.T) (Options, string) {
	t.Helper()
	root := kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1000\n", "memory/memory.stat": v1Stat(0, 0), "memory/cgroup.procs": "",
		"memory/kubepods/memory.usage_in_bytes": "1048576\n", "memory/kubepods/memory.limit_in_bytes": "4194304\n",
		"memory/kubepods/memory.stat": v1Stat(0, 0), "memory/kubepods/cgroup.procs": "",
	})
	h, err := cgroup.Find(kernel.FS(root))
	if err != nil {
		t.Fatal(err)
	}
	proc := kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": meminfoText}))
	return Options{Procfs: proc, Hierarchy: h}, filepath.Join(root, "memory/kubepods")
}

// The reader thread reads the same values as Memory.
func TestAsyncReading(t *testing.T) {
	o, _ := copiedNode(t)
	a, m := openAsync(t, o), openMemory(t, o)
	a.deadline = time.Minute // longer than any delay of a busy machine
	for i := range 100 {
		now := time.Unix(1000+int64(i), 0)
		var got, want signal.Observations
		node, wanted := a.Read(now, now, &got), m.Read(now, &want)
		if got != want || node != wanted {
			t.Fatalf("reading %d: Read() = %+v of %+v; want %+v of %+v", i, got, node, want, wanted)
		}
	}
}

// threadOf is a Pod that records the thread which reads it.
type threadOf struct{ tid int }

func (p *threadOf) Memory() (workingSet, anonymous int64, ok bool) {
	p.tid = unix.Gettid()
	return 0, 0, true
}

// The function that sets the priority runs on the thread that reads.
func TestReaderThreadSetsPriority(t *testing.T) {
	o, _ := copiedNode(t)
	var started int
	a := runAsync(t, o, func() { started = unix.Gettid() })
	var p threadOf
	if _, _, ok := a.ReadPod(&p, time.Minute); !ok || p.tid == 0 || p.tid != started || p.tid == unix.Gettid() {
		t.Errorf("ReadPod() = %t on thread %d, onStart on %d; want both on one that is not the caller's", ok, p.tid, started)
	}
}

// While a read of kubepods blocks, the node is still read. The first reading waits until
// the deadline, and later ones do not wait. When the read has ended, kubepods is read
// again.
func TestAsyncReadingDeadline(t *testing.T) {
	o, kubepods := copiedNode(t)
	// A FIFO in place of memory.stat blocks open and read until there is a writer.
	stat := filepath.Join(kubepods, "memory.stat")
	if err := errors.Join(unix.Unlink(stat), unix.Mkfifo(stat, 0o600)); err != nil {
		t.Fatal(err)
	}
	var starts atomic.Int32
	a := runAsync(t, o, func() {
		starts.Add(1)
		_, _ = process.SetFIFO(1) // not permitted everywhere
	})
	read := func(name string, want signal.Status) (took time.Duration) {
		t.Helper()
		var got signal.Observations
		now := time.Now()
		node := a.Read(now, now, &got)
		took = time.Since(now)
		if unread := want == signal.Unreadable; node.KubepodsKnown == unread || unread && node.KubepodsUsage != math.MaxInt64 {
			t.Errorf("%s: Read() = %+v; want KubepodsKnown %t, and otherwise an unknown usage", name, node, !unread)
		}
		if got[signal.MemoryAvailable].Status != signal.Observed || got[signal.AllocatableMemoryAvailable].Status != want {
			t.Errorf("%s: Read() = %+v; want the node observed, kubepods %v", name, got, want)
		}
		return took
	}
	if took := read("late", signal.Unreadable); took < ReadTimeout {
		t.Errorf("the first reading took %v; want at least %v", took, ReadTimeout)
	}
	// Without the privilege for real-time priority there is none to take away or to set again.
	wantStarts := int32(1)
	if tid := int(a.tid.Load()); tid != 0 {
		wantStarts++
		if attr, err := unix.SchedGetAttr(tid, 0); err != nil || attr.Policy != unix.SCHED_NORMAL {
			t.Errorf("scheduling of the reader thread after the deadline = %+v, %v; want the normal policy", attr, err)
		}
	}
	a.deadline = time.Hour
	read("still late", signal.Unreadable)

	// Opened for reading and writing, the FIFO does not block.
	w, err := unix.Open(stat, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(w)
	if err := unix.Unlink(stat); err != nil {
		t.Fatal(err)
	}
	kerneltest.Write(t, kubepods, map[string]string{"memory.stat": v1Stat(0, 0)})
	// The blocked read gets an error, as a FIFO can't be read at an offset.
	eventually(t, "the end of the blocked reading", func() bool { return a.completed.Load() == a.requested.Load() })
	a.memory.kubepodsChecked = time.Time{}
	if n := starts.Load(); n != 1 {
		t.Errorf("priority set %d times before the next reading; want once", n)
	}
	read("again", signal.Observed)
	if n := starts.Load(); n != wantStarts {
		t.Errorf("priority set %d times after the next reading; want %d", n, wantStarts)
	}
}

// podFunc is a Pod that calls a function.
type podFunc func() (workingSet, anonymous int64, ok bool)

func (p podFunc) Memory() (workingSet, anonymous int64, ok bool) { return p() }

// A pod is read within a deadline. While that read blocks, the usage of kubepods is still
// read, without its page cache.
func TestAsyncPodReading(t *testing.T) {
	o, kubepods := copiedNode(t)
	kerneltest.Write(t, kubepods, map[string]string{"memory.stat": v1Stat(0, 1<<18)})
	a := openAsync(t, o)
	a.deadline = time.Minute
	read := func(want Node, pods signal.Status) {
		t.Helper()
		var got signal.Observations
		node := a.Read(time.Now(), time.Now(), &got)
		node.Total, node.Hugetlb, node.Shmem, node.KernelUsage = 0, 0, 0, 0
		if node != want || got[signal.MemoryAvailable].Status != signal.Observed || got[signal.AllocatableMemoryAvailable].Status != pods {
			t.Errorf("Read() = %+v, %+v; want %+v, and the signal of kubepods %v", node, got, want, pods)
		}
	}
	read(Node{Kubepods: 3 << 18, KubepodsUsage: 1 << 20, KubepodsKnown: true}, signal.Observed)
	for _, ok := range []bool{true, false} {
		workingSet, anonymous, read := a.ReadPod(podFunc(func() (int64, int64, bool) { return 2, 1, ok }), time.Minute)
		if workingSet != 2 || anonymous != 1 || read != ok {
			t.Errorf("ReadPod() = %d, %d, %t; want 2, 1, %t", workingSet, anonymous, read, ok)
		}
	}
	release := make(chan struct{})
	if _, _, ok := a.ReadPod(podFunc(func() (int64, int64, bool) { <-release; return 0, 0, true }), time.Millisecond); ok {
		t.Error("ReadPod() at a pod that blocks = true; want false")
	}
	kerneltest.Write(t, kubepods, map[string]string{"memory.usage_in_bytes": "2097152\n"})
	read(Node{KubepodsUsage: 2 << 20}, signal.Unreadable)
	if _, _, ok := a.ReadPod(podFunc(func() (int64, int64, bool) { return 0, 0, true }), time.Minute); ok {
		t.Error("ReadPod() while another call is blocked = true; want false")
	}
	close(release)
	eventually(t, "the end of the blocked call", func() bool { return a.completed.Load() == a.requested.Load() })
	read(Node{Kubepods: 7 << 18, KubepodsUsage: 2 << 20, KubepodsKnown: true}, signal.Observed)
}
