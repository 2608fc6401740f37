package controller

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// drillRequest returns the NodeFence with which a person asks for the drill of n1.
func drillRequest() *nodefence.NodeFence {
	return &nodefence.NodeFence{
		ObjectMeta: metav1.ObjectMeta{
			Name: nodefence.ObjectName("n1"), UID: "request", Annotations: map[string]string{annotationDrill: nodeUID},
		},
		Node: "n1", Progress: fence.Progress{Step: fence.PowerManagement, Status: fence.New},
	}
}

const otherMachine = "b1234567-89ab-cdef-a123-456789abcdef"

// cordonedNode returns the Node n1, Ready and cordoned.
func cordonedNode() *corev1.Node {
	n := deadNode()
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	n.Spec.Unschedulable = true
	return n
}

// renew renews the Lease of n1.
func renew(t *testing.T, api client.Client) {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(leaseOf("n1", time.Now())), lease); err != nil {
		t.Fatal(err)
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	if err := api.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

// A drill switches a healthy, cordoned and empty node off, once, and releases it after the proof as any other fence.
func TestDrill(t *testing.T) {
	for name, request := range map[string]func() *nodefence.NodeFence{
		"new": drillRequest,
		"after a fence": func() *nodefence.NodeFence {
			nf := runningFence(func(s *fence.State) { s.FinishedAt, s.Result = metav1.NowMicro(), fence.Recovered })
			nf.Annotations = drillRequest().Annotations
			return nf
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &faultyDevice{uuid: machine}
			r, api := testReconciler(t, d, interceptor.Funcs{}, cordonedNode(), healthyNode("n2"), healthyNode("n3"),
				leaseOf("n1", time.Now()), leaseOf("n2", time.Now()), leaseOf("n3", time.Now()), request())
			r.executor.check = r.checkAct
			r.config.config.Policy.Percentage = 100 // the Leases of the other nodes are not renewed
			reconcileFor(t, r, 5*time.Second)
			if n := d.called("off"); n != 0 {
				t.Errorf("%s: switched off before the Lease was renewed", name)
			}
			renew(t, api)
			reconcileFor(t, r, 5*time.Second)
			nf := getFence(t, api)
			if n := d.called("off"); n != 1 || nf == nil || !nf.State.Drill || nf.State.Phase != fence.Proving || drillRequested(nf) {
				t.Fatalf("%s: off %d times, NodeFence %+v; want a drill in Proving", name, n, nf)
			}
			if n := getNode(t, api); hasOwned(n, &outOfService, annotationOutOfService) {
				t.Errorf("%s: out-of-service taint of a node that is Ready", name)
			}
			n := getNode(t, api)
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
			if err := api.Status().Update(t.Context(), n); err != nil {
				t.Fatal(err)
			}
			reconcileFor(t, r, 80*time.Second)
			if nf := getFence(t, api); nf.State.Phase != fence.Released || nf.State.Proof == nil || d.called("off") != 1 {
				t.Errorf("%s: phase %q, proof %v, off %d times; want Released by readings", name, nf.State.Phase, nf.State.Proof, d.called("off"))
			}
		})
	}
}

// A drill that can't be ends without an act, and its request is removed.
func TestDrillRefused(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "db-0"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1"}}
	for name, tt := range map[string]struct {
		change func(r *reconciler, n *corev1.Node, request *nodefence.NodeFence)
		object client.Object
		want   string
	}{
		"another Node": {func(_ *reconciler, _ *corev1.Node, request *nodefence.NodeFence) {
			request.Annotations[annotationDrill] = "other"
		}, nil, "the UID of the Node is"},
		"no plan":  {func(r *reconciler, _ *corev1.Node, _ *nodefence.NodeFence) { r.config.config.Plans = nil }, nil, "no valid configuration"},
		"dry run":  {func(r *reconciler, _ *corev1.Node, _ *nodefence.NodeFence) { r.config.config.Policy.Enforce = false }, nil, "dry run"},
		"paused":   {func(_ *reconciler, n *corev1.Node, _ *nodefence.NodeFence) { paused(n) }, nil, "fencing of the node is paused"},
		"own node": {func(r *reconciler, _ *corev1.Node, _ *nodefence.NodeFence) { r.ownNode = "n1" }, nil, "runs on the node itself"},
		"shared UUID": {func(_ *reconciler, n *corev1.Node, _ *nodefence.NodeFence) {
			n.Status.NodeInfo.SystemUUID = otherMachine
		}, nil, "same systemUUID"},
		"not cordoned": {func(_ *reconciler, n *corev1.Node, _ *nodefence.NodeFence) { n.Spec.Unschedulable = false }, nil, "not cordoned"},
		"pod":          {nil, pod, "pod x/db-0"},
		"volume":       {nil, attachment, "volume attachment csi-1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, request := cordonedNode(), drillRequest()
			twin := healthyNode("n2")
			twin.Status.NodeInfo.SystemUUID = otherMachine
			objects := []client.Object{n, twin, healthyNode("n3"), leaseOf("n1", time.Now()), request}
			if tt.object != nil {
				objects = append(objects, tt.object.DeepCopyObject().(client.Object))
			}
			d := &faultyDevice{uuid: machine}
			r, api := testReconciler(t, d, interceptor.Funcs{})
			if tt.change != nil {
				tt.change(r, n, request)
			}
			for _, o := range objects {
				if err := api.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			reconcileFor(t, r, 2*time.Second)
			renew(t, api)
			reconcileFor(t, r, 3*time.Minute)
			nf := getFence(t, api)
			if nf == nil || nf.State.Result != fence.DrillRefused || drillRequested(nf) || d.called("off") != 0 {
				t.Fatalf("%s: NodeFence %+v, off %d times; want it refused", name, nf, d.called("off"))
			}
			if h := nf.State.History; !strings.Contains(h[len(h)-1].Message, tt.want) {
				t.Errorf("%s: %q; want %q", name, h[len(h)-1].Message, tt.want)
			}
			if n := getNode(t, api); len(n.Spec.Taints) > 0 {
				t.Errorf("%s: taints %v left", name, n.Spec.Taints)
			}
		})
	}
}

