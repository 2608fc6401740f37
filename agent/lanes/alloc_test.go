//go:build !race

package lanes

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// Under the race detector what the kernel fills moves to the heap.

// TestRecordsAllocate: what comes from the kernel becomes an alarm without
// feeding the collector.
func TestRecordsAllocate(t *testing.T) {
	s, th, _ := openHere(t, BPF, nil)
	covered(t, s)
	th.mu.Lock() // the thread stands aside
	defer th.mu.Unlock()
	source := heeded{s.ring, s}
	up, ok := uptime()
	if !ok {
		t.Fatal("no uptime")
	}
	sent := bpf.Crossing{Key: uint64(pods), Source: bpf.SourcePods, LastAbove: up - 2*time.Millisecond, Seen: up - time.Millisecond, Sent: up}
	now := time.Now()
	if err := s.sampler.sampler.Inject(sent); err != nil {
		t.Fatal(err)
	}
	r, raised := source.Ready(now)
	if ago := now.Sub(r.Seen); !raised || r.Lane != BPF || r.Mark != pods || ago < time.Millisecond-100*time.Microsecond || ago > 20*time.Millisecond ||
		r.Seen.Sub(r.LastAbove) != time.Millisecond {
		t.Fatalf("Ready() = %+v, %t; want the crossing of a millisecond ago", r, raised)
	}
	const runs = 50
	for range runs + 1 {
		if err := s.sampler.sampler.Inject(sent); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(runs, func() {
		if _, raised := source.Ready(time.Now()); !raised {
			t.Error("Ready() raised nothing")
		}
	}); n != 0 {
		t.Errorf("Ready() allocates %v times; want 0", n)
	}
}

// TestQuick: the sampler's reading is the files', allocates nothing, and gives way
// to them when the lane is closed.
func TestQuick(t *testing.T) {
	s, _, _ := openHere(t, BPF, nil)
	covered(t, s)
	files := openMemory(t, s.o.MemoryOptions)
	q := s.o.Quick
	q.Files = openApart(t, s.o.MemoryOptions)
	var quick, slow signal.Observations
	eventually(t, "a reading of the sampler's", func() bool {
		before, _ := q.Counts()
		q.Read(time.Now(), time.Now(), &quick)
		after, _ := q.Counts()
		return after > before
	})
	files.Read(time.Now(), &slow)
	for _, m := range []signal.Signal{signal.MemoryAvailable, signal.AllocatableMemoryAvailable} {
		a, b := quick[m], slow[m]
		if off := a.Available - b.Available; a.Status != b.Status || a.Capacity != b.Capacity || max(off, -off) > 64<<20 {
			t.Errorf("%v: the sampler's %+v, the files' %+v; want them alike", m, a, b)
		}
	}
	if n := testing.AllocsPerRun(100, func() { q.Read(time.Now(), time.Now(), &quick) }); n != 0 {
		t.Errorf("Read() allocates %v times; want 0", n)
	}
	q.give(nil)
	_, before := q.Counts()
	q.Read(time.Now(), time.Now(), &quick)
	if _, after := q.Counts(); after != before+1 {
		t.Errorf("readings of files after the sampler went: %d more; want 1", after-before)
	}
}

// Memory and huge pages come and go while a node runs: a reading of the sampler's has
// the capacity of now, not that of the last look at the lanes.
func TestQuickReadsCapacityAgain(t *testing.T) {
	s, _, _ := openHere(t, BPF, nil)
	covered(t, s)
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	o := s.o.MemoryOptions
	o.Procfs = kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": string(content)}))
	q := s.o.Quick
	q.Files = openApart(t, o)
	read := func() (o signal.Observation) {
		eventually(t, "a reading of the sampler's", func() bool {
			var into signal.Observations
			before, _ := q.Counts()
			q.Read(time.Now(), time.Now(), &into)
			after, _ := q.Counts()
			o = into[signal.MemoryAvailable]
			return after > before
		})
		return o
	}
	before := read()
	const pool = 1 << 30
	changed := regexp.MustCompile(`(?m)^Hugetlb: .*$`).ReplaceAllString(string(content), fmt.Sprintf("Hugetlb: %d kB", pool>>10))
	if err := os.WriteFile(o.Procfs.Path("meminfo"), []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	if after := read(); before.Capacity-after.Capacity != pool || before.Available-after.Available != pool {
		t.Errorf("with 1 GiB of huge pages more: %+v; want 1 GiB less than %+v", after, before)
	}
}

func TestApartAllocatesNothing(t *testing.T) {
	o, _ := copiedNode(t)
	a := openApart(t, o)
	var into signal.Observations
	if n := testing.AllocsPerRun(100, func() { a.Read(time.Now(), time.Now(), &into) }); n > 0 {
		t.Errorf("Read() allocates %v times; want 0", n)
	}
	var pod Pod = aPod(func() (int64, int64, bool) { return 0, 0, true })
	if n := testing.AllocsPerRun(100, func() { a.Look(pod, time.Second) }); n > 0 {
		t.Errorf("Look() allocates %v times; want 0", n)
	}
	held := make(chan struct{})
	defer close(held)
	a.Look(aPod(func() (int64, int64, bool) { <-held; return 0, 0, true }), time.Millisecond)
	if n := testing.AllocsPerRun(100, func() { a.Read(time.Now(), time.Now(), &into) }); n > 0 {
		t.Errorf("Read() of what can't be read yet allocates %v times; want 0", n)
	}
}
