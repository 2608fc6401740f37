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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

// remediatorLease returns the Lease of the remediators for n1.
func remediatorLease(holder string, renewed time.Time, duration time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: remediatorNamespace, Name: "node-n1", UID: "lease", Labels: map[string]string{"a": "b"}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(duration / time.Second)),
			RenewTime: &metav1.MicroTime{Time: renewed.Truncate(time.Microsecond)}, LeaseTransitions: new(int32(3)),
		},
	}
}

func getRemediatorLease(t *testing.T, api client.Client) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{}
	err := api.Get(t.Context(), types.NamespacedName{Namespace: remediatorNamespace, Name: "node-n1"}, lease)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	return lease
}

// holderOf returns the holder of the remediators' Lease for n1, empty if there is none.
func holderOf(t *testing.T, api client.Client) string {
	t.Helper()
	if lease := getRemediatorLease(t, api); lease != nil {
		return holder(lease)
	}
	return ""
}

// leaseFaults returns an API server that answers requests for Leases with errors, those that are not nil.
func leaseFaults(get, write error) interceptor.Funcs {
	return interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, ok := o.(*coordinationv1.Lease); ok && get != nil {
				return get
			}
			return c.Get(ctx, key, o, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if write != nil {
				return write
			}
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if write != nil {
				return write
			}
			return c.Update(ctx, o, options...)
		},
	}
}

func TestAcquire(t *testing.T) {
	notFound := apierrors.NewNotFound(corev1.Resource("namespaces"), remediatorNamespace)
	conflict := apierrors.NewConflict(corev1.Resource("leases"), "node-n1", errors.New("changed"))
	without := func(change func(*coordinationv1.LeaseSpec)) func(now time.Time) *coordinationv1.Lease {
		return func(now time.Time) *coordinationv1.Lease {
			l := remediatorLease("nhc", now, time.Minute)
			change(&l.Spec)
			return l
		}
	}
	renewed := func(holder string, age time.Duration) func(now time.Time) *coordinationv1.Lease {
		return func(now time.Time) *coordinationv1.Lease { return remediatorLease(holder, now.Add(-age), time.Minute) }
	}
	for name, tt := range map[string]struct {
		lease     func(now time.Time) *coordinationv1.Lease
		namespace bool  // exists; for reads of the Namespace
		get       error // of a Lease
		write     error
		readOnly  bool
		err       string        // empty: acquired, or not used
		held      time.Duration // how long it is held by the other
		holder    string
		renews    bool // the controller renews it
	}{
		"none":                    {namespace: true, holder: programName, renews: true},
		"none, read only":         {namespace: true, readOnly: true},
		"no namespace":            {write: notFound},
		"no namespace, no right":  {get: refuseAccess("leases"), write: refuseAccess("leases")},
		"namespace, no right":     {namespace: true, get: refuseAccess("leases"), err: "apply deploy/kubernetes/controller/medik8s"},
		"namespace, not writable": {namespace: true, write: refuseAccess("leases"), err: "apply deploy/kubernetes/controller/medik8s"},
		"API server away":         {namespace: true, get: unavailable(), err: "read Lease medik8s-leases/node-n1"},
		"another, just renewed":   {lease: renewed("nhc", 0), err: `held by "nhc"`, held: time.Minute + remediatorSkew, holder: "nhc"},
		"another, read only":      {lease: renewed("nhc", 0), readOnly: true, err: `held by "nhc"`, held: time.Minute + remediatorSkew, holder: "nhc"},
		"another, clocks differ": {
			lease: renewed("nhc", time.Minute), err: `held by "nhc"`, held: remediatorSkew, holder: "nhc",
		},
		"another, its clock ahead": {
			lease: renewed("nhc", -10*time.Minute), err: `held by "nhc"`, held: time.Minute + remediatorSkew, holder: "nhc",
		},
		"another, no renewTime": {
			lease: without(func(s *coordinationv1.LeaseSpec) { s.RenewTime = nil }), err: `held by "nhc"`,
			held: time.Minute + remediatorSkew, holder: "nhc",
		},
		"another, no duration": {
			lease: without(func(s *coordinationv1.LeaseSpec) { s.LeaseDurationSeconds = nil }), err: `held by "nhc"`,
			held: remediatorDuration + remediatorSkew, holder: "nhc",
		},
		"another, expired":  {lease: renewed("nhc", time.Minute+remediatorSkew), holder: programName, renews: true},
		"expired, conflict": {lease: renewed("nhc", time.Hour), write: conflict, err: "changed", holder: "nhc"},
		"expired, read only": {
			lease: renewed("nhc", time.Hour), readOnly: true, holder: "nhc",
		},
		"no holder":     {lease: without(func(s *coordinationv1.LeaseSpec) { s.HolderIdentity = nil }), holder: programName, renews: true},
		"empty holder":  {lease: renewed("", 0), holder: programName, renews: true},
		"ours, fresh":   {lease: renewed(programName, remediatorDuration/2-time.Second), holder: programName},
		"ours, old":     {lease: renewed(programName, remediatorDuration/2), holder: programName, renews: true},
		"ours, expired": {lease: renewed(programName, time.Hour), holder: programName, renews: true},
		"ours, ahead":   {lease: renewed(programName, -time.Minute), holder: programName, renews: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			now := time.Now()
			objects := []client.Object{deadNode()}
			if tt.lease != nil {
				objects = append(objects, tt.lease(now))
			}
			if tt.namespace {
				objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: remediatorNamespace}})
			}
			r, api := testReconciler(t, nil, leaseFaults(tt.get, tt.write), objects...)
			acquire := func() error { return r.remediators.acquire(t.Context(), deadNode(), !tt.readOnly) }
			err := acquire()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: acquire = %v; want %q", name, err, tt.err)
			}
			if _, held := errors.AsType[*heldError](err); held != (tt.held > 0) {
				t.Errorf("%s: acquire = %v; want that it is held: %t", name, err, tt.held > 0)
			}
			if held := r.remediators.holds("n1"); held != (tt.holder == programName) {
				t.Errorf("%s: holds(n1) = %t after %v", name, held, err)
			}
			if tt.get != nil {
				return
			}
			lease := getRemediatorLease(t, api)
			if got := holderOf(t, api); got != tt.holder {
				t.Fatalf("%s: holder %q; want %q", name, got, tt.holder)
			}
			if tt.renews && (!lease.Spec.RenewTime.Time.Equal(now.Truncate(time.Microsecond)) || *lease.Spec.LeaseDurationSeconds != 300 ||
				lease.OwnerReferences[0].UID != nodeUID) {
				t.Errorf("%s: Lease = %+v; want renewed for 5 minutes, owned by the Node", name, lease)
			}
			if tt.held > 0 {
				heldFor(t, name, tt.held, acquire)
			}
		})
	}
}

