package controller

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

var request = reconcile.Request{NamespacedName: types.NamespacedName{Name: "n1"}}

func getFence(t *testing.T, api client.Client) *nodefence.NodeFence {
	t.Helper()
	nf := &nodefence.NodeFence{}
	if err := api.Get(t.Context(), types.NamespacedName{Name: nodefence.ObjectName("n1")}, nf); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	return nf
}

func getNode(t *testing.T, api client.Client) *corev1.Node {
	t.Helper()
	n := &corev1.Node{}
	if err := api.Get(t.Context(), request.NamespacedName, n); err != nil {
		t.Fatal(err)
	}
	return n
}

// reconcileFor calls Reconcile as a controller does, for a time.
func reconcileFor(t *testing.T, r *reconciler, d time.Duration) {
	t.Helper()
	wake := make(chan struct{}, 1)
	r.executor.done = func(string) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		result, err := r.Reconcile(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		wait := time.Until(end)
		if result.RequeueAfter > 0 {
			wait = min(wait, result.RequeueAfter)
		}
		select {
		case <-wake:
		case <-time.After(wait):
		}
	}
}

// A fence is created after the Lease was unchanged for the grace period by the controller's own clock, then the node is
// quarantined, the machine is switched off, and the release waits for a proof that does not come.
func TestNoReleaseWithoutProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine, status: func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }}
		r, api := testReconciler(t, d, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"),
			leaseOf("n1", time.Now().Add(-time.Hour)), pod("db-0", "StatefulSet", nil))
		r.executor.check = r.checkAct
		grace := testPlan().Timings.Grace.Duration
		reconcileFor(t, r, grace-time.Second)
		if nf := getFence(t, api); nf != nil {
			t.Errorf("fence created before the grace period was over: %+v", nf)
		}
		reconcileFor(t, r, 20*time.Second)
		if nf := getFence(t, api); nf == nil || nf.State.Target.UID != nodeUID {
			t.Fatalf("fence = %+v; want one of the Node's UID", nf)
		}
		reconcileFor(t, r, 30*time.Minute)
		if d.called("off") == 0 {
			t.Errorf("the machine was not switched off: %+v", getFence(t, api))
		}
		n := getNode(t, api)
		if taintIndex(n, &quarantine) < 0 || taintIndex(n, &outOfService) >= 0 {
			t.Errorf("taints = %v; want the quarantine alone", n.Spec.Taints)
		}
		if err := api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "db-0"}, &corev1.Pod{}); err != nil {
			t.Errorf("pod: %v; want that it stays", err)
		}
		nf := getFence(t, api)
		if nf.Status != fence.Error || nf.State.Proof != nil {
			t.Errorf("fence = %+v; want an error without proof", nf)
		}
		if d.most != 1 {
			t.Errorf("%d calls of the device at the same time; want 1", d.most)
		}
	})
}

// The whole way with a device that is off after it was switched off.
func TestReleaseAfterProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine}
		d.status = func(context.Context) (fence.Power, error) {
			if d.called("off") > 0 {
				return fence.PowerOff, nil
			}
			return fence.PowerOn, nil
		}
		r, api := testReconciler(t, d, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"),
			leaseOf("n1", time.Now().Add(-time.Hour)), pod("db-0", "StatefulSet", nil))
		r.executor.check = r.checkAct
		reconcileFor(t, r, 10*time.Minute)
		err := api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "db-0"}, &corev1.Pod{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("pod: %v; want that it is deleted", err)
		}
		nf := getFence(t, api)
		if nf == nil || nf.State.Phase != fence.Released || nf.State.Proof == nil || len(nf.State.Proof.Readings) != 2 {
			t.Errorf("fence = %+v; want released after two readings", nf)
		}
		if n := getNode(t, api); taintIndex(n, &outOfService) >= 0 || taintIndex(n, &quarantine) < 0 {
			t.Errorf("taints = %v; want the quarantine alone", n.Spec.Taints)
		}
		if n := d.called("off"); n != 1 {
			t.Errorf("off was sent %d times; want once", n)
		}
	})
}

