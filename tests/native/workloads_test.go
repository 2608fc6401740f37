package native_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/node"
)

// databaseArgs returns the arguments of a database that, after [pod.grow], reads a file of so many bytes and touches a
// shared buffer.
func databaseArgs(file, buffer int64, more ...string) []string {
	return append([]string{"database", "-path", "/data", "-delay", "1h", "-bytes", fmt.Sprint(file), "-buffer", fmt.Sprint(buffer)}, more...)
}

// TestDatabaseWarmsCache: a database reads its file twice at full speed, so that the file cache becomes active and
// crosses the threshold. The eviction waits, whether the buffer was touched before or grows slowly during the reading.
func TestDatabaseWarmsCache(t *testing.T) {
	for _, tt := range []struct {
		name         string
		file, buffer int64
		more         []string
	}{
		{"buffer first", 320 * mebibyte, 64 * mebibyte, nil},
		{"slow buffer", 380 * mebibyte, 16 * mebibyte, []string{"-rate", fmt.Sprint(mebibyte)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := startNode(t, 512*mebibyte)
			bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
			database := runPod(t, n, node.PodSpec{Name: "database", Containers: oneContainer(databaseArgs(tt.file, tt.buffer, tt.more...))})
			waitWritten(t, database, tt.file)
			d := startDaemon(t, n, hardThreshold("256Mi"), bystander, database)
			before := time.Now()
			database.grow()
			if classicLRU() {
				checkWaitsForCache(t, d, database, before)
				return
			}
			// With the multi-generational LRU, cache filled by read(2) stays inactive, and inactive cache counts as free.
			database.waitOutput("pass 2 of 2")
			if s := d.waitReadings(3); met(&s) || len(s.Records) > 0 {
				t.Errorf("with %d MiB of inactive cache: threshold met %t, records %+v; want none", tt.file/mebibyte, met(&s), s.Records)
			}
			mustLive(t, bystander, database)
		})
	}
}

// TestMappedFile: pages of a mapped file count as file cache, even if they are dirty.
func TestMappedFile(t *testing.T) {
	n := startNode(t, 512*mebibyte)
	const size = 380 * mebibyte
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	mapped := runPod(t, n, node.PodSpec{Name: "mapped", Containers: oneContainer([]string{"mapped", "-path", "/data", "-delay", "1h", "-bytes", fmt.Sprint(size)})})
	waitWritten(t, mapped, size)
	d := startDaemon(t, n, hardThreshold("256Mi"), bystander, mapped)
	before := time.Now()
	mapped.grow()
	checkWaitsForCache(t, d, mapped, before)
}

// waitWritten waits until a pod has written its file to the disk, dropped its cache and waits for [pod.grow].
func waitWritten(t *testing.T, p *pod, size int64) {
	t.Helper()
	p.waitOutput("waiting")
	if usage := p.usage(p.Containers[0].Cgroup); usage > size/4 {
		t.Fatalf("%s uses %d MiB before it reads its file; want none of it cached", p.Name, usage/mebibyte)
	}
}

// checkWaitsForCache checks that the eviction waits after a crossing by a pod's file cache, which began to grow after
// the time before, and that the pod is evicted then.
func checkWaitsForCache(t *testing.T, d *daemon, p *pod, before time.Time) {
	t.Helper()
	s := d.waitStatus("threshold met by active cache", func(s *control.Status) bool { return met(s) || len(s.Records) > 0 })
	if th := podsThreshold(t, &s); !th.Waiting {
		t.Errorf("threshold = %+v; want it waiting for cache", th)
	}
	s = d.waitStatus("an eviction", func(s *control.Status) bool { return len(s.Records) > 0 })
	for i, r := range s.Records {
		// The cache stays charged to the pods' cgroup after its pod is gone, so more pods may be evicted, one per
		// back-off.
		if i == 0 && r.Pod != p.key() || i > 0 && !r.Futile {
			t.Errorf("record %d: %+v; want %s first, and other pods only with futile set", i, r, p.key())
		}
	}
	rec := &s.Records[0]
	checkWaited(t, rec, before)
	logTiming(t, rec)
}

// checkKilledAtOnce checks the record of a pod whose growth caused the crossing.
func checkKilledAtOnce(t *testing.T, d *daemon, p *pod) {
	t.Helper()
	rec := d.waitRecord(p)
	checkKilled(t, &rec, p)
	if took := rec.SignalSent.Sub(rec.CrossingSeen); took > immediateLimit {
		t.Errorf("%s was killed %v after the crossing; want at most %v", p.Name, took, immediateLimit)
	}
	logTiming(t, &rec)
}

// logTiming logs the latencies in a record.
func logTiming(t *testing.T, rec *evict.Record) {
	t.Helper()
	t.Logf("%s: lane %s, %s: SIGKILL %v after the crossing was seen, overshoot %.1f MiB, expected %.1f MiB", rec.Pod, rec.Lane, rec.Confirm,
		rec.SignalSent.Sub(rec.CrossingSeen), float64(rec.Overshoot)/mebibyte, float64(rec.Expected)/mebibyte)
}

