package act

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
)

// slowRuntime is a runtime whose containers take some time to stop, at most their grace
// period.
type slowRuntime struct {
	mu    sync.Mutex
	began time.Time
	takes map[string]time.Duration
	calls []call
}

type call struct {
	at    time.Duration
	id    string
	grace time.Duration
}

func (s *slowRuntime) StopContainer(ctx context.Context, id string, grace time.Duration) error {
	s.mu.Lock()
	s.calls = append(s.calls, call{time.Since(s.began), id, grace})
	s.mu.Unlock()
	select {
	case <-time.After(min(s.takes[id], grace)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowRuntime) StopSandbox(context.Context, string) error { return nil }

func TestStopStages(t *testing.T) {
	const long = time.Hour
	for _, tt := range []struct {
		name   string
		stages []StopStage
		takes  map[string]time.Duration
		want   []string
	}{
		{"all at once", nil, map[string]time.Duration{"a": long, "b": 1, "c": 1}, []string{"0s: a 30s", "0s: b 30s", "0s: c 30s"}},
		{"sidecar after the others have ended", []StopStage{{IDs: []string{"a", "b"}}, {IDs: []string{"c"}, StartBy: 30 * time.Second}},
			map[string]time.Duration{"a": 5 * time.Second, "b": 8500 * time.Millisecond, "c": long},
			[]string{"0s: a 30s", "0s: b 30s", "8.5s: c 21s"}},
		{"sidecar after the others were killed", []StopStage{{IDs: []string{"a", "b"}}, {IDs: []string{"c"}, StartBy: 30 * time.Second}},
			map[string]time.Duration{"a": long, "b": 1, "c": long},
			[]string{"0s: a 30s", "0s: b 30s", "30s: c 1s"}},
		{"one after the other", []StopStage{{IDs: []string{"c"}}, {IDs: []string{"b"}, StartBy: 10 * time.Second}, {IDs: []string{"a"}, StartBy: 20 * time.Second}},
			map[string]time.Duration{"a": long, "b": 2 * time.Second, "c": long},
			[]string{"0s: c 30s", "10s: b 20s", "20s: a 10s"}},
		{"earlier if the stage before has ended", []StopStage{{IDs: []string{"c"}}, {IDs: []string{"b"}, StartBy: 10 * time.Second}, {IDs: []string{"a"}, StartBy: 20 * time.Second}},
			map[string]time.Duration{"a": long, "b": 2 * time.Second, "c": 3 * time.Second},
			[]string{"0s: c 30s", "3s: b 27s", "5s: a 25s"}},
		{"container without a stage", []StopStage{{IDs: []string{"c"}}, {IDs: []string{"b"}, StartBy: long}},
			map[string]time.Duration{"a": 4 * time.Second, "b": 1, "c": 1},
			[]string{"0s: a 30s", "0s: c 30s", "4s: b 26s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				runtime := &slowRuntime{began: time.Now(), takes: tt.takes}
				var reports progressLog
				k := NewKiller(&cgroup.Hierarchy{}, "/proc", runtime, reports.record)
				job := Job{Containers: []evict.RunningContainer{{ID: "a"}, {ID: "b"}, {ID: "c"}}, StopStages: tt.stages}
				job.Order.UID, job.Order.Grace = "u", 30*time.Second
				k.Evict(t.Context(), job)
				k.Wait()
				// Calls at the same time come in any order.
				slices.SortStableFunc(runtime.calls, func(a, b call) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id)) })
				var got []string
				for _, c := range runtime.calls {
					got = append(got, fmt.Sprintf("%v: %s %v", c.at, c.id, c.grace))
				}
				if diff := gocmp.Diff(tt.want, got); diff != "" {
					t.Errorf("calls differ (-want +got):\n%s", diff)
				}
				if stages := reports.stages(); !slices.Contains(stages, LastGone) {
					t.Errorf("stages = %v; want LastGone among them", stages)
				}
			})
		})
	}
}

// A pod whose grace period is ended between two stages is killed as a whole.
func TestEscalateDuringStopStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runtime := &slowRuntime{began: time.Now(), takes: map[string]time.Duration{"a": time.Hour, "b": time.Hour}}
		var reports progressLog
		k := NewKiller(&cgroup.Hierarchy{}, "/proc", runtime, reports.record)
		job := Job{Containers: []evict.RunningContainer{{ID: "a"}, {ID: "b"}}, StopStages: []StopStage{{IDs: []string{"a"}}, {IDs: []string{"b"}, StartBy: 20 * time.Second}}}
		job.Order.UID, job.Order.Grace = "u", 30*time.Second
		k.Evict(t.Context(), job)
		time.Sleep(5 * time.Second)
		k.Escalate(t.Context(), job)
		k.Wait()
		if took := time.Since(runtime.began); took != 5*time.Second {
			t.Errorf("ended after %v; want 5s", took)
		}
		if stages := reports.stages(); !slices.Contains(stages, LastGone) {
			t.Errorf("stages = %v; want LastGone among them", stages)
		}
	})
}