// After a conflict nothing is carried out, and outcomes and readings are there for the next pass.
func TestConflictKeepsResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conflicts := 1
		d := &faultyDevice{uuid: machine}
		nf := runningFence(func(s *fence.State) {
			s.Intent = &fence.Intent{
				ID: "1", Attempt: 1, Step: fence.PowerManagement, Method: "bmc-off", Action: fence.Off, Executor: "c1-0",
				Issued: metav1.NowMicro(), Deadline: metav1.NewMicroTime(time.Now().Add(time.Minute)),
			}
		})
		r, api := testReconciler(t, d, interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
				if conflicts--; conflicts >= 0 {
					return apierrors.NewConflict(corev1.Resource("nodefences"), o.GetName(), errors.New("changed"))
				}
				return c.Update(ctx, o, options...)
			},
		}, deadNode(), nf, healthyNode("n2"), healthyNode("n3"), leaseOf("n1", time.Now()))
		r.executor.pending("n1", fenceUID)
		o := offOrder("1")
		r.executor.act(o)
		synctest.Wait()
		result, err := r.Reconcile(t.Context(), request)
		if err != nil || result.RequeueAfter != firstConflictWait {
			t.Errorf("Reconcile = %+v, %v; want to be repeated after %v", result, err, firstConflictWait)
		}
		if n := getNode(t, api); len(n.Spec.Taints) > 0 {
			t.Errorf("taints after a conflict = %v; want none", n.Spec.Taints)
		}
		if outcomes, _, _ := r.executor.pending("n1", fenceUID); len(outcomes) != 1 {
			t.Errorf("outcomes after a conflict = %+v; want one", outcomes)
		}
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if got := getFence(t, api); len(got.State.Acts) != 1 || got.State.Intent != nil {
			t.Errorf("acts = %+v, intent %+v; want the act that ended", got.State.Acts, got.State.Intent)
		}
		if outcomes, _, _ := r.executor.pending("n1", fenceUID); len(outcomes) != 0 {
			t.Errorf("outcomes after the state was saved = %+v; want none", outcomes)
		}
	})
}

// The controller checks the proof again, whatever was ordered.
func TestOrdersWithoutProof(t *testing.T) {
	proof := &fence.Proof{How: fence.ByReadings}
	orders := fence.Orders{
		Taints: fence.Taints{Quarantine: true, OutOfService: true},
		Delete: []fence.Pod{{UID: "uid-of-db-0", Namespace: "default", Name: "db-0"}},
	}
	for name, tt := range map[string]struct {
		change  func(*fence.State)
		node    string
		release bool
	}{
		"no proof":     {func(s *fence.State) { s.Phase = fence.Releasing }, nodeUID, false},
		"other phase":  {func(s *fence.State) { s.Phase, s.Proof = fence.Proving, proof }, nodeUID, false},
		"dry run":      {func(s *fence.State) { s.Phase, s.Proof, s.DryRun = fence.Releasing, proof, true }, nodeUID, false},
		"another Node": {func(s *fence.State) { s.Phase, s.Proof = fence.Releasing, proof }, "other", false},
		"proof":        {func(s *fence.State) { s.Phase, s.Proof = fence.Releasing, proof }, nodeUID, true},
	} {
		n := deadNode()
		n.UID = types.UID(tt.node)
		r, api := testReconciler(t, nil, interceptor.Funcs{}, n, pod("db-0", "StatefulSet", nil))
		nf := runningFence(tt.change)
		state := stateOf(nf)
		p := &pass{reconciler: r, name: "n1", node: getNode(t, api)}
		if err := p.carryOut(t.Context(), nf, &state, &orders, time.Time{}); err != nil {
			t.Errorf("%s: carryOut = %v", name, err)
		}
		if got := taintIndex(getNode(t, api), &outOfService) >= 0; got != tt.release {
			t.Errorf("%s: out-of-service taint set: %t; want %t", name, got, tt.release)
		}
		err := api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "db-0"}, &corev1.Pod{})
		if got := apierrors.IsNotFound(err); got != tt.release {
			t.Errorf("%s: pod deleted: %t; want %t", name, got, tt.release)
		}
	}
}