// heapArgs returns the arguments of a JVM that touches its whole heap after [pod.grow] with its collector threads.
func heapArgs(bytes int64) []string { return growArgs(bytes, "-threads", "8") }

// podWithActiveCache runs a pod with so many bytes of active file cache.
func podWithActiveCache(t *testing.T, n *node.Node, size int64) *pod {
	t.Helper()
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: oneContainer([]string{"mapped", "-path", "/cache", "-bytes", fmt.Sprint(size)})})
	cache.waitOutput("mapped")
	return cache
}

// nodeWithCache starts a node with two pods: one has active file cache, the other constant anonymous memory.
func nodeWithCache(t *testing.T) (n *node.Node, others []*pod) {
	t.Helper()
	n = startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	return n, []*pod{podWithActiveCache(t, n, 320*mebibyte), bystander}
}

// checkEvictedAtOnce makes a pod grow, and checks that only it is evicted, without delay.
func checkEvictedAtOnce(t *testing.T, d *daemon, p *pod, others []*pod) {
	t.Helper()
	p.grow()
	p.mustDie()
	checkKilledAtOnce(t, d, p)
	d.checkVictims(p)
	mustLive(t, others...)
}

// TestHeapBesideActiveCache: many threads touch a heap at full speed. The node's active cache does not delay the kill.
func TestHeapBesideActiveCache(t *testing.T) {
	n, others := nodeWithCache(t)
	jvm := runPod(t, n, node.PodSpec{Name: "jvm", Containers: oneContainer(heapArgs(900 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("256Mi"), append(others, jvm)...)
	d.waitReadings(2)
	checkEvictedAtOnce(t, d, jvm, others)
}

// TestHeapAfterStart: right after its own start, with few readings to compare with, evictd kills a growing heap
// without delay too.
func TestHeapAfterStart(t *testing.T) {
	n, others := nodeWithCache(t)
	jvm := runPod(t, n, node.PodSpec{Name: "jvm", Containers: oneContainer(heapArgs(900 * mebibyte))})
	d := newDaemon(t, n, hardThreshold("256Mi"))
	m := listen(t)
	d.env = append(d.env, "NOTIFY_SOCKET="+m.path)
	d.start()
	eventually(t, "READY", func() bool { return strings.Contains(m.received(), "READY=1") })
	checkEvictedAtOnce(t, d, jvm, others)
}

// TestDatabaseBuffer: a shared buffer is not file cache. evictd does not expect a kill to free shared memory, which may
// belong to a tmpfs: on a slow machine it would choose further victims for the deficit, so the other pods are
// protected.
func TestDatabaseBuffer(t *testing.T) {
	n, others := nodeWithCache(t)
	database := runPod(t, n, node.PodSpec{Name: "database", Containers: oneContainer(databaseArgs(32*mebibyte, 900*mebibyte))})
	waitWritten(t, database, 32*mebibyte)
	d := startDaemon(t, n, hardThreshold("256Mi")+"\nprotect: {names: [default/cache, default/bystander]}", append(others, database)...)
	checkEvictedAtOnce(t, d, database, others)
}

// TestMemoryVolumeHog: files in /dev/shm or in a memory volume are not file cache. Their memory is freed when the
// sandbox has been stopped or, for the volume, when it is unmounted after that, as a kubelet does.
func TestMemoryVolumeHog(t *testing.T) {
	for _, dir := range []string{"/dev/shm", "/volume"} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			n, others := nodeWithCache(t)
			hog := node.ContainerSpec{Args: []string{"tmpfs", "-dir", dir, "-delay", "1h", "-bytes", fmt.Sprint(900 * mebibyte)}}
			volume := ""
			if dir != "/dev/shm" {
				var err error
				if volume, err = n.Volume("memory", gibibyte); err != nil {
					t.Fatal(err)
				}
				hog.Mounts = []node.Mount{{Host: volume, Container: dir}}
			}
			p := runPod(t, n, node.PodSpec{Name: "hog", ShmBytes: gibibyte, Containers: []node.ContainerSpec{hog}})
			// Until the sandbox has been stopped, the kill may not free enough.
			d := startDaemon(t, n, hardThreshold("256Mi")+"\nprotect: {names: [default/cache, default/bystander]}", append(others, p)...)
			before := d.waitReadings(1)
			p.grow()
			p.mustDie()
			if volume != "" {
				if err := unix.Unmount(volume, 0); err != nil {
					t.Fatalf("unmount the volume: %v", err)
				}
			}
			checkKilledAtOnce(t, d, p)
			d.checkVictims(p)
			d.waitStatus("freed memory", func(s *control.Status) bool {
				return *s.Signals[signal.AllocatableMemoryAvailable].Available > *before.Signals[signal.AllocatableMemoryAvailable].Available-64*mebibyte
			})
			mustLive(t, others...)
		})
	}
}

