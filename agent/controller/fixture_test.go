package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/fence/plan"
)

const (
	nodeUID  = "11111111-0000-0000-0000-000000000000"
	fenceUID = "22222222-0000-0000-0000-000000000000"
	machine  = "a1234567-89ab-cdef-a123-456789abcdef"
)

// faultyDevice is a device with faults that no simulator shows: calls that do not return.
type faultyDevice struct {
	uuid   string
	status func(context.Context) (fence.Power, error)
	off    func(context.Context) error

	mu    sync.Mutex
	calls []string
	inUse int
	most  int // calls at the same time
}

func (d *faultyDevice) call(name string) func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, name)
	d.inUse++
	d.most = max(d.most, d.inUse)
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.inUse--
	}
}

func (d *faultyDevice) called(name string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c == name {
			n++
		}
	}
	return n
}

func (d *faultyDevice) Status(ctx context.Context) (fence.Power, error) {
	defer d.call("status")()
	if d.status == nil {
		return fence.PowerOff, nil
	}
	return d.status(ctx)
}

func (d *faultyDevice) Off(ctx context.Context) error {
	defer d.call("off")()
	if d.off == nil {
		return nil
	}
	return d.off(ctx)
}

func (d *faultyDevice) On(context.Context) error {
	defer d.call("on")()
	return nil
}

func (d *faultyDevice) UUID(context.Context) (string, error) {
	defer d.call("uuid")()
	if d.uuid == "" {
		return "", errors.New("no session")
	}
	return d.uuid, nil
}

// testExecutor returns an executor whose device is d, and whose last check always succeeds.
func testExecutor(ctx context.Context, d device.Device) *executor {
	e := newExecutor(ctx, newMetrics(nil), slog.New(slog.DiscardHandler))
	e.open = func(context.Context, *use) (device.Device, error) { return d, nil }
	e.check = func(context.Context, *order) error { return nil }
	e.done = func(string) {}
	return e
}

func offMethod() fence.Method {
	return fence.Method{
		Name: "bmc-off", Agent: "ipmi", Action: fence.Off, Device: "bmc1", MustSuccess: true, Identity: fence.CheckUUID,
		Deadline: metav1.Duration{Duration: time.Minute},
	}
}

func testPlan() fence.Plan {
	return fence.Plan{
		PowerManagement: []fence.Level{{Methods: []fence.Method{offMethod()}}},
		Timings:         fence.DefaultTimings(),
	}
}

// deadNode returns a Node that is not Ready.
func deadNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: nodeUID},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{BootID: "boot1", SystemUUID: machine},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
		},
	}
}

func healthyNode(name string) *corev1.Node {
	n := deadNode()
	n.Name, n.UID, n.Status.NodeInfo.SystemUUID = name, types.UID("uid-of-"+name), "machine-of-"+name
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	return n
}

func leaseOf(node string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: node},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: renewed}},
	}
}

// runningFence returns the NodeFence of n1 in a step.
func runningFence(change func(*fence.State)) *nodefence.NodeFence {
	s := fence.State{Node: "n1", Progress: fence.Progress{Step: fence.PowerManagement, Status: fence.Running}}
	s.Target = fence.Target{UID: nodeUID, SystemUUID: machine, BootID: "boot1"}
	s.Plan, s.Attempt = testPlan(), 1
	if change != nil {
		change(&s)
	}
	nf := newNodeFence(&s)
	nf.UID = fenceUID
	return nf
}

// testReconciler returns a reconciler of a cluster with these objects. Cache and API server are the same.
func testReconciler(t *testing.T, d device.Device, functions interceptor.Funcs, objects ...client.Object) (*reconciler, client.Client) {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	create := functions.Create
	functions.Create = func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
		if o.GetUID() == "" {
			o.SetUID(fenceUID)
		}
		if create != nil {
			return create(ctx, c, o, options...)
		}
		return c.Create(ctx, o, options...)
	}
	// Without managed fields, which no test needs and most of its time would be spent on.
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithObjects(objects...).WithInterceptorFuncs(functions).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
			return []string{o.(*corev1.Pod).Spec.NodeName}
		}).Build()
	log := slog.New(slog.DiscardHandler)
	settings := &configuration{loaded: true, config: plan.Config{
		Policy: fence.DefaultPolicy(), Plans: map[string]fence.Plan{"n1": testPlan()}, HistoryTTL: 24 * time.Hour,
	}}
	settings.config.Policy.Enforce, settings.config.Policy.AppliesTo = true, fence.All
	r := &reconciler{
		cached: api, writer: api, config: settings, executor: testExecutor(t.Context(), d),
		remediators: &remediatorLeases{live: newLiveReader(api, "evictd"), writer: api, log: log},
		objects:     remediatorObjectsOf(api),
		recorder:    recorder{&events.FakeRecorder{}}, log: log, identity: "c1-0",
		observer: &observer{live: newLiveReader(api, "evictd"), leases: &leases{}, failed: &unreadable{log: log}},
	}
	return r, api
}

// remediatorObjectsOf returns the objects of a cluster that has these kinds of remediators.
func remediatorObjectsOf(api client.Reader, kinds ...remediatorKind) *remediatorObjects {
	return &remediatorObjects{newLiveReader(api, "evictd"), func(context.Context, bool) ([]remediatorKind, error) { return kinds, nil }}
}

// refusePatch answers as the API server does if the test of resourceVersion in a JSON Patch fails.
func refusePatch(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", corev1.Resource("nodes"), "n1",
		"the server rejected our request due to an error in our request", 0, false)
}

// refuseAccess answers as the API server does without a right.
func refuseAccess(resource string) error {
	return apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no access"))
}

// unavailable answers as the API server does in an outage.
func unavailable() error {
	return apierrors.NewGenericServerResponse(http.StatusServiceUnavailable, "get", corev1.Resource("x"), "n1", "", 0, false)
}