// A controller that may not be the leader any more releases nothing, also in the middle of a release: another one may have
// read since that the machine is on, and has changed nothing of the Node.
func TestOrdersNotLeading(t *testing.T) {
	orders := fence.Orders{
		Taints: fence.Taints{Quarantine: true, OutOfService: true},
		Delete: []fence.Pod{{UID: "uid-of-db-0", Namespace: "default", Name: "db-0"}, {UID: "uid-of-db-1", Namespace: "default", Name: "db-1"}},
	}
	storage := orders
	storage.Taints.OutOfService = false
	storage.Detach = []fence.Attachment{{UID: "uid-of-v1", Name: "v1"}, {UID: "uid-of-v2", Name: "v2"}}
	released := func(s *fence.State) { s.Phase, s.Proof = fence.Releasing, &fence.Proof{How: fence.ByReadings} }
	cutOff := func(s *fence.State) {
		s.Step, s.Status, s.Storage = fence.Isolation, fence.Done, &fence.StorageFence{Proven: metav1.NowMicro(), Released: metav1.NowMicro()}
	}
	for name, tt := range map[string]struct {
		leads             int // so often
		state             func(*fence.State)
		orders            fence.Orders
		pods, attachments int // that are left
	}{
		"not":                        {0, released, orders, 2, 2},
		"until the first pod":        {1, released, orders, 2, 2},
		"until the second pod":       {2, released, orders, 1, 2},
		"until the last pod":         {3, released, orders, 0, 2},
		"storage, not":               {0, cutOff, storage, 2, 2},
		"storage, until the second":  {4, cutOff, storage, 0, 1},
		"storage, until all is done": {5, cutOff, storage, 0, 0},
	} {
		r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), pod("db-0", "StatefulSet", nil), pod("db-1", "StatefulSet", nil),
			attachment("v1", "n1", "pv1"), attachment("v2", "n1", "pv2"))
		asked := 0
		r.executor.leads = func() bool { asked++; return asked <= tt.leads }
		nf := runningFence(tt.state)
		state := stateOf(nf)
		p := &pass{reconciler: r, name: "n1", node: getNode(t, api)}
		err := p.carryOut(t.Context(), nf, &state, &tt.orders, time.Time{})
		if done := tt.pods+tt.attachments == 0 || tt.attachments == 2 && tt.pods == 0; errors.Is(err, errNotLeading) == done {
			t.Errorf("%s: carryOut = %v", name, err)
		}
		if got, want := marked(getNode(t, api)), tt.leads > 0; got != want {
			t.Errorf("%s: taints set: %t; want %t", name, got, want)
		}
		pods, attachments := &corev1.PodList{}, &storagev1.VolumeAttachmentList{}
		check(t, errors.Join(api.List(t.Context(), pods), api.List(t.Context(), attachments)))
		if len(pods.Items) != tt.pods || len(attachments.Items) != tt.attachments {
			t.Errorf("%s: %d pods and %d attachments left; want %d and %d", name, len(pods.Items), len(attachments.Items), tt.pods, tt.attachments)
		}
	}
}

// In a dry run no order is carried out but to read, whatever is ordered.
func TestOrdersOfDryRun(t *testing.T) {
	for _, dryRun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r, api := testReconciler(t, &faultyDevice{uuid: machine}, interceptor.Funcs{}, deadNode())
			nf := runningFence(func(s *fence.State) { s.DryRun = dryRun })
			state := stateOf(nf)
			p := &pass{reconciler: r, name: "n1", node: getNode(t, api)}
			p.executor.pending("n1", fenceUID)
			orders := fence.Orders{Act: &offOrder("1").intent, Taints: fence.Taints{Quarantine: true}}
			if err := p.carryOut(t.Context(), nf, &state, &orders, time.Time{}); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			outcomes, _, inFlight := p.executor.pending("n1", fenceUID)
			if acted := len(outcomes) > 0 || inFlight != ""; acted == dryRun {
				t.Errorf("dry run %t: outcomes %+v, in flight %q", dryRun, outcomes, inFlight)
			}
			if tainted := taintIndex(getNode(t, api), &quarantine) >= 0; tainted == dryRun {
				t.Errorf("dry run %t: quarantine taint set: %t", dryRun, tainted)
			}
		})
	}
}

