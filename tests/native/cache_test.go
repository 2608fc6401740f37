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
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// cacheWait is the minimum time between crossing and decision in the record of a crossing by file cache. evictd waits
// for the kubelet's period from when the sampler saw the crossing. The record has the time at which the decision loop saw
// it: up to an idle interval of 1 s later, as on a busy machine, where the loop read once more above the threshold.
const cacheWait = signal.KubeletInterval - time.Second

// checkWaited checks the record of a crossing by file cache that began after the time before.
func checkWaited(t *testing.T, rec *evict.Record, before time.Time) {
	t.Helper()
	if waited := rec.Decided.Sub(rec.CrossingSeen); waited < cacheWait {
		t.Errorf("record: crossing seen at %v, decided %v later; want at least %v", rec.CrossingSeen, waited, cacheWait)
	}
	if waited := rec.Decided.Sub(before); waited < signal.KubeletInterval {
		t.Errorf("record: decided %v after the cache began to grow; want at least %v", waited, signal.KubeletInterval)
	}
}

// TestCacheWaits: file cache that is written once is inactive and does not cross the threshold, although it changes
// the usage. When it is read again it becomes active, counts as used and crosses the threshold: then no pod is evicted
// for ten seconds.
func TestCacheWaits(t *testing.T) {
	n := startNode(t, 512*mebibyte)
	const size = 320 * mebibyte
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(32 * mebibyte))}).waitUsage(32 * mebibyte)
	d := startDaemon(t, n, hardThreshold("256Mi"), bystander)
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: fileContainers(size)})
	d.waitPods(2)
	cache.waitUsage(size)
	if s := d.waitReadings(3); met(&s) || len(s.Records) > 0 {
		t.Errorf("with %d MiB of inactive cache: threshold met %t, records %+v; want none", size/mebibyte, met(&s), s.Records)
	}
	mustLive(t, bystander, cache)

	before := time.Now()
	activate(t, cache)
	s := d.waitStatus("threshold met by active cache", met)
	cache.mustDie()
	rec := d.waitRecord(cache)
	checkWaited(t, &rec, before)
	if first := podsThreshold(t, &s).Since; rec.CrossingSeen.After(first) {
		t.Errorf("record: crossing seen at %v, after the threshold was met at %v", rec.CrossingSeen, first)
	}
	// The cache stays charged to the pods' cgroup after its pod is gone, so more pods may be evicted, one per back-off.
	for i, r := range d.waitReadings(2).Records {
		if i == 0 && r.Pod != cache.key() || i > 0 && !r.Futile {
			t.Errorf("record %d: %+v; want %s first, and other pods only with futile set", i, r, cache.key())
		}
	}
}

// activate makes the file cache of a pod active. It skips the test if reading can't do that on this kernel.
func activate(t *testing.T, cache *pod) {
	t.Helper()
	needClassicLRU(t)
	file := filepath.Join("/proc", strconv.Itoa(cache.Containers[0].PID), "root", "cache")
	for range 2 {
		readFile(t, file)
	}
}

// fileContainers returns the container of a pod that writes a file of so many bytes.
func fileContainers(bytes int64) []node.ContainerSpec {
	return oneContainer([]string{"file", "-path", "/cache", "-bytes", fmt.Sprint(bytes), "-passes", "0"})
}

// immediateLimit bounds a kill that must not wait: long enough for a busy machine, and far below cacheWait.
const immediateLimit = cacheWait / 2

// TestHogBesideActiveCache: a hog that crosses the threshold is killed without delay, although the pods have active
// file cache.
func TestHogBesideActiveCache(t *testing.T) {
	n := startNode(t, gibibyte)
	const size = 320 * mebibyte
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: fileContainers(size)}).waitUsage(size)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(900 * mebibyte))})
	activate(t, cache)
	d := startDaemon(t, n, hardThreshold("256Mi"), cache, hog)
	s := d.waitReadings(2)
	if met(&s) {
		t.Fatalf("the threshold is met before the hog grows: %+v", s.Signals[signal.AllocatableMemoryAvailable])
	}
	hog.grow()
	hog.mustDie()
	rec := d.waitRecord(hog)
	checkKilled(t, &rec, hog)
	mustLive(t, cache)
	if took := rec.SignalSent.Sub(rec.CrossingSeen); took > immediateLimit {
		t.Errorf("the hog was killed %v after the crossing; want at most %v", took, immediateLimit)
	}
	if rec.Overshoot > 200*mebibyte {
		t.Errorf("overshoot %d MiB; want the hog stopped near the threshold", rec.Overshoot/mebibyte)
	}
}

// TestHogWhileCrossingWaits: the wait after a crossing by file cache ends when other memory grows.
func TestHogWhileCrossingWaits(t *testing.T) {
	n := startNode(t, gibibyte)
	const size = 320 * mebibyte
	cache := runPod(t, n, node.PodSpec{Name: "cache", Containers: fileContainers(size)}).waitUsage(size)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{
		{Args: growArgs(150 * mebibyte)}, {Name: "constant", Args: holdArgs(350 * mebibyte)},
	}})
	eventually(t, "350 MiB in the second container", func() bool { return hog.usage(hog.Containers[1].Cgroup) >= 340*mebibyte })
	d := startDaemon(t, n, hardThreshold("400Mi"), cache, hog)
	activate(t, cache)
	s := d.waitStatus("threshold met by active cache", met)
	if th := podsThreshold(t, &s); !th.Waiting {
		t.Errorf("threshold = %+v; want it waiting for cache", th)
	}
	since := podsThreshold(t, &s).Since
	hog.grow()
	hog.mustDie()
	rec := d.waitRecord(hog)
	mustLive(t, cache)
	if waited := rec.Decided.Sub(since); waited > immediateLimit {
		t.Errorf("the hog was killed %v after the crossing; want at most %v", waited, immediateLimit)
	}
}

// podsThreshold returns the status of the only threshold on allocatableMemory.available.
func podsThreshold(t *testing.T, s *control.Status) control.ThresholdStatus {
	t.Helper()
	all := s.Signals[signal.AllocatableMemoryAvailable].Thresholds
	if len(all) != 1 {
		t.Fatalf("thresholds = %+v; want one", all)
	}
	return all[0]
}

// readFile reads a whole file. Its cache stays charged to the cgroup that first read or wrote the pages.
func readFile(t *testing.T, path string) {
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
