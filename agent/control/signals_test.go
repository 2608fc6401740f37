package control

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

func value(t *testing.T, text string) signal.Value {
	t.Helper()
	v, err := signal.ParseThreshold(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func number[T any](n T) *T { return &n }

func TestSignalStatuses(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const gib = 1 << 30
	p := &evict.Policy{Thresholds: []evict.Threshold{
		{Threshold: signal.Threshold{Signal: signal.MemoryAvailable, Value: value(t, "1Gi"), MinReclaim: value(t, "50%")}},
		{Threshold: signal.Threshold{Signal: signal.NodeFsAvailable, Value: value(t, "10%")}},
		{Threshold: signal.Threshold{Signal: signal.MemoryAvailable, Value: value(t, "25%"), Grace: 90 * time.Second}},
		{Threshold: signal.Threshold{Signal: signal.AllocatableMemoryAvailable, Value: value(t, "1Gi")}, Derived: true},
	}}
	observed := signal.Observations{
		signal.MemoryAvailable: {Status: signal.Observed, Available: -5, Capacity: 10 * gib, Time: now.Add(-250 * time.Millisecond)},
		signal.NodeFsAvailable: {Status: signal.Unreadable, Available: 7, Capacity: 7, Time: now.Add(-time.Second), Err: errors.New("statfs: i/o error")},
		signal.PIDAvailable:    {Status: signal.Observed, Available: 3, Capacity: 9},
	}
	hard, soft := evict.ThresholdKey{Signal: signal.MemoryAvailable}, evict.ThresholdKey{Signal: signal.MemoryAvailable, Soft: true}
	state := &evict.State{Timers: []evict.Timer{
		{Threshold: hard, Since: now.Add(-time.Second)},
		{Threshold: soft, Since: now.Add(-2 * time.Minute), Active: true},
	}}
	got := SignalStatuses(p, observed, state, []evict.ThresholdKey{hard}, now)
	if len(got) != int(signal.Count) {
		t.Fatalf("SignalStatuses() has %d signals; want %d", len(got), signal.Count)
	}
	want := map[signal.Signal]SignalStatus{
		signal.MemoryAvailable: {
			Signal: signal.MemoryAvailable, Status: Observed, Available: number[int64](-5), Capacity: number[int64](10 * gib), AgeSeconds: number(0.25),
			Thresholds: List[ThresholdStatus]{
				{Value: "1Gi", Quantity: number[int64](gib), MinReclaim: number[int64](5 * gib), Met: true, Since: now.Add(-time.Second), Waiting: true},
				{Value: "25%", Quantity: number[int64](5 * gib / 2), Soft: true, GraceSeconds: 90, MinReclaim: number[int64](0), Met: true, Since: now.Add(-2 * time.Minute), Past: true},
			},
		},
		signal.AllocatableMemoryAvailable: {
			Signal: signal.AllocatableMemoryAvailable, Status: NotObserved,
			Thresholds: List[ThresholdStatus]{{Value: "1Gi", Quantity: number[int64](gib), Derived: true, MinReclaim: number[int64](0)}},
		},
		signal.NodeFsAvailable: {
			Signal: signal.NodeFsAvailable, Status: Unreadable, AgeSeconds: number(1.0), Error: "statfs: i/o error",
			Thresholds: List[ThresholdStatus]{{Value: "10%", MinReclaim: number[int64](0)}},
		},
		signal.PIDAvailable: {Signal: signal.PIDAvailable, Status: Observed, Available: number[int64](3), Capacity: number[int64](9)},
	}
	for _, s := range signal.All() {
		w, ok := want[s]
		if !ok {
			w = SignalStatus{Signal: s, Status: NotObserved}
		}
		if diff := cmp.Diff(w, got[s]); diff != "" {
			t.Errorf("SignalStatuses()[%v] differs (-want +got):\n%s", s, diff)
		}
	}
}

// TestAddDryRun checks that Available stays as it was read.
func TestAddDryRun(t *testing.T) {
	observed := signal.Observations{
		signal.MemoryAvailable: {Status: signal.Observed, Available: 100, Capacity: 1000},
		signal.NodeFsAvailable: {Status: signal.Unreadable},
	}
	all := SignalStatuses(&evict.Policy{}, observed, &evict.State{}, nil, time.Now())
	AddDryRun(all, [signal.Count]int64{signal.MemoryAvailable: 70, signal.NodeFsAvailable: 70, signal.PIDAvailable: 70})
	for _, s := range all {
		want := int64(0)
		if s.Signal == signal.MemoryAvailable {
			want = 70
		}
		if s.DryRunAdds != want {
			t.Errorf("%v: DryRunAdds = %d; want %d", s.Signal, s.DryRunAdds, want)
		}
	}
	if m := all[signal.MemoryAvailable]; *m.Available != 100 {
		t.Errorf("memory.available = %d; want 100, as it was read", *m.Available)
	}
}

func TestRankReason(t *testing.T) {
	const mib = 1 << 20
	memory := []evict.Ranked{
		{Pod: "a/one", UID: "1", OverRequest: true, Usage: 3072 * mib},
		{Pod: "a/two", UID: "2", OverRequest: true, Usage: 2048 * mib, Request: 512 * mib},
		{Pod: "a/three", UID: "3", OverRequest: true, Priority: 5, Usage: 4096 * mib, Request: 512 * mib},
		{Pod: "a/four", UID: "4", Priority: 5, Usage: 100 * mib, Request: 512 * mib},
		{Pod: "a/five", UID: "5", Priority: 5, Usage: 100 * mib, Request: 512 * mib},
		{Pod: "a/six", UID: "6", Priority: 5, NoStats: true, Request: 512 * mib},
	}
	pids := []evict.Ranked{{Pod: "a/one", Usage: 400}, {Pod: "a/two", Usage: 30}, {Pod: "a/three", Usage: 500, Priority: 1}}
	inodes := []evict.Ranked{{Pod: "a/one", Usage: 400, OverRequest: true}, {Pod: "a/two", Usage: 30, OverRequest: true}, {Pod: "a/three"}}
	tests := []struct {
		signal signal.Signal
		ranked []evict.Ranked
		want   []string
	}{
		{signal.MemoryAvailable, memory, []string{
			"uses 3Gi and has no request, priority 0",
			"uses 2Gi, 1.5Gi above its request of 512Mi, priority 0; after a/one, which uses more in relation to its request",
			"uses 4Gi, 3.5Gi above its request of 512Mi, priority 5; after a/two, which has a lower priority",
			"uses 100Mi, within its request of 512Mi, priority 5; after a/three, which exceeds its request",
			"uses 100Mi, within its request of 512Mi, priority 5; after a/four, which is equal and has the lower UID",
			"its usage is unknown, priority 5; after a/five, which has a known usage",
		}},
		{signal.PIDAvailable, pids, []string{
			"runs 400 tasks, priority 0",
			"runs 30 tasks, priority 0; after a/one, which runs more",
			"runs 500 tasks, priority 1; after a/two, which has a lower priority",
		}},
		{signal.NodeFsInodesFree, inodes, []string{
			"uses 400 inodes, priority 0",
			"uses 30 inodes, priority 0; after a/one, which uses more",
			"uses 0 inodes, priority 0; after a/two, which uses inodes",
		}},
	}
	for _, tt := range tests {
		for i, want := range tt.want {
			if got := RankReason(tt.signal, tt.ranked, i); got != want {
				t.Errorf("RankReason(%v, %d) = %q; want %q", tt.signal, i, got, want)
			}
		}
	}
}

func TestAmount(t *testing.T) {
	tests := []struct {
		signal signal.Signal
		n      int64
		want   string
	}{
		{signal.MemoryAvailable, 0, "0"},
		{signal.MemoryAvailable, 1023, "1023"},
		{signal.MemoryAvailable, 1024, "1Ki"},
		{signal.MemoryAvailable, 1536, "1.5Ki"},
		{signal.MemoryAvailable, 512 << 20, "512Mi"},
		{signal.MemoryAvailable, 1000 << 20, "0.98Gi"},
		{signal.MemoryAvailable, 1<<30 - 1, "1Gi"},
		{signal.MemoryAvailable, 20*1<<30 + 1<<27, "20.1Gi"},
		{signal.MemoryAvailable, 10 << 30, "10Gi"},
		{signal.MemoryAvailable, 100 << 30, "100Gi"},
		{signal.NodeFsAvailable, 1<<63 - 1, "8Ei"},
		{signal.MemoryAvailable, -1 << 63, "-8Ei"},
		{signal.MemoryAvailable, -3 << 20, "-3Mi"},
		{signal.NodeFsInodesFree, 123456789, "123456789"},
		{signal.PIDAvailable, -4, "-4"},
	}
	for _, tt := range tests {
		if got := Amount(tt.signal, tt.n); got != tt.want {
			t.Errorf("Amount(%v, %d) = %q; want %q", tt.signal, tt.n, got, tt.want)
		}
	}
}
