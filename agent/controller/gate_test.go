package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/plan"
)

// A machine that was registered again under another name has two Nodes, one of them dead. It is not switched off.
func TestSharedUUID(t *testing.T) {
	for name, uuid := range map[string]string{"same": machine, "order of SMBIOS": "674523a1-ab89-efcd-a123-456789abcdef"} {
		synctest.Test(t, func(t *testing.T) {
			d := &faultyDevice{uuid: machine, status: func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }}
			renamed := healthyNode("n2")
			renamed.Status.NodeInfo.SystemUUID = uuid
			r, api := testReconciler(t, d, interceptor.Funcs{}, deadNode(), renamed, healthyNode("n3"),
				leaseOf("n1", time.Now().Add(-time.Hour)))
			reconcileFor(t, r, 30*time.Minute)
			if n := d.called("off"); n != 0 {
				t.Errorf("%s: off was sent %d times; want never", name, n)
			}
			if nf := getFence(t, api); nf == nil || nf.State.Target.SystemUUID != "" || nf.State.Proof != nil {
				t.Errorf("%s: fence = %+v; want one without a UUID", name, nf)
			}
		})
	}
}

// The other Node may appear after the fence began.
func TestSharedUUIDLater(t *testing.T) {
	renewed := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	renamed := healthyNode("n2")
	renamed.Status.NodeInfo.SystemUUID = machine
	for identity, reason := range map[fence.IdentityCheck]string{fence.CheckUUID: "same systemUUID", fence.CheckNone: ""} {
		r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), renamed, leaseOf("n1", renewed),
			runningFence(func(s *fence.State) { s.Intent = &fence.Intent{ID: "1"} }))
		r.saved("n1").resourceVersion = getFence(t, api).ResourceVersion
		o := offOrder("1")
		o.lease, o.method.Identity = renewed, identity
		err := r.checkAct(t.Context(), o)
		if reason == "" && err != nil || reason != "" && (err == nil || !strings.Contains(err.Error(), reason)) {
			t.Errorf("identity=%s: checkAct = %v; want %q", identity, err, reason)
		}
	}
}

// The record of a node's earlier fence is taken over by the next, so that its deletion does not refill the rate.
func TestRecordIsInherited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := time.Now().Add(time.Hour)
		earlier := runningFence(func(s *fence.State) {
			s.Target.UID = "an earlier Node"
			s.FinishedAt, s.Result = metav1.NowMicro(), fence.Recovered
			s.Storm.RateFull = metav1.NewMicroTime(full)
		})
		r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), healthyNode("n2"), earlier,
			leaseOf("n1", time.Now().Add(-time.Hour)))
		reconcileFor(t, r, 5*time.Minute)
		nf := getFence(t, api)
		if nf == nil || nf.State.Target.UID != nodeUID || !nf.State.Storm.RateFull.Time.Equal(full) {
			t.Fatalf("fence = %+v; want a new one with the rate of the earlier one, full at %v", nf, full)
		}
		if c := meta.FindStatusCondition(nf.State.Conditions, fence.ConditionStormHold); c == nil || c.Reason != fence.ReasonRate {
			t.Errorf("conditions = %+v; want StormHold because of the rate", nf.State.Conditions)
		}
	})
}

// A finished NodeFence is deleted after history_ttl, but not while the storm policy needs it.
func TestExpiry(t *testing.T) {
	finished := time.Now().Truncate(time.Microsecond)
	for needed, want := range map[time.Duration]time.Duration{0: time.Hour, 30 * time.Minute: time.Hour, 2 * time.Hour: 2 * time.Hour} {
		nf := runningFence(func(s *fence.State) {
			s.FinishedAt = metav1.NewMicroTime(finished)
			s.Storm.Until = metav1.NewMicroTime(finished.Add(needed))
		})
		if got := expiry(nf, &plan.Config{HistoryTTL: time.Hour}); !got.Equal(finished.Add(want)) {
			t.Errorf("needed for %v: expiry = %v; want %v", needed, got.Sub(finished), want)
		}
	}
}

// Nodes in repair are among the members, because the majority of the control plane is one of all its nodes.
func TestMembers(t *testing.T) {
	renewed := time.Now()
	repair := healthyNode("n2")
	repair.Labels = map[string]string{labelExclude: "true"}
	got := members([]corev1.Node{*healthyNode("n1"), *repair}, map[string]time.Time{"n1": renewed})
	if len(got) != 2 || got[0].Excluded || !got[1].Excluded {
		t.Fatalf("members = %+v; want two, n2 excluded", got)
	}
	if l := got[0].Lease; !l.Known || !l.Found || !l.Renewed.Equal(renewed) {
		t.Errorf("Lease of n1 = %+v; want renewed at %v", l, renewed)
	}
	if l := got[1].Lease; !l.Known || l.Found {
		t.Errorf("Lease of n2 = %+v; want none", l)
	}
}

// A person's confirmation overrides the storm policy, not what the controller itself closes the gate for.
func TestGateOverride(t *testing.T) {
	for reason, want := range map[string]bool{
		fence.ReasonTooManyUnhealthy: true, reasonOwnNode: false, reasonExcluded: false, reasonDryRun: false, reasonUnknown: false,
	} {
		node := deadNode()
		var functions interceptor.Funcs
		r, _ := testReconciler(t, nil, functions, node, healthyNode("n2"))
		r.config.config.Policy.Percentage = 0
		switch reason {
		case reasonOwnNode:
			r.ownNode = "n1"
		case reasonExcluded:
			node.Labels = map[string]string{labelExclude: "true"}
		case reasonDryRun:
			r.config.config.Policy.Enforce = false
		case reasonUnknown:
			functions.List = func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
				return errors.New("no answer")
			}
			r, _ = testReconciler(t, nil, functions, node)
		}
		config, _ := r.config.current()
		p := &pass{reconciler: r, name: "n1", config: &config, node: node}
		if g := p.gate(t.Context(), &fence.State{Node: "n1"}); g.Open || g.Reason != reason || g.Overridable != want {
			t.Errorf("gate = %+v; want %s, overridable: %t", g, reason, want)
		}
	}
}