// heldFor checks that a Lease of another holder can be taken, or passed over, after a time and no earlier.
func heldFor(t *testing.T, name string, d time.Duration, acquire func() error) {
	t.Helper()
	time.Sleep(d - time.Nanosecond)
	if err := acquire(); err == nil {
		t.Errorf("%s: acquired before %v", name, d)
	}
	time.Sleep(time.Nanosecond)
	if err := acquire(); err != nil {
		t.Errorf("%s: acquire = %v after %v", name, err, d)
	}
}

// A Lease that was taken over keeps what others wrote in it, and counts the change of the holder. One that is renewed
// does not.
func TestTakenLease(t *testing.T) {
	r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), remediatorLease("nhc", time.Now().Add(-time.Hour), time.Minute))
	for range 2 {
		if err := r.remediators.acquire(t.Context(), deadNode(), true); err != nil {
			t.Fatal(err)
		}
		l := getRemediatorLease(t, api)
		if *l.Spec.LeaseTransitions != 4 || l.Spec.AcquireTime == nil || l.Labels["a"] != "b" {
			t.Errorf("Lease = %+v; want 4 transitions and the label", l)
		}
		l.Spec.RenewTime.Time = l.Spec.RenewTime.Add(-remediatorDuration)
		if err := api.Update(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
}

// A node whose name is too long for a Lease has none.
func TestLongNodeLease(t *testing.T) {
	for length, want := range map[int]bool{248: true, 249: false} {
		r, _ := testReconciler(t, nil, interceptor.Funcs{})
		n := healthyNode(strings.Repeat("n", length))
		if err := r.remediators.acquire(t.Context(), n, true); err != nil || r.remediators.holds(n.Name) != want {
			t.Errorf("name of %d: %v, held: %t; want %t", length, err, r.remediators.holds(n.Name), want)
		}
	}
}

// A Lease of another is not deleted at the end of a fence, and one that was not taken neither.
func TestReleaseLease(t *testing.T) {
	for name, tt := range map[string]struct {
		holder  string
		held    bool
		deleted bool
	}{"ours": {programName, true, true}, "taken over": {"nhc", true, false}, "of an earlier leader": {programName, false, false}} {
		r, api := testReconciler(t, nil, interceptor.Funcs{}, remediatorLease(tt.holder, time.Now(), time.Hour))
		if tt.held {
			r.remediators.setHeld("n1")
		}
		r.remediators.release(t.Context(), "n1")
		if got := getRemediatorLease(t, api) == nil; got != tt.deleted || r.remediators.holds("n1") {
			t.Errorf("%s: Lease deleted: %t; want %t", name, got, tt.deleted)
		}
	}
}

// While another remediator works on a node nothing is sent to its device. Then the Lease is taken, renewed while the
// fence acts, and deleted when the node is back.
func TestFenceTakesLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine, status: func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }}
		r, api := testReconciler(t, d, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"),
			leaseOf("n1", time.Now().Add(-time.Hour)), remediatorLease("nhc", time.Now(), 10*time.Minute))
		r.executor.check = r.checkAct
		reconcileFor(t, r, 10*time.Minute)
		if d.called("off") != 0 {
			t.Error("off was sent while another remediator held the Lease")
		}
		if c := heldReason(getFence(t, api).State.Conditions); c != reasonRemediator {
			t.Errorf("the fence is held by %q; want %s", c, reasonRemediator)
		}
		reconcileFor(t, r, 2*time.Minute)
		if d.called("off") == 0 || holderOf(t, api) != programName {
			t.Errorf("off was sent %d times, holder %q; want an act under the Lease", d.called("off"), holderOf(t, api))
		}
		for range 6 {
			reconcileFor(t, r, time.Minute)
			l := getRemediatorLease(t, api)
			if l == nil || time.Since(l.Spec.RenewTime.Time) > remediatorDuration/2+longestWait {
				t.Fatalf("Lease = %+v; want one that is renewed", l)
			}
		}
		reconcileFor(t, r, time.Hour)
		if !waitsForPerson(new(stateOf(getFence(t, api)))) {
			t.Fatalf("fence = %+v; want that it gave up", getFence(t, api))
		}
		if got := holderOf(t, api); got != "" {
			t.Errorf("holder after the fence gave up = %q; want none", got)
		}
	})
}

