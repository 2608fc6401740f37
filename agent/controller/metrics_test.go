package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

func TestMetrics(t *testing.T) {
	nf := runningFence(func(s *fence.State) {
		s.Conditions = []metav1.Condition{
			{Type: fence.ConditionStormHold, Status: metav1.ConditionTrue, Reason: fence.ReasonTooManyUnhealthy},
			{Type: fence.ConditionIdentityMismatch, Status: metav1.ConditionTrue, Reason: "OtherMachine"},
			{Type: fence.ConditionGaveUp, Status: metav1.ConditionFalse, Reason: "Ended"},
		}
	})
	ended := runningFence(func(s *fence.State) {
		s.FinishedAt = metav1.NowMicro()
		s.Conditions = []metav1.Condition{{Type: fence.ConditionGaveUp, Status: metav1.ConditionTrue, Reason: "Retries"}}
	})
	ended.Name = "node-fence-n2"
	_, api := testReconciler(t, &faultyDevice{}, interceptor.Funcs{}, nf, ended)
	m := newMetrics(api)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	want := `
# HELP evictd_fence_conditions NodeFences that have not ended, by true condition.
# TYPE evictd_fence_conditions gauge
evictd_fence_conditions{condition="FenceVerificationFailed"} 0
evictd_fence_conditions{condition="GaveUp"} 0
evictd_fence_conditions{condition="IdentityMismatch"} 1
evictd_fence_conditions{condition="KdumpWait"} 0
evictd_fence_conditions{condition="NodeDidNotReturn"} 0
evictd_fence_conditions{condition="NotDrilled"} 0
evictd_fence_conditions{condition="ProofLost"} 0
evictd_fence_conditions{condition="ReleaseStuck"} 0
evictd_fence_conditions{condition="StormHold"} 1
evictd_fence_conditions{condition="Waiting"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "evictd_fence_conditions"); err != nil {
		t.Error(err)
	}
	held := `
# HELP evictd_fence_held NodeFences that may not act now.
# TYPE evictd_fence_held gauge
evictd_fence_held{reason="ControlPlane"} 0
evictd_fence_held{reason="Cooldown"} 0
evictd_fence_held{reason="DryRun"} 0
evictd_fence_held{reason="Excluded"} 0
evictd_fence_held{reason="FencesUnknown"} 0
evictd_fence_held{reason="MaxConcurrent"} 0
evictd_fence_held{reason="NoReadyNode"} 0
evictd_fence_held{reason="NodeUnknown"} 0
evictd_fence_held{reason="OwnNode"} 0
evictd_fence_held{reason="Paused"} 0
evictd_fence_held{reason="Rate"} 0
evictd_fence_held{reason="RemediatorLease"} 0
evictd_fence_held{reason="RemediatorObject"} 0
evictd_fence_held{reason="RemediatorTaint"} 0
evictd_fence_held{reason="TooManyUnhealthy"} 1
evictd_fence_held{reason="ZoneDisrupted"} 0
evictd_fence_held{reason="ZoneNotReady"} 0
evictd_fence_held{reason="ZoneRate"} 0
evictd_fence_held{reason="ZoneUnhealthy"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(held), "evictd_fence_held"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(m, "evictd_fence_fences"); n != len(allSteps)*len(allStatuses) {
		t.Errorf("%d series of evictd_fence_fences; want %d", n, len(allSteps)*len(allStatuses))
	}
	// Only off and on run in Jobs.
	if n, want := testutil.CollectAndCount(m, "evictd_fence_acts_total"), (len(allActions)+2)*len(allOutcomes); n != want {
		t.Errorf("%d series of evictd_fence_acts_total; want %d", n, want)
	}
	if n := testutil.CollectAndCount(m, "evictd_fence_kdump_datagrams_total"); n != 4 {
		t.Errorf("%d series of evictd_fence_kdump_datagrams_total; want 4", n)
	}
}

// TestActMetrics: an ended act is counted by where it was executed.
func TestActMetrics(t *testing.T) {
	m := newMetrics(nil)
	m.act(fence.Off, "", fence.Succeeded).Inc()
	m.act(fence.Off, fence.InJob, fence.Unknown).Add(2)
	m.act(fence.Cordon, "", fence.Refused).Inc()
	for executor, want := range map[string]float64{"local": 2, "job": 2} {
		var n float64
		for _, action := range allActions {
			for _, outcome := range allOutcomes {
				if executor == "local" || !action.OnObjects() {
					n += testutil.ToFloat64(m.acts.WithLabelValues(string(action), executor, string(outcome)))
				}
			}
		}
		if n != want {
			t.Errorf("acts of executor %s = %v; want %v", executor, n, want)
		}
	}
}
