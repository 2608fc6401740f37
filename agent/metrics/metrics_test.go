package metrics

import (
	"bytes"
	"errors"
	"flag"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/signal"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var discard = slog.New(slog.DiscardHandler)

func newMetrics() *Metrics {
	return New(Build{Version: "v1.2.3", Revision: "abcdef", GoVersion: "go1.26"}, func() uint64 { return 3 })
}

// text returns evictd's own metrics in the text format.
func text(t *testing.T, m *Metrics) string {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatalf("gather: %v", err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), namespace+"_") {
			if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, diff)
	}
}

// TestAtStart checks that every series with a known label exists, and none for a
// value that was not read.
func TestAtStart(t *testing.T) { golden(t, "start.prom", text(t, newMetrics())) }

func TestInUse(t *testing.T) {
	m := newMetrics()
	use(t, m)
	golden(t, "use.prom", text(t, m))
}

func threshold(t *testing.T, s signal.Signal, value string, grace time.Duration, derived bool) evict.Threshold {
	t.Helper()
	v, err := signal.ParseThreshold(value)
	if err != nil {
		t.Fatal(err)
	}
	return evict.Threshold{Threshold: signal.Threshold{Signal: s, Value: v, Grace: grace}, Derived: derived}
}

// use sets every metric.
func use(t *testing.T, m *Metrics) {
	t.Helper()
	now := time.Unix(1767323045, 500e6)
	m.Policy(&evict.Policy{Thresholds: []evict.Threshold{
		threshold(t, signal.MemoryAvailable, "100Mi", 0, false),
		threshold(t, signal.MemoryAvailable, "1Gi", time.Minute, false),
		threshold(t, signal.AllocatableMemoryAvailable, "50Mi", 0, false), // two hard thresholds of one signal
		threshold(t, signal.AllocatableMemoryAvailable, "100Mi", 0, true),
		threshold(t, signal.NodeFsAvailable, "10%", 0, false), // unreadable: a percentage of an unknown capacity
		threshold(t, signal.NodeFsInodesFree, "25%", 0, false),
		threshold(t, signal.PIDAvailable, "10", 0, false), // not observed: an amount all the same
	}})
	m.Observed(signal.Observations{
		signal.MemoryAvailable:  {Status: signal.Observed, Available: -1 << 20, Capacity: 8 << 30, Time: now},
		signal.NodeFsAvailable:  {Status: signal.Unreadable, Available: 1, Capacity: 2, Err: errors.New("i/o error")},
		signal.NodeFsInodesFree: {Status: signal.Observed, Available: 1000, Capacity: 4000, Time: now},
		signal.ImageFsAvailable: {Status: signal.Observed, Available: 0, Capacity: 0},
	})
	m.Unaccounted(-4096)
	m.Stepped(
		&evict.State{Backoffs: []evict.Backoff{{Signal: signal.MemoryAvailable, Delay: time.Second}, {Signal: signal.PIDAvailable, PoorReturns: 1}}},
		&evict.Orders{Conditions: []signal.Condition{signal.MemoryPressure}}, 300*time.Microsecond)
	killed := &evict.Record{
		Cause: "memory.available", Hard: true, CrossingSeen: now, SignalSent: now.Add(900 * time.Microsecond), LastGone: now.Add(50 * time.Millisecond),
		RankingAge: 20 * time.Millisecond, Freed: 3 << 30, Overshoot: 5 << 20, Result: evict.ResultKilled,
	}
	m.Evicted(killed)
	dryRun := *killed
	dryRun.DryRun, dryRun.Result = true, evict.ResultDryRun
	m.Evicted(&dryRun)
	m.Evicted(&evict.Record{Cause: "memory.available", Hard: true, Result: evict.ResultPending})
	m.Evicted(&evict.Record{Cause: "memory.available", Hard: true, CrossingSeen: now, Result: evict.ResultFailed})
	m.Evicted(&evict.Record{Cause: "memory.available", Hard: true, CrossingSeen: now, Result: evict.ResultEnded})
	m.Evicted(&evict.Record{Cause: "nodefs.available", SignalSent: now, LastGone: now.Add(time.Second), Freed: 9, Result: evict.ResultStopped})
	m.Evicted(&evict.Record{Cause: evict.CausePodLimit, Hard: true, SignalSent: now, Result: evict.ResultStuck})
	m.Records(5)
	m.Pods(12, 9)
	m.DryRun(true)
	m.RuntimeConnected(true)
	m.RuntimeCallFailed()
	m.ConfigLoaded(now)
	m.ConfigRejected()
	m.Notification(func() Notification {
		return Notification{
			Lanes:   []signal.LaneStatus{{Name: "bpf", State: signal.LaneDegraded, Alarms: 3, Missed: 1, Reopened: 2}, {Name: "poll", State: signal.LaneUp}},
			Sampler: &Sampler{Ticks: 1000, Lost: 1, Period: 200 * time.Microsecond, RunTime: time.Millisecond},
			Reclaim: &Reclaim{KswapdWakes: 4, Direct: 5, DirectTime: 6 * time.Second, ThrottleTime: 7 * time.Second},
			Limits:  &Limits{Max: 8, OOM: 9, OOMKills: 10},
			Alarms:  map[string]uint64{"struck": 11, "not_confirmed": 12}, Readings: map[string]uint64{"sampler": 13, "files": 14},
			Stalls: []Stall{{"memory", "some", 2 * time.Second}, {"memory", "full", time.Second}, {"cpu", "some", time.Minute}},
		}
	})
	m.Filesystems(func() []evict.FilesystemStatus {
		return []evict.FilesystemStatus{{Name: "nodefs", Readable: true, At: now}, {Name: "imagefs", ReadOnly: true, At: now.Add(-time.Minute)}, {Name: "containerfs"}}
	})
	m.Kubernetes(func() Kubernetes {
		return Kubernetes{
			Connected: true, FactsAsOf: time.Now().Add(time.Hour), FactsRefused: 1, // an age of 0 in the golden file
			Answered: 2, Unanswered: 3, OldestUnanswered: 4500 * time.Millisecond, Forbidden: 5, Orders: 6, Revived: 7, Rejected: 8, TimedOut: 9,
			Answers: map[string]uint64{"reported": 10, "asserted": 11}, Undone: 11, FencesSet: 12, FencesChanged: 13, FencesLifted: 14, FencesUnlifted: 15, FencesFailed: 16,
			ConditionsReported: map[string]bool{"MemoryPressure": true, "DiskPressure": false}, ConditionsUnwritten: 17 * time.Second,
		}
	})
	m.SelfFencing(func() SelfFencing {
		return SelfFencing{
			Configured: true, Armed: true, Timeout: time.Minute, SinceFed: 18 * time.Second, SinceAccepted: 90 * time.Second,
			FedBecause: map[string]bool{"advert": false, "peers": true, "nothing": false}, Peers: true, PeersListAge: 19 * time.Minute,
		}
	})
	m.Reclaimed(&evict.ReclaimReport{Kind: evict.ReclaimImages, Removed: []string{"a", "b", "c"}, Freed: 7 << 20, Duration: 1500 * time.Millisecond})
	m.Reclaimed(&evict.ReclaimReport{Kind: evict.ReclaimContainers, Signal: signal.NodeFsInodesFree, Removed: []string{"a", "b"}, Freed: 100, Duration: time.Second, DryRun: true})
	m.KernelOOMKilled(true)
	m.KernelOOMKilled(false)
	m.KernelOOMKilled(false)
	m.Shutdown(&shutdown.State{Began: now, Ended: now.Add(5 * time.Second)}, true)
	clean := false
	m.LastShutdown(shutdown.LastBoot{Clean: &clean, Reason: shutdown.LastPanic})
	m.Probed("cgroup.kill", true)
	m.Probed("psi triggers", false)
}