// A pod is deleted by its UID and without grace.
func TestDeletePods(t *testing.T) {
	var options client.DeleteOptions
	r, _ := testReconciler(t, nil, interceptor.Funcs{
		Delete: func(_ context.Context, _ client.WithWatch, _ client.Object, o ...client.DeleteOption) error {
			options.ApplyOptions(o)
			return apierrors.NewConflict(corev1.Resource("pods"), "db-0", errors.New("the UID in the precondition does not match"))
		},
	}, deadNode())
	p := &pass{reconciler: r, name: "n1"}
	if err := p.deletePods(t.Context(), "n1", []fence.Pod{{UID: "a", Namespace: "default", Name: "db-0"}}); err != nil {
		t.Errorf("deletePods = %v; want nil for a pod that was replaced", err)
	}
	if o := options; o.Preconditions == nil || *o.Preconditions.UID != "a" || o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 0 {
		t.Errorf("options = %+v; want the UID and no grace", o)
	}
}

func TestCheckAct(t *testing.T) {
	renewed := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	intent := func(s *fence.State) { s.Intent = &fence.Intent{ID: "1"} }
	released := func(change func(*fence.State)) func(*fence.State) {
		return func(s *fence.State) {
			s.Phase, s.Proof = fence.Released, &fence.Proof{How: fence.ByReadings}
			change(s)
		}
	}
	clean := func(o *order) { o.intent.Action, o.method.Identity = fence.CleanPods, fence.CheckNone }
	unfence := func(o *order) { o.intent.Action, o.intent.Step = fence.On, fence.Recovery }
	cutOff := func(s *fence.State) { s.Storage = &fence.StorageFence{Released: metav1.NowMicro()} }
	const noProof, reboot = "no proof that the machine is off", "the boot ID that it had before: reboot it"
	for name, tt := range map[string]struct {
		node   func(*corev1.Node)
		fence  func(*fence.State)
		order  func(*order)
		saved  string // resourceVersion; empty: the present one
		dryRun bool
		holder string // of the Lease of the remediators
		reason string // empty: go
	}{
		"excluded":    {node: func(n *corev1.Node) { n.Labels = map[string]string{labelExclude: "true"} }, reason: labelExclude},
		"paused":      {node: paused, reason: "paused until"},
		"dry run":     {dryRun: true, reason: "dry run was switched on"},
		"maintenance": {holder: "node-maintenance", reason: `held by "node-maintenance"`},
		"on, paused":  {node: paused, order: func(o *order) { o.intent.Action = fence.On }, reason: "paused until"},
		"on, maintenance": {
			order: func(o *order) { o.intent.Action = fence.On }, holder: "node-maintenance", reason: `held by "node-maintenance"`,
		},
		"off":            {},
		"Ready":          {node: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }, reason: "Node n1 is Ready"},
		"replaced":       {node: func(n *corev1.Node) { n.UID = "other" }, reason: "Node n1 was deleted or replaced"},
		"Lease renewed":  {order: func(o *order) { o.lease = renewed.Add(-time.Second) }, reason: "Lease of Node n1 was renewed"},
		"another fence":  {order: func(o *order) { o.fence = "other" }, reason: "NodeFence node-fence-n1 is gone"},
		"changed":        {saved: "1", reason: "NodeFence node-fence-n1 was changed"},
		"another intent": {fence: func(s *fence.State) { s.Intent.ID = "2" }, reason: "NodeFence node-fence-n1 was changed"},
		"on":             {order: func(o *order) { o.intent.Action, o.lease = fence.On, time.Time{} }},
		"on with taint": {
			node:  func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{outOfService} },
			order: func(o *order) { o.intent.Action = fence.On }, reason: "out-of-service taint",
		},
		"on with a taint of another effect": {
			node: func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: outOfService.Key, Effect: corev1.TaintEffectNoSchedule}}
			},
			order: func(o *order) { o.intent.Action = fence.On }, reason: "out-of-service taint",
		},
		"uncordon with taint": {
			node:  func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{outOfService} },
			order: func(o *order) { o.intent.Action = fence.Uncordon }, reason: "out-of-service taint",
		},
		"uncordon a Ready node": {
			node:  func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue },
			order: func(o *order) { o.intent.Action = fence.Uncordon },
		},
		"cordon a Ready node": {
			node:  func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue },
			order: func(o *order) { o.intent.Action = fence.Cordon }, reason: "Node n1 is Ready",
		},
		"clean-pods":                {fence: released(func(*fence.State) {}), order: clean},
		"clean-pods before":         {fence: released(func(s *fence.State) { s.Phase = fence.Proving }), order: clean, reason: noProof},
		"clean-pods without proof":  {fence: released(func(s *fence.State) { s.Proof = nil }), order: clean, reason: noProof},
		"clean-pods in dry run":     {fence: released(func(s *fence.State) { s.DryRun = true }), order: clean, reason: noProof},
		"clean-pods in Recovery":    {fence: released(func(s *fence.State) { s.Step = fence.Recovery }), order: clean, reason: noProof},
		"clean-pods after a repeat": {fence: released(func(s *fence.State) { s.OnRepeats = 1 }), order: clean, reason: noProof},
		"clean-pods after on": {fence: released(func(s *fence.State) {
			s.Acts = []fence.Act{{Intent: fence.Intent{Step: fence.PowerManagement, Action: fence.On}}}
		}), order: clean, reason: noProof},
		"clean-pods of a Ready node": {
			node:  func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue },
			fence: released(func(*fence.State) {}), order: clean, reason: "Node n1 is Ready",
		},
		"clean-pods, Lease renewed": {fence: released(func(*fence.State) {}), order: func(o *order) {
			clean(o)
			o.lease = renewed.Add(-time.Second)
		}, reason: "Lease of Node n1 was renewed"},
		"unfence":              {order: unfence},
		"unfence, maintenance": {order: unfence, holder: "node-maintenance"},
		"unfence, nothing released": {order: unfence, fence: func(s *fence.State) {
			s.Storage = &fence.StorageFence{Proven: metav1.NowMicro()}
		}},
		"unfence, old boot": {fence: cutOff, order: unfence, reason: reboot},
		"unfence, new boot": {fence: cutOff, order: unfence, node: func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot2" }},
		"unfence, no boot":  {fence: cutOff, order: unfence, node: func(n *corev1.Node) { n.Status.NodeInfo.BootID = "" }, reason: reboot},
	} {
		n := deadNode()
		if tt.node != nil {
			tt.node(n)
		}
		objects := []client.Object{n, leaseOf("n1", renewed), runningFence(func(s *fence.State) {
			intent(s)
			if tt.fence != nil {
				tt.fence(s)
			}
		})}
		if tt.holder != "" {
			objects = append(objects, remediatorLease(tt.holder, time.Now(), time.Hour))
		}
		r, api := testReconciler(t, nil, interceptor.Funcs{}, objects...)
		r.config.config.Policy.Enforce = !tt.dryRun
		r.saved("n1").resourceVersion = getFence(t, api).ResourceVersion
		if tt.saved != "" {
			r.saved("n1").resourceVersion = tt.saved
		}
		o := offOrder("1")
		o.lease = renewed
		if tt.order != nil {
			tt.order(o)
		}
		err := r.checkAct(t.Context(), o)
		if tt.reason == "" && err != nil || tt.reason != "" && (err == nil || !strings.Contains(err.Error(), tt.reason)) {
			t.Errorf("%s: checkAct = %v; want %q", name, err, tt.reason)
		}
		if got := holderOf(t, api); tt.holder == "" && (got == programName) != (tt.reason == "") {
			t.Errorf("%s: Lease of the remediators is held by %q; want evictd-controller only before an act", name, got)
		}
	}
}