// While the storm policy holds a fence, a Lease that it has is renewed, and one that it has not is not taken.
func TestHeldFenceKeepsLease(t *testing.T) {
	for name, tt := range map[string]struct {
		held bool
		want string
	}{"held": {true, programName}, "not held": {false, ""}} {
		synctest.Test(t, func(t *testing.T) {
			r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"))
			r.config.config.Policy.Percentage = 0
			if tt.held {
				if err := r.remediators.acquire(t.Context(), deadNode(), true); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(remediatorDuration / 2)
			config, _ := r.config.current()
			p := &pass{reconciler: r, name: "n1", config: &config, node: deadNode()}
			if g := p.gate(t.Context(), &fence.State{Node: "n1"}, &fence.Inputs{}); g.Open || g.Reason != fence.ReasonTooManyUnhealthy {
				t.Errorf("%s: gate = %+v; want %s", name, g, fence.ReasonTooManyUnhealthy)
			}
			if got := holderOf(t, api); got != tt.want {
				t.Errorf("%s: holder = %q; want %q", name, got, tt.want)
			}
			if l := getRemediatorLease(t, api); l != nil && time.Since(l.Spec.RenewTime.Time) > time.Second {
				t.Errorf("%s: renewed %v ago; want now", name, time.Since(l.Spec.RenewTime.Time))
			}
		})
	}
}

// A fence in dry run honours the Lease, and does not take it.
func TestDryRunTakesNoLease(t *testing.T) {
	for holder, want := range map[string]string{"nhc": reasonRemediator, "": ""} {
		objects := []client.Object{deadNode(), healthyNode("n2"), healthyNode("n3")}
		if holder != "" {
			objects = append(objects, remediatorLease(holder, time.Now(), time.Hour))
		}
		r, api := testReconciler(t, nil, interceptor.Funcs{}, objects...)
		config, _ := r.config.current()
		p := &pass{reconciler: r, name: "n1", config: &config, node: deadNode()}
		g := p.gate(t.Context(), &fence.State{Node: "n1", Detail: fence.Detail{DryRun: true}}, &fence.Inputs{})
		if g.Reason != want || g.Open != (want == "") || holderOf(t, api) != holder {
			t.Errorf("holder %q: gate = %+v, holder then %q; want reason %q", holder, g, holderOf(t, api), want)
		}
	}
}

// A taint of another remediator holds a fence, whatever its effect.
func TestRemediatorTaint(t *testing.T) {
	for key, want := range map[string]bool{
		"medik8s.io/remediation":                          true,
		"medik8s.io/drain":                                true,
		"remediation.medik8s.io/fence-agents-remediation": true,
		"node.kubernetes.io/unreachable":                  false,
		"notmedik8s.io/remediation":                       false,
		"evictd.io/fencing":                               false,
		"medik8s.io.example.com/remediation":              false,
	} {
		n := deadNode()
		n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: key, Effect: corev1.TaintEffectNoExecute}}
		r, _ := testReconciler(t, nil, interceptor.Funcs{}, n)
		g := r.withheld(n, true)
		if g.Open == want || want && (g.Reason != reasonTaint || !g.Withheld || !strings.Contains(g.Message, key)) {
			t.Errorf("gate with the taint %s = %+v; want held: %t", key, g, want)
		}
	}
}
