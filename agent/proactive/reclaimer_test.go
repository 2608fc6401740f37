package proactive

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// recorder records reports.
type recorder struct{ reports []Report }

func (r *recorder) record(got Report) { r.reports = append(r.reports, got) }

func reclaimer(plan func() Plan) (*Reclaimer, *recorder) {
	recorder := &recorder{}
	return New(Options{Hierarchy: &cgroup.Hierarchy{}, Plan: plan, Done: recorder.record, Log: slog.New(slog.DiscardHandler)}), recorder
}

// Memory is reclaimed from each pod once per cooldown, and from none while enough is available.
func TestRoundCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := Plan{Missing: 1 << 30, Pods: []Pod{{UID: "a"}, {UID: "b"}}}
		missing := plan.Missing
		r, recorder := reclaimer(func() Plan { return Plan{Missing: missing} })
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 2}, {0, 2}, {podCooldown - 1, 2}, {1, 4}} {
			time.Sleep(step.wait)
			if err := r.round(t.Context(), plan); err != nil || len(recorder.reports) != step.want {
				t.Errorf("%d reports, %v; want %d", len(recorder.reports), err, step.want)
			}
		}
		time.Sleep(podCooldown)
		missing = 0
		if err := r.round(t.Context(), plan); err != nil || len(recorder.reports) != 5 {
			t.Errorf("%d reports, %v; want 5: the second pod is not needed", len(recorder.reports), err)
		}
	})
}

// A container that is gone is no error. round ends if memory.reclaim is not available.
func TestRoundEnds(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	plan := Plan{Missing: 1 << 30, Pods: []Pod{{UID: "a", Groups: []Group{{Path: "/evictd-test-none", ID: 7}}}}}
	r, recorder := reclaimer(func() Plan { return plan })
	r.o.Hierarchy = h
	if err := r.round(t.Context(), plan); err != nil || len(recorder.reports) != 1 || recorder.reports[0].Err != nil {
		t.Errorf("round() over a container that is gone = %v, %+v; want no error", err, recorder.reports)
	}
	if h.Version == cgroup.V2 {
		return // the tests of kernel/cgroup cover v2
	}
	m, err := cgroup.ReadMembership("/proc", 1)
	if err != nil {
		t.Fatal(err)
	}
	at, err := m.MemoryPath(h)
	if err != nil {
		t.Skip("needs to see the cgroup of pid 1: ", err)
	}
	group, err := h.Open(at)
	if err != nil {
		t.Skip("needs to open the cgroup of pid 1: ", err)
	}
	defer group.Close()
	plan.Pods[0].Groups[0] = Group{Path: at, ID: group.ID()}
	clear(r.attempts)
	if err := r.round(t.Context(), plan); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("round() on cgroup v1 = %v; want ErrUnavailable", err)
	}
}
