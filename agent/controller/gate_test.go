package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
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

// The record is not lost either if the next fence can't be created at once.
func TestRecordSurvivesFailedCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, failures := time.Now().Add(time.Hour), 0
		earlier := runningFence(func(s *fence.State) {
			s.Target.UID = "an earlier Node"
			s.FinishedAt, s.Result = metav1.NowMicro(), fence.Recovered
			s.Storm.RateFull = metav1.NewMicroTime(full)
		})
		r, api := testReconciler(t, nil, interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
				if _, ok := o.(*nodefence.NodeFence); ok && failures < 2 {
					failures++
					return unavailable()
				}
				return c.Create(ctx, o, options...)
			},
		}, deadNode(), healthyNode("n2"), earlier, leaseOf("n1", time.Now().Add(-time.Hour)))
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Second) {
			_, _ = r.Reconcile(t.Context(), request)
		}
		nf := getFence(t, api)
		if nf == nil || failures != 2 || !nf.State.Storm.RateFull.Time.Equal(full) {
			t.Fatalf("fence = %+v after %d failures; want the rate of the earlier one, full at %v", nf, failures, full)
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

// The policy is asked with the fences of all nodes, as the API server has them.
func TestGateFences(t *testing.T) {
	for attempt, want := range []string{"", fence.ReasonMaxConcurrent} {
		synctest.Test(t, func(t *testing.T) {
			other := runningFence(func(s *fence.State) { s.Attempt = int32(attempt) })
			r, _ := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"), healthyNode("n4"),
				healthyNode("n5"), other)
			r.config.config.Policy.MaxConcurrent = 1
			config, _ := r.config.current()
			p := &pass{reconciler: r, name: "n2", config: &config, node: healthyNode("n2")}
			if g := p.gate(t.Context(), &fence.State{Node: "n2"}, &fence.Inputs{}); g.Reason != want || g.Open != (want == "") {
				t.Errorf("gate beside a fence in attempt %d = %+v; want %q", attempt, g, want)
			}
		})
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
		if g := p.gate(t.Context(), &fence.State{Node: "n1"}, &fence.Inputs{}); g.Open || g.Reason != reason || g.Overridable != want {
			t.Errorf("gate = %+v; want %s, overridable: %t", g, reason, want)
		}
	}
}

// Neither a person's confirmation nor a release that has begun under another leader overrides another remediator, which
// may be switching the machine on.
func TestConfirmedHonoursLease(t *testing.T) {
	for name, tt := range map[string]struct {
		annotation string
		proof      *fence.Proof
		phase      fence.Phase
		want       string
	}{
		"releasing":        {proof: &fence.Proof{How: fence.ByReadings}, phase: fence.Releasing, want: reasonRemediator},
		"confirmed now":    {annotation: fenceUID, want: reasonRemediator},
		"confirmed before": {proof: &fence.Proof{How: fence.Confirmed}, want: reasonRemediator},
		"read off":         {proof: &fence.Proof{How: fence.ByReadings}, want: fence.ReasonTooManyUnhealthy},
	} {
		node := deadNode()
		node.Annotations = map[string]string{annotationConfirmOff: tt.annotation}
		r, _ := testReconciler(t, nil, interceptor.Funcs{}, node, healthyNode("n2"), remediatorLease("nhc", time.Now(), time.Hour))
		r.config.config.Policy.Percentage = 0
		config, _ := r.config.current()
		p := &pass{reconciler: r, name: "n1", config: &config, node: node}
		g := p.gate(t.Context(), &fence.State{UID: fenceUID, Node: "n1", Detail: fence.Detail{Proof: tt.proof, Phase: tt.phase}}, &fence.Inputs{})
		if g.Reason != tt.want || g.Overridable == (tt.want == reasonRemediator) {
			t.Errorf("%s: gate = %+v; want %s", name, g, tt.want)
		}
	}
}

// heldReason returns the reason of the condition StormHold, empty if it is not true.
func heldReason(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, fence.ConditionStormHold); c != nil && c.Status == metav1.ConditionTrue {
		return c.Reason
	}
	return ""
}

// What a person sets at the node, or in the configuration, stops a fence before its first act.
func TestWithheld(t *testing.T) {
	for name, tt := range map[string]struct {
		node   func(*corev1.Node)
		own    string
		dryRun bool
		reason string
	}{
		"excluded": {node: func(n *corev1.Node) { n.Labels = map[string]string{labelExclude: "true"} }, reason: reasonExcluded},
		"paused":   {node: paused, reason: reasonPaused},
		"own node": {own: "n1", reason: reasonOwnNode},
		"dry run":  {dryRun: true, reason: reasonDryRun},
		"none":     {},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &faultyDevice{uuid: machine, status: func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }}
			n := deadNode()
			if tt.node != nil {
				tt.node(n)
			}
			r, api := testReconciler(t, d, interceptor.Funcs{}, n, healthyNode("n2"), healthyNode("n3"),
				leaseOf("n1", time.Now().Add(-time.Hour)), runningFence(func(s *fence.State) { s.Status, s.Attempt = fence.New, 0 }))
			r.executor.check, r.ownNode, r.config.config.Policy.Enforce = r.checkAct, tt.own, !tt.dryRun
			reconcileFor(t, r, 5*time.Minute)
			if acted := d.called("off") > 0; acted != (tt.reason == "") {
				t.Errorf("%s: off was sent: %t", name, acted)
			}
			if got := heldReason(getFence(t, api).State.Conditions); got != tt.reason {
				t.Errorf("%s: held by %q; want %q", name, got, tt.reason)
			}
		})
	}
}

