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

// byHotPath reports whether the hot path decided the eviction, not an iteration of the loop.
func byHotPath(rec *evict.Record) bool { return strings.Contains(rec.Confirm, "hot path") }

// TestSteadyPodLives: of two BestEffort pods one uses a large, constant amount of memory, the other grows from nothing
// at full speed. At the last reading the constant one was much larger; only the growing one may be killed.
// EVICTD_TEST_ROUNDS is the number of repetitions.
func TestSteadyPodLives(t *testing.T) {
	rounds := 10
	if node.ScaleTimeout(1) > 1 {
		rounds = 3
	}
	if text := os.Getenv("EVICTD_TEST_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil || rounds < 1 {
			t.Fatalf("EVICTD_TEST_ROUNDS is %q; want a positive number", text)
		}
	}
	n := startNode(t, 2*gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(500 * mebibyte))}).waitUsage(500 * mebibyte)
	d := startDaemon(t, n, hardThreshold("512Mi"), bystander)
	hot := 0
	var latency []time.Duration
	for i := range rounds {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: oneContainer(growArgs(2 * gibibyte))})
		d.waitPods(2)
		hog.grow()
		hog.mustDie()
		rec := d.waitRecord(hog)
		checkKilled(t, &rec, hog)
		if byHotPath(&rec) {
			hot++
		}
		latency = append(latency, rec.SignalSent.Sub(rec.CrossingSeen))
		mustLive(t, bystander)
		if t.Failed() {
			t.Fatalf("the bystander survived %d of %d rounds", i, rounds)
		}
		hog.remove()
		d.waitPods(1)
	}
	slices.Sort(latency)
	t.Logf("%d of %d killed by the hot path; from the crossing seen to the first SIGKILL: median %v, longest %v", hot, rounds,
		latency[len(latency)/2], latency[len(latency)-1])
	if hot == 0 {
		t.Error("the hot path killed no hog; want at least one")
	}
}

// TestStoppedDaemon: evictd is stopped during a crossing and continued later. It evicts one pod, although the loop and
// the watchdog both find the crossing.
func TestStoppedDaemon(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(200 * mebibyte))}).waitUsage(200 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(500 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("400Mi"), bystander, hog)
	if err := d.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	hog.grow()
	hog.waitUsage(500 * mebibyte)
	// Longer than the watchdog waits for an iteration of the loop.
	stopped := time.Now()
	eventually(t, "end of the stop", func() bool { return time.Since(stopped) > 3*time.Second })
	mustLive(t, bystander, hog)
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	hog.mustDie()
	d.checkVictims(hog)
	mustLive(t, bystander)
}

// TestContinuousGC: evictd's garbage collector runs continuously, because of its settings and of repeated requests for
// the status. The hog is still detected and killed, and no other pod.
func TestContinuousGC(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(150 * mebibyte))}).waitUsage(150 * mebibyte)
	d := newDaemon(t, n, hardThreshold("400Mi"))
	d.env = []string{"GOGC=1", "GOMEMLIMIT=8MiB"}
	d.start()
	d.waitPods(1)
	// At this rate the kernel's OOM killer follows 0.8 s after the crossing. At full speed it would be 0.2 s, and a Go
	// program that does nothing but collect garbage stops for 0.1 s now and then while other processes use all CPUs.
	rate := strconv.Itoa(512 * mebibyte)
	for i := range 3 {
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: oneContainer(growArgs(gibibyte, "-rate", rate))})
		d.waitPods(2)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = d.client.Status(t.Context()) // an error will fail d.status too
			}
		}()
		hog.grow()
		hog.mustDie()
		close(stop)
		<-stopped
		rec := d.waitRecord(hog)
		checkKilled(t, &rec, hog)
		t.Logf("lane %s, %s: SIGKILL %v after the crossing was seen", rec.Lane, rec.Confirm, rec.SignalSent.Sub(rec.CrossingSeen))
		mustLive(t, bystander)
		hog.remove()
		d.waitPods(1)
	}
}

// TestReloadRearms: after a reload with another threshold, the next hog is killed at that threshold.
func TestReloadRearms(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(64 * mebibyte))}).waitUsage(64 * mebibyte)
	d := startDaemon(t, n, hardThreshold("100Mi"), bystander)
	for i, threshold := range []int64{600, 300, 700} {
		d.configure(hardThreshold(fmt.Sprintf("%dMi", threshold)))
		if s := d.reload(); s.Config.LastReloadError != "" {
			t.Fatalf("reload error = %q; want none", s.Config.LastReloadError)
		}
		// Without a wait, so that a lane that is still armed with the previous threshold would be noticed.
		hog := runPod(t, n, node.PodSpec{Name: fmt.Sprint("hog", i), Containers: oneContainer(growArgs(gibibyte))})
		d.waitPods(2)
		hog.grow()
		hog.mustDie()
		rec := d.waitRecord(hog)
		checkKilled(t, &rec, hog)
		if rec.Threshold != threshold*mebibyte {
			t.Errorf("killed at a threshold of %d MiB; want %d", rec.Threshold/mebibyte, threshold)
		}
		mustLive(t, bystander)
		hog.remove()
		d.waitPods(1)
	}
}

// TestForkingAllocators: a hog that keeps starting children, each of which allocates memory, is killed completely.
func TestForkingAllocators(t *testing.T) {
	n := startNode(t, gibibyte)
	bystander := runPod(t, n, node.PodSpec{Name: "bystander", Containers: oneContainer(holdArgs(100 * mebibyte))}).waitUsage(100 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer([]string{"forks", "-n", "40", "-bytes", fmt.Sprint(16 * mebibyte), "-relay", "5ms"})})
	d := newDaemon(t, n, hardThreshold("512Mi"))
	d.start()
	hog.mustDie()
	d.waitStatus("end of the eviction", func(s *control.Status) bool {
		return len(s.Records) > 0 && s.Records[0].Result != evict.ResultPending
	})
	d.checkVictims(hog)
	mustLive(t, bystander)
}

// TestHogIgnoresSIGTERM: a hog that ignores SIGTERM is killed without delay.
func TestHogIgnoresSIGTERM(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(gibibyte, "-ignore-term"))})
	d := startDaemon(t, n, hardThreshold("512Mi"), hog)
	hog.grow()
	hog.mustDie()
	rec := d.waitRecord(hog)
	checkKilled(t, &rec, hog)
	if after := rec.LastGone.Sub(rec.SignalSent); after > promptLimit {
		t.Errorf("last exit %v after the signal; want at most %v", after, promptLimit)
	}
}
