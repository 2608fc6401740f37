package native_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// onHotPath reports whether the eviction was decided by the hot path, and not by a turn of the loop.
func onHotPath(rec *evict.Record) bool { return strings.Contains(rec.Confirm, "hot path") }

// TestCalmPodLives: of two BestEffort pods one is calm and large, the other has nothing and then takes all that it
// can get. When it was looked at last, the calm one was the larger by far: it lives, every time. EVICTD_TEST_ROUNDS
// says how often that is tried.
func TestCalmPodLives(t *testing.T) {
	rounds := 10
	if node.Slow(1) > 1 {
		rounds = 3
	}
	if text := os.Getenv("EVICTD_TEST_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("EVICTD_TEST_ROUNDS is %q; want a number above 0", text)
		}
	}
	n := startNode(t, 2*gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(500 * mebibyte))}).uses(500 * mebibyte)
	d := startDaemon(t, n, below("512Mi"), calm)
	hot := 0
	var latency []time.Duration
	for i := range rounds {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: one(growing(2 * gibibyte))})
		d.knows(2)
		hog.press()
		hog.mustDie()
		rec := d.ended(hog)
		killed(t, &rec, hog)
		if onHotPath(&rec) {
			hot++
		}
		latency = append(latency, rec.SignalSent.Sub(rec.CrossingSeen))
		mustLive(t, calm)
		if t.Failed() {
			t.Fatalf("the calm pod lived %d of %d times", i, rounds)
		}
		hog.remove()
		d.knows(1)
	}
	slices.Sort(latency)
	t.Logf("%d of %d on the hot path; from the crossing seen to the first SIGKILL: median %v, longest %v", hot, rounds,
		latency[len(latency)/2], latency[len(latency)-1])
	if hot == 0 {
		t.Error("nobody was killed on the hot path")
	}
}

// TestStoppedDaemon: evictd is stopped while memory runs short, and continued. One pod goes, and not two because the
// loop and the watchdog both find that nothing was done.
func TestStoppedDaemon(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(200 * mebibyte))}).uses(200 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(500 * mebibyte))})
	d := startDaemon(t, n, below("400Mi"), calm, hog)
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	hog.press()
	hog.uses(500 * mebibyte)
	// Longer than the loop may be silent before the watchdog takes it for dead.
	stopped := time.Now()
	eventually(t, "end of the stop", func() bool { return time.Since(stopped) > 3*time.Second })
	mustLive(t, calm, hog)
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	hog.mustDie()
	d.victims(hog)
	mustLive(t, calm)
}

// TestCollectorAtWork: the garbage collector of evictd never rests, as its own status is asked for again and again.
// The hog is still found and killed, and nobody else.
func TestCollectorAtWork(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(150 * mebibyte))}).uses(150 * mebibyte)
	d := newDaemon(t, n, below("400Mi"))
	d.env = []string{"GOGC=1", "GOMEMLIMIT=8MiB"}
	d.start()
	d.knows(1)
	for i := range 3 {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: one(growing(gibibyte))})
		d.knows(2)
		asking, asked := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(asked)
			for {
				select {
				case <-asking:
					return
				default:
				}
				// An answer that does not come is for the test's own questions to fail of.
				_, _ = d.client.Status(t.Context())
			}
		}()
		hog.press()
		hog.mustDie()
		close(asking)
		<-asked
		rec := d.ended(hog)
		killed(t, &rec, hog)
		t.Logf("lane %s, %s: SIGKILL %v after the crossing was seen", rec.Lane, rec.Confirm, rec.SignalSent.Sub(rec.CrossingSeen))
		mustLive(t, calm)
		hog.remove()
		d.knows(1)
	}
}

// TestReloadArmsAgain: with another threshold in force the next hog is killed at that one.
func TestReloadArmsAgain(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(64 * mebibyte))}).uses(64 * mebibyte)
	d := startDaemon(t, n, below("100Mi"), calm)
	for i, threshold := range []int64{600, 300, 700} {
		d.configure(below(fmt.Sprintf("%dMi", threshold)))
		if s := d.reload(); s.Config.LastReloadError != "" {
			t.Fatalf("reload error = %q; want none", s.Config.LastReloadError)
		}
		// At once: the watch over the threshold that was is not to be the one that counts.
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: one(growing(gibibyte))})
		d.knows(2)
		hog.press()
		hog.mustDie()
		rec := d.ended(hog)
		killed(t, &rec, hog)
		if rec.Threshold != threshold*mebibyte {
			t.Errorf("killed at a threshold of %d MiB; want %d", rec.Threshold/mebibyte, threshold)
		}
		mustLive(t, calm)
		hog.remove()
		d.knows(1)
	}
}

// TestForkingAllocators: a hog whose children each take memory, while new ones come, ends as a whole.
func TestForkingAllocators(t *testing.T) {
	n := startNode(t, gibibyte)
	calm := runPod(t, n, node.PodSpec{Name: "calm", Containers: one(holding(100 * mebibyte))}).uses(100 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one([]string{"forks", "-n", "40", "-bytes", fmt.Sprint(16 * mebibyte), "-relay", "5ms"})})
	d := newDaemon(t, n, below("512Mi"))
	d.start()
	hog.mustDie()
	d.until("end of the eviction", func(s *control.Status) bool {
		return len(s.Records) > 0 && s.Records[0].Result != evict.ResultPending
	})
	d.victims(hog)
	mustLive(t, calm)
}

// TestIgnoredTerm: a hog that ignores SIGTERM is killed as soon as one that does not.
func TestIgnoredTerm(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: one(growing(gibibyte, "-ignore-term"))})
	d := startDaemon(t, n, below("512Mi"), hog)
	hog.press()
	hog.mustDie()
	rec := d.ended(hog)
	killed(t, &rec, hog)
	if after := rec.LastGone.Sub(rec.SignalSent); after > soon {
		t.Errorf("gone %v after the signal; want it soon", after)
	}
}