// The only drill of a node that shares its systemUUID is one by devices that are not compared with it: its fences use
// nothing else, and NotDrilled asks for it.
func TestDrillWithSharedUUID(t *testing.T) {
	bmc, plug := offMethod(), offMethod()
	plug.Name, plug.Device, plug.Identity = "plug-off", "plug", fence.CheckNone
	for request, want := range map[string]string{
		"":   "drill a level of power management whose methods all have identity=none",
		"/1": "drill a level of power management whose methods all have identity=none",
		"/2": "",
	} {
		twin := healthyNode("n2")
		twin.Status.NodeInfo.SystemUUID = machine
		r, _ := testReconciler(t, nil, interceptor.Funcs{}, cordonedNode(), twin, leaseOf("n1", time.Now()))
		plan := r.config.config.Plans["n1"]
		plan.PowerManagement = []fence.Level{{Methods: []fence.Method{bmc}}, {Methods: []fence.Method{plug}}}
		r.config.config.Plans["n1"] = plan
		p := &pass{reconciler: r, name: "n1", config: &r.config.config, node: cordonedNode()}
		state, _, err := p.openDrill(t.Context(), string(p.node.UID)+request)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v; want %q", request, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%q: %v; want a drill", request, err)
		}
		// What it shows is what a fence of the node looks for.
		digest := fence.DrillDigest(fence.Node{UID: state.Target.UID, SystemUUID: state.Target.SystemUUID}, state.Plan.PowerManagement[0])
		if left := plan.Drilled(nodeFacts(p.node), []string{digest}); len(left.PowerManagement) != 2 {
			t.Errorf("%q: a fence leaves out %q", request, left.LeftOut)
		}
	}
}

// What changed between the decision and the act is read again: a pod that came to the node is not switched off.
func TestDrillChecksAct(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "db-0"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	for name, tt := range map[string]struct {
		change func(*corev1.Node)
		object client.Object
		phase  fence.Phase
		level  int32
		index  int32
		want   string
	}{
		"healthy and empty":              {},
		"pod":                            {object: pod, want: "pod x/db-0"},
		"not cordoned":                   {change: func(n *corev1.Node) { n.Spec.Unschedulable = false }, want: "not cordoned"},
		"not Ready":                      {change: notReady, want: "not Ready"},
		"not Ready, second power supply": {change: notReady, index: 1},
		"not Ready, second level":        {change: notReady, level: 1},
		"pod, second level":              {change: notReady, object: pod, level: 1, want: "pod x/db-0"},
		"Ready after the act":            {phase: fence.Proving, want: "is Ready"},
	} {
		n := cordonedNode()
		if tt.change != nil {
			tt.change(n)
		}
		nf := runningFence(func(s *fence.State) {
			s.Drill, s.Phase = true, tt.phase
			s.Intent = &fence.Intent{ID: "i1", Step: fence.PowerManagement, Action: fence.Off, Level: tt.level, Index: tt.index}
		})
		objects := []client.Object{n, nf, leaseOf("n1", time.Now())}
		if tt.object != nil {
			objects = append(objects, tt.object)
		}
		r, api := testReconciler(t, nil, interceptor.Funcs{}, objects...)
		r.saved("n1").resourceVersion = getFence(t, api).ResourceVersion
		err := r.checkAct(t.Context(), &order{
			node: "n1", fence: fenceUID, intent: *nf.State.Intent, method: offMethod(), target: nf.State.Target,
		})
		if got := ""; err != nil {
			if got = err.Error(); tt.want == "" || !strings.Contains(got, tt.want) {
				t.Errorf("%s: checkAct = %q; want %q", name, got, tt.want)
			}
		} else if tt.want != "" {
			t.Errorf("%s: checkAct = nil; want %q", name, tt.want)
		}
	}
}

func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }

// A node that dies after its drill was refused is fenced, also if it did not renew its Lease since.
func TestDeadAfterRefusedDrill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := leaseOf("n1", time.Now())
		nf := runningFence(func(s *fence.State) {
			s.Drill, s.FinishedAt, s.Result = true, metav1.NowMicro(), fence.DrillRefused
			s.Target.LeaseRenewed = *lease.Spec.RenewTime
		})
		r, api := testReconciler(t, &faultyDevice{uuid: machine}, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"), lease, nf)
		reconcileFor(t, r, 90*time.Second)
		if nf := getFence(t, api); nf == nil || nf.State.Drill {
			t.Errorf("NodeFence = %+v; want a fence of the dead node", nf)
		}
	})
}
