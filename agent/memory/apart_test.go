package memory

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// openApart runs one until the test ends.
func openApart(t *testing.T, o Options) *Apart {
	t.Helper()
	a, err := OpenApart(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, a.Close()); err != nil {
			t.Errorf("reading apart ends with %v; want no error", err)
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

// What is read apart is what Memory reads.
func TestApart(t *testing.T) {
	o, _ := copiedNode(t)
	a, m := openApart(t, o), openMemory(t, o)
	a.limit = time.Minute // the machine may be busy
	for i := range 100 {
		now := time.Unix(1000+int64(i), 0)
		var got, want signal.Observations
		node, wanted := a.Read(now, now, &got), m.Read(now, &want)
		if got != want || node != wanted {
			t.Fatalf("reading %d: Read() = %+v of %+v; want %+v of %+v", i, got, node, want, wanted)
		}
	}
}

// While the kernel keeps the reading of the pods waiting, the node is read all the
// same, nobody waits for longer than the limit, and only the first does; later
// the pods are read again.
func TestApartLate(t *testing.T) {
	o, kubepods := copiedNode(t)
	// A pipe in the place of memory.stat: who opens or reads it waits for a writer.
	stat := filepath.Join(kubepods, "memory.stat")
	if err := errors.Join(unix.Unlink(stat), unix.Mkfifo(stat, 0o600)); err != nil {
		t.Fatal(err)
	}
	a := openApart(t, o)
	read := func(name string, want signal.Status) (took time.Duration) {
		t.Helper()
		var got signal.Observations
		now := time.Now()
		node := a.Read(now, now, &got)
		took = time.Since(now)
		if late := want == signal.Unreadable; node.KubepodsKnown == late || late && node.KubepodsUsage != math.MaxInt64 {
			t.Errorf("%s: Read() = %+v; want the pods' usage to be known %t, and anything else to be possible", name, node, !late)
		}
		if got[signal.MemoryAvailable].Status != signal.Observed || got[signal.AllocatableMemoryAvailable].Status != want {
			t.Errorf("%s: Read() = %+v; want the node observed, the pods %v", name, got, want)
		}
		return took
	}
	if took := read("late", signal.Unreadable); took < apartLimit {
		t.Errorf("the first reading was waited for for %v; want %v", took, apartLimit)
	}
	a.limit = time.Hour
	read("still late", signal.Unreadable)

	// Open for both, it waits for no other.
	w, err := unix.Open(stat, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(w)
	if err := unix.Unlink(stat); err != nil {
		t.Fatal(err)
	}
	kerneltest.Write(t, kubepods, map[string]string{"memory.stat": v1Stat(0, 0)})
	// The reader that hangs gets an error, as a pipe can't be read at an offset.
	eventually(t, "the end of the reading that hangs", func() bool { return a.done.Load() == a.asked.Load() })
	a.memory.looked = time.Time{}
	read("again", signal.Observed)
}

// aPod is a Pod that reads what the test says.
type aPod func() (workingSet, anonymous int64, ok bool)

func (p aPod) Memory() (workingSet, anonymous int64, ok bool) { return p() }

// A pod is looked at as long as that takes no longer than it may. While it keeps the
// reader waiting, what all pods use is read all the same, but for their page cache.
func TestApartLook(t *testing.T) {
	o, kubepods := copiedNode(t)
	kerneltest.Write(t, kubepods, map[string]string{"memory.stat": v1Stat(0, 1<<18)})
	a := openApart(t, o)
	a.limit = time.Minute
	read := func(want Node, pods signal.Status) {
		t.Helper()
		var got signal.Observations
		node := a.Read(time.Now(), time.Now(), &got)
		node.Total, node.Hugetlb, node.Shmem, node.Unaccounted = 0, 0, 0, 0
		if node != want || got[signal.MemoryAvailable].Status != signal.Observed || got[signal.AllocatableMemoryAvailable].Status != pods {
			t.Errorf("Read() = %+v, %+v; want %+v, and the pods' signal %v", node, got, want, pods)
		}
	}
	read(Node{Kubepods: 3 << 18, KubepodsUsage: 1 << 20, KubepodsKnown: true}, signal.Observed)
	for _, ok := range []bool{true, false} {
		workingSet, anonymous, read := a.Look(aPod(func() (int64, int64, bool) { return 2, 1, ok }), time.Minute)
		if workingSet != 2 || anonymous != 1 || read != ok {
			t.Errorf("Look() = %d, %d, %t; want 2, 1, %t", workingSet, anonymous, read, ok)
		}
	}
	held := make(chan struct{})
	if _, _, ok := a.Look(aPod(func() (int64, int64, bool) { <-held; return 0, 0, true }), time.Millisecond); ok {
		t.Error("Look() at a pod that can't be read yet = true; want false")
	}
	kerneltest.Write(t, kubepods, map[string]string{"memory.usage_in_bytes": "2097152\n"})
	read(Node{KubepodsUsage: 2 << 20}, signal.Unreadable)
	if _, _, ok := a.Look(aPod(func() (int64, int64, bool) { return 0, 0, true }), time.Minute); ok {
		t.Error("Look() while another is hanging = true; want false")
	}
	close(held)
	eventually(t, "the end of the look that hangs", func() bool { return a.done.Load() == a.asked.Load() })
	read(Node{Kubepods: 7 << 18, KubepodsUsage: 2 << 20, KubepodsKnown: true}, signal.Observed)
}