// Nodes that are Ready, and those that are not but have no plan, are not read from the API server.
func TestIdle(t *testing.T) {
	dead := deadNode()
	dead.Name = "unplanned"
	r, _ := testReconciler(t, nil, interceptor.Funcs{}, healthyNode("n1"), dead)
	_, live := testReconciler(t, nil, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
			t.Errorf("request for %T %s", o, key)
			return nil
		},
	})
	r.observer.live = newLiveReader(live, "evictd")
	for _, name := range []string{"n1", "unplanned", "gone"} {
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		if err != nil || result != (reconcile.Result{}) {
			t.Errorf("%s: Reconcile = %+v, %v; want nothing", name, result, err)
		}
	}
}

// Without the Node or the NodeFence nothing is decided. Without pods, the rest goes on.
func TestUnreadable(t *testing.T) {
	down := unavailable()
	for _, tt := range []struct {
		object client.Object
		saved  bool
	}{{&corev1.Node{}, false}, {&nodefence.NodeFence{}, false}, {&corev1.Pod{}, true}} {
		refuse := false
		unreadable := func(o any) bool {
			switch o.(type) {
			case *corev1.Node:
				_, same := tt.object.(*corev1.Node)
				return refuse && same
			case *nodefence.NodeFence:
				_, same := tt.object.(*nodefence.NodeFence)
				return refuse && same
			case *corev1.PodList:
				_, same := tt.object.(*corev1.Pod)
				return refuse && same
			}
			return false
		}
		r, api := testReconciler(t, nil, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if unreadable(o) {
					return down
				}
				return c.Get(ctx, key, o, options...)
			},
			List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, options ...client.ListOption) error {
				if unreadable(o) {
					return down
				}
				return c.List(ctx, o, options...)
			},
		}, deadNode(), runningFence(func(s *fence.State) { s.Status, s.Attempt = fence.New, 0 }), leaseOf("n1", time.Now()))
		before := getFence(t, api).ResourceVersion
		_, cache := testReconciler(t, nil, interceptor.Funcs{}, deadNode())
		r.cached, refuse = cache, true
		result, err := r.Reconcile(t.Context(), request)
		if err != nil || result.RequeueAfter <= 0 {
			t.Errorf("%T unreadable: Reconcile = %+v, %v; want that it is repeated", tt.object, result, err)
		}
		refuse = false
		if saved := getFence(t, api).ResourceVersion != before; saved != tt.saved {
			t.Errorf("%T unreadable: state saved: %t; want %t", tt.object, saved, tt.saved)
		}
	}
}