// TestImagePull: the runtime imports an image, whose file cache is inactive, while other file cache crosses the node's
// threshold. The eviction waits, unless a hog grows at the same time.
func TestImagePull(t *testing.T) {
	for _, grows := range []bool{false, true} {
		t.Run(fmt.Sprintf("hog %t", grows), func(t *testing.T) {
			size := min(nodeHog(t), gibibyte)
			n := startNode(t, 2*size)
			bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
			// The kill of the hog frees enough for the signal to recover with any amount of cache.
			hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{
				{Args: growArgs(size / 2)}, {Name: "constant", Args: holdArgs(size)},
			}})
			eventually(t, "memory of the second container", func() bool { return hog.usage(hog.Containers[1].Cgroup) >= size })
			pulled := startPull(t, n, size/2)
			available, _ := nodeAvailable(t, 2*size)
			d := startDaemon(t, n, fmt.Sprintf("enforceNodeAllocatable: []\nevictionHard: {memory.available: %d}", available-size/2), bystander, hog)
			grown := trackGrowth(t)
			cacheOutsidePods(t, n, size*3/4)
			d.waitStatus("threshold met by active cache", func(s *control.Status) bool { return met(s) || len(s.Records) > 0 })
			if grows {
				hog.grow()
			}
			hog.mustDie()
			rec := d.waitRecord(hog)
			logTiming(t, &rec)
			switch waited, other := rec.Decided.Sub(rec.CrossingSeen), grown(); {
			case grows && waited >= cacheWait:
				t.Errorf("the hog was killed %v after the crossing; want less than %v", waited, cacheWait)
			case !grows && waited < cacheWait && other < signal.DefaultGrowthFloor*3/4:
				t.Errorf("the pod was killed %v after the crossing, and other memory had grown by %d MiB; want it after %v", waited, other/mebibyte, cacheWait)
			case !grows && waited < cacheWait:
				t.Logf("other memory of this machine grew by %d MiB, which ended the wait", other/mebibyte)
			}
			d.checkVictims(hog)
			mustLive(t, bystander)
			if err := <-pulled; err != nil {
				t.Error(err)
			}
		})
	}
}

// trackGrowth samples the machine's anonymous and shared memory. It returns a function that stops the sampling and
// returns the largest growth above an earlier minimum: growth of other processes also ends the wait after a crossing
// of the node's threshold.
func trackGrowth(t *testing.T) (grown func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	most := make(chan int64, 1)
	go func() {
		least, rise := int64(math.MaxInt64), int64(0)
		defer func() { most <- rise }()
		for ticker := time.NewTicker(20 * time.Millisecond); ; {
			info, err := meminfo.Read(kernel.FS("/proc"))
			if err != nil {
				t.Error(err)
				return
			}
			now := int64(info.AnonPages + info.Shmem)
			least = min(least, now)
			rise = max(rise, now-least)
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
			}
		}
	}()
	end := sync.OnceValue(func() int64 { cancel(); return <-most })
	t.Cleanup(func() { end() })
	return end
}

// startPull makes the runtime import an image of so many bytes, and returns once an eighth of it is written.
func startPull(t *testing.T, n *node.Node, bytes int64) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- n.AddImage(t.Context(), "localhost/pulled:1", bytes) }()
	eventually(t, "data of the image", func() bool {
		files, err := filepath.Glob(filepath.Join(n.Dir(), "root/io.containerd.content.v1.content/ingest/*/data"))
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(files, func(file string) bool {
			st, err := os.Stat(file)
			return err == nil && st.Size() > bytes/8
		})
	})
	return done
}

// cacheOutsidePods creates so many bytes of active file cache that is charged to no pod. The file is sparse; the pages
// of its holes are cached too.
func cacheOutsidePods(t *testing.T, n *node.Node, size int64) {
	t.Helper()
	path := filepath.Join(n.Dir(), "cache")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	// With the multi-generational LRU the page fault makes a page active, with the classic lists the second read does.
	sum := byte(0)
	for i := 0; i < len(mem); i += os.Getpagesize() {
		sum += mem[i]
	}
	if err := unix.Munmap(mem); err != nil || sum != 0 {
		t.Fatalf("unmap: %v, content %d", err, sum)
	}
	for range 2 {
		readFile(t, path)
	}
}

// waitOutput waits until the pod's first container has printed the words.
func (p *pod) waitOutput(words string) {
	p.t.Helper()
	file := filepath.Join(p.n.Dir(), "logs", p.Namespace+"_"+p.Name+"_"+p.UID, p.Containers[0].Name+".log")
	eventually(p.t, fmt.Sprintf("%q from %s", words, p.Name), func() bool {
		b, err := os.ReadFile(file)
		return err == nil && bytes.Contains(b, []byte(words))
	})
}
