package cold

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// recorder collects reports.
type recorder struct{ reports []Report }

func (r *recorder) take(got Report) { r.reports = append(r.reports, got) }

func reclaimer(plan func() Plan) (*Reclaimer, *recorder) {
	heard := &recorder{}
	return New(Options{Hierarchy: &cgroup.Hierarchy{}, Plan: plan, Done: heard.take, Log: slog.New(slog.DiscardHandler)}), heard
}

// Each pod is asked once in a while, and nobody once there is enough.
func TestRoundAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := Plan{Short: 1 << 30, Pods: []Pod{{UID: "a"}, {UID: "b"}}}
		short := plan.Short
		r, heard := reclaimer(func() Plan { return Plan{Short: short} })
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 2}, {0, 2}, {again - 1, 2}, {1, 4}} {
			time.Sleep(step.wait)
			if err := r.round(t.Context(), plan); err != nil || len(heard.reports) != step.want {
				t.Errorf("%d reports, %v; want %d", len(heard.reports), err, step.want)
			}
		}
		time.Sleep(again)
		short = 0
		if err := r.round(t.Context(), plan); err != nil || len(heard.reports) != 5 {
			t.Errorf("%d reports, %v; want the second pod not to be asked when there is enough", len(heard.reports), err)
		}
	})
}

// A container that has gone is no error, and a kernel that can't reclaim ends it all.
func TestRoundEnds(t *testing.T) {
	h, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	plan := Plan{Short: 1 << 30, Pods: []Pod{{UID: "a", Groups: []Group{{Path: "/evictd-test-none", ID: 7}}}}}
	r, heard := reclaimer(func() Plan { return plan })
	r.o.Hierarchy = h
	if err := r.round(t.Context(), plan); err != nil || len(heard.reports) != 1 || heard.reports[0].Err != nil {
		t.Errorf("round() over a container that has gone = %v, %+v; want nothing to be wrong", err, heard.reports)
	}
	if h.Version == cgroup.V2 {
		return // kernel/cgroup shows what this one reclaims
	}
	m, err := cgroup.Of("/proc", 1)
	if err != nil {
		t.Fatal(err)
	}
	at, err := m.Memory(h)
	if err != nil {
		t.Skip("needs to see the cgroup of pid 1: ", err)
	}
	group, err := h.Open(at)
	if err != nil {
		t.Skip("needs to open the cgroup of pid 1: ", err)
	}
	defer group.Close()
	plan.Pods[0].Groups[0] = Group{Path: at, ID: group.ID()}
	clear(r.asked)
	if err := r.round(t.Context(), plan); !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("round() on cgroup v1 = %v; want ErrUnavailable", err)
	}
}