// The taints of a fence that is gone are removed, and a finished NodeFence is deleted after its time.
func TestSweep(t *testing.T) {
	n := healthyNode("n1")
	n.Annotations = map[string]string{annotationFence: fenceUID, annotationOutOfService: fenceUID}
	n.Spec.Taints = []corev1.Taint{quarantine, outOfService}
	for name, ended := range map[string]time.Duration{"gone": 0, "ended": time.Hour, "expired": 25 * time.Hour} {
		objects := []client.Object{n.DeepCopy()}
		if ended > 0 {
			objects = append(objects, runningFence(func(s *fence.State) {
				s.FinishedAt, s.Result = metav1.NewMicroTime(time.Now().Add(-ended)), fence.Recovered
			}))
		}
		r, api := testReconciler(t, nil, interceptor.Funcs{}, objects...)
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Errorf("%s: Reconcile = %v", name, err)
		}
		if n := getNode(t, api); len(n.Spec.Taints) > 0 || marked(n) {
			t.Errorf("%s: taints = %v, annotations %v; want none", name, n.Spec.Taints, n.Annotations)
		}
		if got, want := getFence(t, api) != nil, name == "ended"; got != want {
			t.Errorf("%s: NodeFence exists: %t; want %t", name, got, want)
		}
	}
}

// A NodeFence with a step that nobody knows, edited by hand, does not leave the out-of-service taint at a node whose
// machine is not watched.
func TestUnknownStep(t *testing.T) {
	n := deadNode()
	n.Annotations = map[string]string{annotationFence: fenceUID, annotationOutOfService: fenceUID}
	n.Spec.Taints = []corev1.Taint{quarantine, outOfService}
	r, api := testReconciler(t, nil, interceptor.Funcs{}, n, runningFence(func(s *fence.State) { s.Step = "Coffee" }))
	if _, err := r.Reconcile(t.Context(), request); err == nil || !strings.Contains(err.Error(), `step is "Coffee"`) {
		t.Errorf("Reconcile = %v; want that it names the step", err)
	}
	if n := getNode(t, api); taintIndex(n, &outOfService) >= 0 || taintIndex(n, &quarantine) < 0 {
		t.Errorf("taints = %v; want the quarantine alone", n.Spec.Taints)
	}
}