// Without the Leases of the nodes it is unknown how many are healthy: the gate lists them, or stays closed.
func TestGateLists(t *testing.T) {
	for name, refused := range map[string]error{"listed": nil, "refused": refuseAccess("leases")} {
		synctest.Test(t, func(t *testing.T) {
			lists := 0
			r, _ := testReconciler(t, nil, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, options ...client.ListOption) error {
					if _, ok := o.(*coordinationv1.LeaseList); ok {
						if lists++; refused != nil {
							return refused
						}
					}
					return c.List(ctx, o, options...)
				},
			}, deadNode(), healthyNode("n2"), healthyNode("n3"))
			config, _ := r.config.current()
			p := &pass{reconciler: r, name: "n1", config: &config, node: deadNode()}
			for i, wait := range []time.Duration{0, leaseMaxAge, time.Nanosecond} {
				time.Sleep(wait)
				g := p.gate(t.Context(), &fence.State{Node: "n1"}, &fence.Inputs{})
				want := []int{1, 1, 2}[i]
				if refused != nil {
					want = i + 1
				}
				if g.Open != (refused == nil) || !g.Open && g.Reason != reasonUnknown || lists != want {
					t.Errorf("%s, %d: gate = %+v after %d lists; want %d", name, i, g, lists, want)
				}
			}
		})
	}
}

// A release that has begun ends when dry run is switched on, or the node is excluded or paused: the out-of-service
// taint is removed and no pod is deleted. The storm policy's numbers do not end it.
func TestReleaseWithdrawn(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*reconciler, *corev1.Node)
		release bool
	}{
		"goes on":  {func(*reconciler, *corev1.Node) {}, true},
		"storm":    {func(r *reconciler, _ *corev1.Node) { r.config.config.Policy.Percentage = 0 }, true},
		"dry run":  {func(r *reconciler, _ *corev1.Node) { r.config.config.Policy.Enforce = false }, false},
		"excluded": {func(_ *reconciler, n *corev1.Node) { n.Labels = map[string]string{labelExclude: "true"} }, false},
		"paused": {func(_ *reconciler, n *corev1.Node) {
			n.Annotations[annotationPaused] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			renewed := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
			node := deadNode()
			node.Spec.Taints = []corev1.Taint{quarantine, outOfService}
			node.Annotations = map[string]string{annotationFence: fenceUID, annotationOutOfService: fenceUID}
			r, api := testReconciler(t, &faultyDevice{uuid: machine}, interceptor.Funcs{}, node, healthyNode("n2"), healthyNode("n3"),
				leaseOf("n1", renewed), pod("db-0", "StatefulSet", nil), runningFence(func(s *fence.State) { releasing(s, renewed) }))
			n := getNode(t, api)
			tt.change(r, n)
			if err := api.Update(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			if got := taintIndex(getNode(t, api), &outOfService) >= 0; got != tt.release {
				t.Errorf("%s: out-of-service taint: %t; want %t", name, got, tt.release)
			}
			err := api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "db-0"}, &corev1.Pod{})
			if got := apierrors.IsNotFound(err); got != tt.release {
				t.Errorf("%s: pod deleted: %t; want %t", name, got, tt.release)
			}
			if taintIndex(getNode(t, api), &quarantine) < 0 {
				t.Errorf("%s: the quarantine was removed", name)
			}
		})
	}
}

// What is remembered of nodes that are gone is removed, unless something is in flight for them.
func TestPrune(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine, off: func(context.Context) error {
			time.Sleep(time.Minute)
			return nil
		}}
		r, _ := testReconciler(t, d, interceptor.Funcs{}, healthyNode("kept"))
		for _, node := range []string{"gone", "kept", "acting"} {
			r.executor.pending(node, fenceUID)
			r.saved(node)
		}
		r.pauses = map[string][2]string{"gone": {}, "kept": {}}
		r.remediators.setHeld("gone")
		locked := r.lock("acting")
		o := offOrder("1")
		o.node = "acting"
		r.executor.act(o)
		synctest.Wait()
		l, _ := testLister(r)
		l.list(t.Context())
		if n, k := len(r.nodes), len(r.executor.nodes); n != 2 || k != 2 || len(r.pauses) != 1 || len(r.remediators.held) != 0 {
			t.Errorf("%d states, %d results, %d pauses, %d Leases; want 2, 2, 1 and 0", n, k, len(r.pauses), len(r.remediators.held))
		}
		locked.Unlock()
		stale := r.saved("acting")
		time.Sleep(2 * time.Minute)
		l.list(t.Context())
		if len(r.nodes) != 1 || len(r.executor.nodes) != 1 || len(r.executor.devices) != 0 {
			t.Errorf("%d states, %d results, %d devices after the act; want 1, 1 and 0", len(r.nodes), len(r.executor.nodes), len(r.executor.devices))
		}
		if !stale.pruned || r.lock("acting") == stale {
			t.Error("the state that was removed can still be locked")
		}
	})
}
