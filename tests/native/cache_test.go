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

// cacheHeld is how long a crossing that cache alone explains is waited out, as by the kubelet's period.
const cacheHeld = 10 * time.Second

// TestCacheKillsNobodyAtOnce: file cache comes and goes, which is no pressure. Written once it is inactive, and moves
// what a threshold of usage has to follow; read again it becomes active, counts as used, and so crosses the threshold:
// then nobody dies for ten seconds.
func TestCacheKillsNobodyAtOnce(t *testing.T) {
	n := startNode(t, 512*mebibyte)
	const size = 320 * mebibyte
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(32 * mebibyte))}).uses(32 * mebibyte)
	d := startDaemon(t, n, below("256Mi"), calm)
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: one([]string{"file", "-path", "/cache", "-bytes", fmt.Sprint(size), "-passes", "0"})})
	d.knows(2)
	cache.uses(size)
	if s := d.looks(3); met(&s) || len(s.Records) > 0 {
		t.Errorf("with %d MiB of inactive cache: threshold met %t, records %+v; want none", size/mebibyte, met(&s), s.Records)
	}
	mustLive(t, calm, cache)

	if mode, err := os.ReadFile("/sys/kernel/mm/lru_gen/enabled"); err == nil && string(mode) != "0x0000\n" {
		t.Skip("needs the classic LRU lists: with the multi-generational ones, reading makes no cache active")
	}
	file := filepath.Join("/proc", strconv.Itoa(cache.Containers[0].PID), "root", "cache")
	for range 2 {
		readThrough(t, file)
	}
	s := d.until("threshold met by active cache", met)
	since := podsThreshold(t, &s).Since
	cache.mustDie()
	rec := d.ended(cache)
	if held := rec.Decided.Sub(since); held < cacheHeld {
		t.Errorf("the pod was killed %v after the crossing; want at least %v", held, cacheHeld)
	}
	if seen := rec.CrossingSeen; rec.Decided.Sub(seen) < cacheHeld {
		t.Errorf("record: crossing seen at %v, decided at %v; want them at least %v apart", seen, rec.Decided, cacheHeld)
	}
	// The cache is still charged to the pods' cgroup, and nobody can relieve that: it is one pod in each back-off, then.
	for i, r := range d.looks(2).Records {
		if i == 0 && r.Pod != cache.key() || i > 0 && !r.Futile {
			t.Errorf("record %d: %+v; want the pod whose cache it is, and others as futile ones alone", i, r)
		}
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