// Without a watchdog there are no series of self-fencing, without one that is armed none of its times, and of a
// reason no more than one is set.
func TestSelfFencing(t *testing.T) {
	for _, tt := range []struct {
		state  SelfFencing
		series int
	}{
		{SelfFencing{SinceFed: -1, SinceAccepted: -1, PeersListAge: -1}, 0},
		{SelfFencing{Configured: true, SinceFed: -1, SinceAccepted: -1, PeersListAge: -1}, 2},
		{SelfFencing{Configured: true, SinceFed: -1, Peers: true, PeersListAge: -1}, 3},
		{SelfFencing{Configured: true, Armed: true, Peers: true}, 6},
	} {
		m := newMetrics()
		m.SelfFencing(func() SelfFencing { return tt.state })
		if got := strings.Count(text(t, m), "\nevictd_selffence_"); got != tt.series {
			t.Errorf("%+v: %d series; want %d", tt.state, got, tt.series)
		}
	}
}

// TestSteppedResets checks that past conditions and futility go back to 0.
func TestSteppedResets(t *testing.T) {
	m := newMetrics()
	before := text(t, m)
	m.Stepped(&evict.State{Backoffs: []evict.Backoff{{Signal: signal.PIDAvailable, Delay: 1}}}, &evict.Orders{Conditions: []signal.Condition{signal.PIDPressure}}, 0)
	if got := text(t, m); !strings.Contains(got, `evictd_futile{signal="pid.available"} 1`) || !strings.Contains(got, `evictd_node_condition{condition="PIDPressure"} 1`) {
		t.Fatalf("under PID pressure the metrics are:\n%s", got)
	}
	m.Stepped(&evict.State{Backoffs: []evict.Backoff{{Signal: signal.NodeFsAvailable, NoVictim: true}}}, &evict.Orders{}, 0)
	if got := text(t, m); !strings.Contains(got, `evictd_futile{signal="nodefs.available"} 1`) {
		t.Errorf("with nodefs futile the metrics are:\n%s", got)
	}
	m.Stepped(&evict.State{}, &evict.Orders{}, 0)
	keep := func(s string) string {
		var kept []string
		for line := range strings.Lines(s) {
			if strings.Contains(line, "_futile{") || strings.Contains(line, "_node_condition{") {
				kept = append(kept, line)
			}
		}
		return strings.Join(kept, "")
	}
	if diff := cmp.Diff(keep(before), keep(text(t, m))); diff != "" {
		t.Errorf("after the pressure the metrics differ from the start (-want +got):\n%s", diff)
	}
}

