//go:build !race

package memory

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// Under the race detector what the kernel fills moves to the heap.

// TestQuick: the sampler's reading is the files', allocates nothing, and gives way
// to them when the sampler is taken away.
func TestQuick(t *testing.T) {
	q, o := samplerHere(t)
	files := openMemory(t, o)
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
	q.SetSampler(nil)
	_, before := q.Counts()
	q.Read(time.Now(), time.Now(), &quick)
	if _, after := q.Counts(); after != before+1 {
		t.Errorf("readings of files after the sampler went: %d more; want 1", after-before)
	}
}

// Memory and huge pages come and go while a node runs: a reading of the sampler's has
// the capacity of now, not that of the last look at the lanes.
func TestQuickReadsCapacityAgain(t *testing.T) {
	q, o := samplerHere(t)
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	o.Procfs = kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": string(content)}))
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
