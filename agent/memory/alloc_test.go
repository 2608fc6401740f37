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

// Under the race detector buffers that the kernel fills escape to the heap.

// A reading of the sampler equals one of files and does not allocate. After
// SetSampler(nil) files are read.
func TestSamplerReading(t *testing.T) {
	reader, o := newSamplerReader(t)
	files := openMemory(t, o)
	var sampled, fromFiles signal.Observations
	eventually(t, "a reading from the sampler", func() bool {
		before, _ := reader.Counts()
		reader.Read(time.Now(), time.Now(), &sampled)
		after, _ := reader.Counts()
		return after > before
	})
	files.Read(time.Now(), &fromFiles)
	for _, m := range []signal.Signal{signal.MemoryAvailable, signal.AllocatableMemoryAvailable} {
		a, b := sampled[m], fromFiles[m]
		if off := a.Available - b.Available; a.Status != b.Status || a.Capacity != b.Capacity || max(off, -off) > 64<<20 {
			t.Errorf("%v: sampler %+v, files %+v; want them equal within 64 MiB", m, a, b)
		}
	}
	if n := testing.AllocsPerRun(100, func() { reader.Read(time.Now(), time.Now(), &sampled) }); n != 0 {
		t.Errorf("Read() allocates %v times; want 0", n)
	}
	reader.SetSampler(nil)
	_, before := reader.Counts()
	reader.Read(time.Now(), time.Now(), &sampled)
	if _, after := reader.Counts(); after != before+1 {
		t.Errorf("readings from files after SetSampler(nil) = %d; want 1", after-before)
	}
}

// Memory and huge pages are added and removed while a node runs: a reading from the
// sampler has the current capacity, not that of the last reconcile of the lanes.
func TestSamplerReadingHasCurrentCapacity(t *testing.T) {
	reader, o := newSamplerReader(t)
	content, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	o.Procfs = kernel.FS(kerneltest.Tree(t, map[string]string{"meminfo": string(content)}))
	reader.Files = openAsync(t, o)
	read := func() (o signal.Observation) {
		eventually(t, "a reading from the sampler", func() bool {
			var into signal.Observations
			before, _ := reader.Counts()
			reader.Read(time.Now(), time.Now(), &into)
			after, _ := reader.Counts()
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
		t.Errorf("with 1 GiB more of huge pages: %+v; want 1 GiB less than %+v", after, before)
	}
}

func TestAsyncReadingDoesNotAllocate(t *testing.T) {
	o, _ := copiedNode(t)
	a := openAsync(t, o)
	var into signal.Observations
	if n := testing.AllocsPerRun(100, func() { a.Read(time.Now(), time.Now(), &into) }); n > 0 {
		t.Errorf("Read() allocates %v times; want 0", n)
	}
	var pod Pod = podFunc(func() (int64, int64, bool) { return 0, 0, true })
	if n := testing.AllocsPerRun(100, func() { a.ReadPod(pod, time.Second) }); n > 0 {
		t.Errorf("ReadPod() allocates %v times; want 0", n)
	}
	release := make(chan struct{})
	defer close(release)
	a.ReadPod(podFunc(func() (int64, int64, bool) { <-release; return 0, 0, true }), time.Millisecond)
	if n := testing.AllocsPerRun(100, func() { a.Read(time.Now(), time.Now(), &into) }); n > 0 {
		t.Errorf("Read() while a read hangs allocates %v times; want 0", n)
	}
}
