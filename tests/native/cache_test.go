package native_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// cacheHeld is how long a crossing that file cache brought waits at least by its record: the kubelet's period from when
// the sampler saw it, which the decision loop, whose time is in the record, may do up to a polling period later.
const cacheHeld = 10*time.Second - 250*time.Millisecond

// TestCacheKillsNobodyAtOnce: file cache comes and goes, which is no pressure. Written once it is inactive, and moves
// what a threshold of usage has to follow; read again it becomes active, counts as used, and so crosses the threshold:
// then nobody dies for ten seconds.
func TestCacheKillsNobodyAtOnce(t *testing.T) {
	n := startNode(t, 512*mebibyte)
	const size = 320 * mebibyte
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	d := startDaemon(t, n, below("256Mi"), calm)
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: fileOf(size)})
	d.knows(2)
	cache.uses(size)
	if s := d.looks(3); met(&s) || len(s.Records) > 0 {
		t.Errorf("with %d MiB of inactive cache: threshold met %t, records %+v; want none", size/mebibyte, met(&s), s.Records)
	}
	mustLive(t, calm, cache)

	activate(t, cache)
	s := d.until("threshold met by active cache", met)
	cache.mustDie()
	rec := d.ended(cache)
	// By the time at which the lane saw the crossing, which is before the loop did.
	if held := rec.Decided.Sub(rec.CrossingSeen); held < cacheHeld {
		t.Errorf("record: crossing seen at %v, decided %v later; want at least %v", rec.CrossingSeen, held, cacheHeld)
	}
	if first := podsThreshold(t, &s).Since; rec.CrossingSeen.After(first) {
		t.Errorf("record: crossing seen at %v, and the threshold was met at %v", rec.CrossingSeen, first)
	}
	// The cache is still charged to the pods' cgroup, and nobody can relieve that: it is one pod in each back-off, then.
	for i, r := range d.looks(2).Records {
		if i == 0 && r.Pod != cache.key() || i > 0 && !r.Futile {
			t.Errorf("record %d: %+v; want the pod whose cache it is, and others as futile ones alone", i, r)
		}
	}
}

// activate makes the file cache of a pod active, or skips the test where it can't.
func activate(t *testing.T, cache *pod) {
	t.Helper()
	needClassicLRU(t)
	file := filepath.Join("/proc", strconv.Itoa(cache.Containers[0].PID), "root", "cache")
	for range 2 {
		readThrough(t, file)
	}
}

// fileOf is a pod that writes a file of so many bytes.
func fileOf(bytes int64) []node.ContainerSpec {
	return one([]string{"file", "-path", "/cache", "-bytes", fmt.Sprint(bytes), "-passes", "0"})
}

// atOnce is long enough for an answer on a busy machine, and far from the time that a crossing by file cache waits.
const atOnce = cacheHeld / 2

// TestHogBesideActiveCache: however much active cache the pods have, a hog that crosses the threshold is killed at once.
func TestHogBesideActiveCache(t *testing.T) {
	n := startNode(t, gibibyte)
	const size = 320 * mebibyte
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: fileOf(size)}).uses(size)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(900 * mebibyte))})
	activate(t, cache)
	d := startDaemon(t, n, below("256Mi"), cache, hog)
	s := d.looks(2)
	if met(&s) {
		t.Fatalf("the threshold is met before the hog grows: %+v", s.Signals[signal.AllocatableMemoryAvailable])
	}
	hog.press()
	hog.mustDie()
	rec := d.ended(hog)
	killed(t, &rec, hog)
	mustLive(t, cache)
	if took := rec.SignalSent.Sub(rec.CrossingSeen); took > atOnce {
		t.Errorf("the hog was killed %v after the crossing; want it at once", took)
	}
	if rec.Overshoot > 200*mebibyte {
		t.Errorf("overshoot %d MiB; want the hog stopped near the threshold", rec.Overshoot/mebibyte)
	}
}

// TestHogWhileCrossingWaits: a crossing that file cache brought waits, until other memory grows.
func TestHogWhileCrossingWaits(t *testing.T) {
	n := startNode(t, gibibyte)
	const size = 320 * mebibyte
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: fileOf(size)}).uses(size)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{
		{Args: growing(150 * mebibyte)}, {Name: "holds", Args: holding(350 * mebibyte)},
	}})
	eventually(t, "350 MiB in the second container", func() bool { return hog.usage(hog.Containers[1].Cgroup) >= 340*mebibyte })
	d := startDaemon(t, n, below("400Mi"), cache, hog)
	activate(t, cache)
	s := d.until("threshold met by active cache", met)
	if th := podsThreshold(t, &s); !th.HeldByCache {
		t.Errorf("threshold = %+v; want it to wait for the cache", th)
	}
	since := podsThreshold(t, &s).Since
	hog.press()
	hog.mustDie()
	rec := d.ended(hog)
	mustLive(t, cache)
	if waited := rec.Decided.Sub(since); waited > atOnce {
		t.Errorf("the hog was killed %v after the crossing; want it when it grew", waited)
	}
}

// podsThreshold is how the only threshold on allocatableMemory.available stands.
func podsThreshold(t *testing.T, s *control.Status) control.ThresholdStatus {
	t.Helper()
	all := s.Signals[signal.AllocatableMemoryAvailable].Thresholds
	if len(all) != 1 {
		t.Fatalf("thresholds = %+v; want one", all)
	}
	return all[0]
}

// readThrough reads a file from its begin to its end. Whose memory its cache is does not change by that: who had it
// first is charged.
func readThrough(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, mebibyte)); err != nil {
		t.Fatal(err)
	}
}
