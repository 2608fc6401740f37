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

// reading are the arguments of a database that has a file of so many bytes to read once it is pressed, and a shared
// buffer to touch.
func reading(file, buffer int64, more ...string) []string {
	return append([]string{"database", "-path", "/data", "-delay", "1h", "-bytes", fmt.Sprint(file), "-buffer", fmt.Sprint(buffer)}, more...)
}

// TestDatabaseWarmsCache: a database reads its file twice at full speed, so that the file's cache becomes active and
// crosses the threshold. That waits, whether its buffer was touched before or grows slowly beside the reading.
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
			calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
			database := runPod(t, n, node.PodSpec{Name: "database", Containers: one(reading(tt.file, tt.buffer, tt.more...))})
			written(t, database, tt.file)
			d := startDaemon(t, n, below("256Mi"), calm, database)
			database.press()
			if classicLRU() {
				waitsForCache(t, d, database)
				return
			}
			// With the multi-generational LRU what is read by read(2) stays inactive, and inactive cache counts as free.
			database.says("pass 2 of 2")
			if s := d.looks(3); met(&s) || len(s.Records) > 0 {
				t.Errorf("with %d MiB of inactive cache: threshold met %t, records %+v; want none", tt.file/mebibyte, met(&s), s.Records)
			}
			mustLive(t, calm, database)
		})
	}
}

// TestMappedFile: pages of a file that is mapped are file cache, also while they are dirty.
func TestMappedFile(t *testing.T) {
	n := startNode(t, 512*mebibyte)
	const size = 380 * mebibyte
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	mapped := runPod(t, n, node.PodSpec{Name: "mapped", Containers: one([]string{"mapped", "-path", "/data", "-delay", "1h", "-bytes", fmt.Sprint(size)})})
	written(t, mapped, size)
	d := startDaemon(t, n, below("256Mi"), calm, mapped)
	mapped.press()
	waitsForCache(t, d, mapped)
}

// written waits until a pod has written its file to the disk and dropped its cache, so that it waits to be pressed.
func written(t *testing.T, p *pod, size int64) {
	t.Helper()
	p.says("waiting")
	if usage := p.usage(p.Containers[0].Cgroup); usage > size/4 {
		t.Fatalf("%s uses %d MiB before it reads its file; want nothing of it cached", p.Name, usage/mebibyte)
	}
}

// waitsForCache checks that a crossing by the file cache of a pod waits, and that the pod goes when it has.
func waitsForCache(t *testing.T, d *daemon, p *pod) {
	t.Helper()
	s := d.until("threshold met by active cache", func(s *control.Status) bool { return met(s) || len(s.Records) > 0 })
	if th := podsThreshold(t, &s); !th.HeldByCache {
		t.Errorf("threshold = %+v; want it to wait for the cache", th)
	}
	s = d.until("an eviction", func(s *control.Status) bool { return len(s.Records) > 0 })
	for i, r := range s.Records {
		// The cache is charged to the pods' cgroup after its pod is gone: one pod in each back-off, then.
		if i == 0 && r.Pod != p.key() || i > 0 && !r.Futile {
			t.Errorf("record %d: %+v; want the pod whose cache it is, and others as futile ones alone", i, r)
		}
	}
	rec := &s.Records[0]
	if held := rec.Decided.Sub(rec.CrossingSeen); held < cacheHeld {
		t.Errorf("record: decided %v after the crossing was seen; want at least %v", held, cacheHeld)
	}
	measured(t, rec)
}

// answeredAtOnce checks the record of a pod whose memory brought the crossing.
func answeredAtOnce(t *testing.T, d *daemon, p *pod) {
	t.Helper()
	rec := d.ended(p)
	killed(t, &rec, p)
	if took := rec.SignalSent.Sub(rec.CrossingSeen); took > atOnce {
		t.Errorf("%s was killed %v after the crossing; want it at once", p.Name, took)
	}
	measured(t, &rec)
}