func TestLint(t *testing.T) {
	m := newMetrics()
	use(t, m)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestScrape checks that the handler also serves metrics of the process and the Go
// runtime.
func TestScrape(t *testing.T) {
	m := newMetrics()
	w := httptest.NewRecorder()
	m.Handler(discard).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"evictd_build_info{", "process_resident_memory_bytes ", "process_open_fds ", "go_goroutines "} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("the scrape has no %q", want)
		}
	}
}

// TestScrapeDuringUse is for the race detector.
func TestScrapeDuringUse(t *testing.T) {
	m := newMetrics()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10 {
			use(t, m)
		}
	}()
	for range 10 {
		text(t, m)
	}
	<-done
}

// TestSteppedAllocatesNothing checks that an iteration of the loop does not
// allocate, so that it causes no garbage collection. Observed allocates one object,
// because a scrape may still use the last one.
func TestSteppedAllocatesNothing(t *testing.T) {
	m := newMetrics()
	state, orders := &evict.State{Backoffs: []evict.Backoff{{Delay: 1}}}, &evict.Orders{Conditions: []signal.Condition{signal.DiskPressure}}
	if n := testing.AllocsPerRun(100, func() { m.Stepped(state, orders, time.Millisecond) }); n != 0 {
		t.Errorf("Stepped() allocates %v objects; want 0", n)
	}
	var o signal.Observations
	if n := testing.AllocsPerRun(100, func() { m.Observed(o) }); n > 1 {
		t.Errorf("Observed() allocates %v objects; want 1", n)
	}
}