// A write that the API server refuses for ever, with the code of a conflict, is reported.
func TestManyConflicts(t *testing.T) {
	n := deadNode()
	n.Annotations = map[string]string{annotationFence: fenceUID}
	n.Spec.Taints = []corev1.Taint{quarantine}
	r, _ := testReconciler(t, nil, interceptor.Funcs{Patch: refusePatch}, n)
	var text strings.Builder
	r.log = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for range manyConflicts {
		if strings.Contains(text.String(), "conflicts=") {
			t.Errorf("reported early: %s", text.String())
		}
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(text.String(), "conflicts=10") {
		t.Errorf("log = %s; want the conflicts", text.String())
	}
}

// releasing makes a fence one whose machine was proven off a minute ago.
func releasing(s *fence.State, renewed time.Time) {
	at := metav1.NewMicroTime(time.Now().Add(-time.Minute).Truncate(time.Microsecond))
	s.Phase, s.LastAct, s.Since = fence.Releasing, metav1.NewMicroTime(at.Add(-time.Minute)), at
	s.Target.LeaseRenewed = metav1.NewMicroTime(renewed)
	off := fence.Reading{Device: "bmc1", Power: fence.PowerOff, UUID: machine, Started: at, Ended: at}
	s.Proof = &fence.Proof{How: fence.ByReadings, At: at, LeaseRenewed: metav1.NewMicroTime(renewed), Readings: []fence.Reading{off, off}}
}

// When a device reads on again, the out-of-service taint is removed also if the API server refuses to save the
// NodeFence.
func TestTaintIsTakenBackUnsaved(t *testing.T) {
	d := &faultyDevice{uuid: machine}
	node := deadNode()
	node.Spec.Taints = []corev1.Taint{quarantine, outOfService}
	node.Annotations = map[string]string{annotationFence: fenceUID, annotationOutOfService: fenceUID}
	renewed := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	nf := runningFence(func(s *fence.State) { releasing(s, renewed) })
	refused := errors.New("webhook refuses")
	r, api := testReconciler(t, d, interceptor.Funcs{
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return refused },
	}, node, healthyNode("n2"), healthyNode("n3"), leaseOf("n1", renewed), nf)
	now := metav1.NowMicro()
	r.executor.work("n1").fence = fenceUID
	r.executor.work("n1").readings = []fence.Reading{{Device: "bmc1", Power: fence.PowerOn, UUID: machine, Started: now, Ended: now}}
	if _, err := r.Reconcile(t.Context(), request); !errors.Is(err, refused) {
		t.Fatalf("Reconcile: %v; want %v", err, refused)
	}
	if n := getNode(t, api); taintIndex(n, &outOfService) >= 0 || taintIndex(n, &quarantine) < 0 {
		t.Errorf("taints = %v; want the quarantine alone", n.Spec.Taints)
	}
}

// The time since which an intent of another controller is known is that of this process, and ends with the intent.
func TestIntentSince(t *testing.T) {
	var s saved
	state := fence.State{UID: "u1", Detail: fence.Detail{Intent: &fence.Intent{ID: "i1"}}}
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	if got := s.intentSince(&state, "", at(0)); !got.Equal(at(0)) {
		t.Errorf("seen first: %v, want %v", got, at(0))
	}
	if got := s.intentSince(&state, "", at(1)); !got.Equal(at(0)) {
		t.Errorf("seen again: %v, want %v", got, at(0))
	}
	if got := s.intentSince(&state, "", at(2)); got != got.Round(0) {
		t.Errorf("seen again: %v, want a time of the clock alone", got)
	}
	if got := s.intentSince(&state, "i1", at(2)); !got.IsZero() {
		t.Errorf("in flight here: %v, want none", got)
	}
	if got := s.intentSince(&state, "", at(3)); !got.Equal(at(3)) {
		t.Errorf("not in flight any more: %v, want %v", got, at(3))
	}
	state.UID = "u2"
	if got := s.intentSince(&state, "", at(4)); !got.Equal(at(4)) {
		t.Errorf("of another fence: %v, want %v", got, at(4))
	}
	state.Intent = nil
	if got := s.intentSince(&state, "", at(5)); !got.IsZero() {
		t.Errorf("without an intent: %v, want none", got)
	}
}