// measured logs what a record says of an eviction's speed.
func measured(t *testing.T, rec *evict.Record) {
	t.Helper()
	t.Logf("%s: lane %s, %s: SIGKILL %v after the crossing was seen, overshoot %.1f MiB, expected %.1f MiB", rec.Pod, rec.Lane, rec.Confirm,
		rec.SignalSent.Sub(rec.CrossingSeen), float64(rec.Overshoot)/mebibyte, float64(rec.Expected)/mebibyte)
}

// heap are the arguments of a JVM that touches its heap at once, with the threads of its collector.
func heap(bytes int64) []string { return growing(bytes, "-threads", "8") }

// withActiveCache runs a pod with so much active file cache.
func withActiveCache(t *testing.T, n *node.Node, size int64) *pod {
	t.Helper()
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: one([]string{"mapped", "-path", "/cache", "-bytes", fmt.Sprint(size)})})
	cache.says("mapped")
	return cache
}

// besideCache is a node with a pod that has active file cache and a calm one.
func besideCache(t *testing.T) (n *node.Node, others []*pod) {
	t.Helper()
	n = startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	return n, []*pod{withActiveCache(t, n, 320*mebibyte), calm}
}

// goesAtOnce has a pod grow, and checks that it goes at once and alone.
func goesAtOnce(t *testing.T, d *daemon, p *pod, others []*pod) {
	t.Helper()
	p.press()
	p.mustDie()
	answeredAtOnce(t, d, p)
	d.victims(p)
	mustLive(t, others...)
}

// TestHeapBesideActiveCache: many threads touch a heap at full speed; what active cache there is does not hold up the
// answer.
func TestHeapBesideActiveCache(t *testing.T) {
	n, others := besideCache(t)
	jvm := runPod(t, n, node.PodSpec{Name: "jvm", Containers: one(heap(900 * mebibyte))})
	d := startDaemon(t, n, below("256Mi"), append(others, jvm)...)
	d.looks(2)
	goesAtOnce(t, d, jvm, others)
}

// TestHeapAfterStart: right after evictd's own start, which leaves it few readings to compare with, a heap is answered
// at once, too.
func TestHeapAfterStart(t *testing.T) {
	n, others := besideCache(t)
	jvm := runPod(t, n, node.PodSpec{Name: "jvm", Containers: one(heap(900 * mebibyte))})
	d := newDaemon(t, n, below("256Mi"))
	m := listen(t)
	d.env = append(d.env, "NOTIFY_SOCKET="+m.path)
	d.start()
	eventually(t, "READY", func() bool { return strings.Contains(m.told(), "READY=1") })
	goesAtOnce(t, d, jvm, others)
}

// TestDatabaseBuffer: a shared buffer that is touched at once is other memory than file cache. A kill is not expected to
// free shared memory, which may be a tmpfs's: on a slow machine the deficit would need other victims as well, so that
// the other pods are protected.
func TestDatabaseBuffer(t *testing.T) {
	n, others := besideCache(t)
	database := runPod(t, n, node.PodSpec{Name: "database", Containers: one(reading(32*mebibyte, 900*mebibyte))})
	written(t, database, 32*mebibyte)
	d := startDaemon(t, n, below("256Mi")+"\nprotect: {names: [default/cache, default/calm]}", append(others, database)...)
	goesAtOnce(t, d, database, others)
}

// TestMemoryVolumeHog: what a pod writes at full speed to its /dev/shm, or to a volume in memory, is other memory than
// file cache. It is back when the sandbox has been stopped, or when the volume is unmounted then, as a kubelet does it.
func TestMemoryVolumeHog(t *testing.T) {
	for _, dir := range []string{"/dev/shm", "/volume"} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			n, others := besideCache(t)
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
			// Until the stop is done, what the kill frees may not be enough.
			d := startDaemon(t, n, below("256Mi")+"\nprotect: {names: [default/cache, default/calm]}", append(others, p)...)
			before := d.looks(1)
			p.press()
			p.mustDie()
			if volume != "" {
				if err := unix.Unmount(volume, 0); err != nil {
					t.Fatalf("unmount the volume: %v", err)
				}
			}
			answeredAtOnce(t, d, p)
			d.victims(p)
			d.until("memory that is back", func(s *control.Status) bool {
				return *s.Signals[signal.AllocatableMemoryAvailable].Available > *before.Signals[signal.AllocatableMemoryAvailable].Available-64*mebibyte
			})
			mustLive(t, others...)
		})
	}
}

// TestImagePull: the runtime pulls an image, whose file cache is inactive, while other file cache crosses the node's
// threshold. That waits; a hog that grows at the same time does not.
func TestImagePull(t *testing.T) {
	for _, grows := range []bool{false, true} {
		t.Run(fmt.Sprintf("hog %t", grows), func(t *testing.T) {
			size := min(nodeHog(t), gibibyte)
			n := startNode(t, 2*size)
			calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
			// With the hog goes enough for the signal to recover, whatever is cached.
			hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{
				{Args: growing(size / 2)}, {Name: "holds", Args: holding(size)},
			}})
			eventually(t, "memory of the second container", func() bool { return hog.usage(hog.Containers[1].Cgroup) >= size })
			pulled := pull(t, n, size/2)
			available, _ := nodeAvailable(t, 2*size)
			d := startDaemon(t, n, fmt.Sprintf("enforceNodeAllocatable: []\nevictionHard: {memory.available: %d}", available-size/2), calm, hog)
			grown := growth(t)
			cacheOutside(t, n, size*3/4)
			d.until("threshold met by active cache", func(s *control.Status) bool { return met(s) || len(s.Records) > 0 })
			if grows {
				hog.press()
			}
			hog.mustDie()
			rec := d.ended(hog)
			measured(t, &rec)
			switch waited, other := rec.Decided.Sub(rec.CrossingSeen), grown(); {
			case grows && waited >= cacheHeld:
				t.Errorf("the hog was killed %v after the crossing; want it when it grew", waited)
			case !grows && waited < cacheHeld && other < signal.DefaultGrowthFloor*3/4:
				t.Errorf("the pod was killed %v after the crossing, and other memory had grown by %d MiB; want it after %v", waited, other/mebibyte, cacheHeld)
			case !grows && waited < cacheHeld:
				t.Logf("other memory of this machine grew by %d MiB, and answered the crossing", other/mebibyte)
			}
			d.victims(hog)
			mustLive(t, calm)
			if err := <-pulled; err != nil {
				t.Error(err)
			}
		})
	}
}

// growth follows how much memory of the machine is no file cache, and returns a function that ends that and returns how much more
// than at its least it was at most, from then on: what else runs here may answer a crossing of the node's threshold.
func growth(t *testing.T) (grown func() int64) {
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

// pull has the runtime import an image of so many bytes, and returns when it is at that.
func pull(t *testing.T, n *node.Node, bytes int64) <-chan error {
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

// cacheOutside makes so much active file cache that is charged to no pod. The file has no content on the disk: its pages
// are cached all the same.
func cacheOutside(t *testing.T, n *node.Node, size int64) {
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
	// A fault makes the page active with the multi-generational LRU, the second reading does with the classic lists.
	sum := byte(0)
	for i := 0; i < len(mem); i += os.Getpagesize() {
		sum += mem[i]
	}
	if err := unix.Munmap(mem); err != nil || sum != 0 {
		t.Fatalf("unmap: %v, content %d", err, sum)
	}
	for range 2 {
		readThrough(t, path)
	}
}

// says waits until a pod's first container has printed something.
func (p *pod) says(words string) {
	p.t.Helper()
	file := filepath.Join(p.n.Dir(), "logs", p.Namespace+"_"+p.Name+"_"+p.UID, p.Containers[0].Name+".log")
	eventually(p.t, fmt.Sprintf("%q from %s", words, p.Name), func() bool {
		b, err := os.ReadFile(file)
		return err == nil && bytes.Contains(b, []byte(words))
	})
}
