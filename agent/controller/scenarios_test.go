package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/kdump"
)

// scenario is a fence of n1 that ends with its recovery.
type scenario struct {
	name string
	// points is how many points the flow has at least.
	points int
	// plan is changed from one that switches off and on.
	plan func(*fence.Plan)
	// setup is called before the controller begins.
	setup func(*world, *reconciler)
	// each is called every second.
	each func(context.Context, *world)
}

// scenarios returns the fences of which each point is tried.
func scenarios() []*scenario {
	return []*scenario{
		{name: "power", points: 30},
		{name: "whole", points: 100, plan: func(p *fence.Plan) {
			wholePlan(p)
			levels := p.PowerManagement[0].Methods
			p.PowerManagement[0].Methods = []fence.Method{levels[0], {Name: "clean", Agent: "clean-pods", Action: fence.CleanPods}, levels[1]}
		}},
		{name: "storage, then booted by hand", points: 40, plan: wholePlan, each: bootedAfterStorage},
		{name: "kdump", points: 30, plan: func(p *fence.Plan) { p.Kdump = fence.KdumpDelay }, setup: dumps},
		{name: "given up, then the plug pulled", points: 60, setup: func(w *world, _ *reconciler) { w.ignores[bmcDevice] = true },
			each: pulledAfterGaveUp},
		{name: "given up, then confirmed", points: 60, setup: func(w *world, _ *reconciler) { w.silent[bmcDevice] = true },
			each: confirmedAfterGaveUp},
	}
}

// wholePlan adds Isolation of the SAN and Recovery.
func wholePlan(p *fence.Plan) {
	port := offMethod()
	port.Name, port.Device, port.Identity, port.Releases = "port-off", portDevice, fence.CheckNone, []string{san}
	port.Unverified = fence.Accept
	p.Isolation = []fence.Level{{Methods: []fence.Method{{Name: "cordon", Agent: "cordon", Action: fence.Cordon}, port}}}
	back := port
	back.Name, back.Action, back.Releases = "port-on", fence.On, nil
	p.Recovery = []fence.Level{{Methods: []fence.Method{back, {Name: "uncordon", Agent: "uncordon", Action: fence.Uncordon}}}}
}

// begin returns the world of a scenario, which is still to be run, and the reconciler that its controllers are copies of.
func (s *scenario) begin(t *testing.T) (*world, *reconciler) {
	t.Helper()
	objects := append(claimed("data", nil), deadNode(), healthyNode("n2"), healthyNode("n3"),
		leaseOf("n1", time.Now().Add(-time.Hour)), using("db-0", ofClaim("data")), pod("web-0", "StatefulSet", nil),
		attached("volume", "pv-data", san))
	base, api := testReconciler(t, nil, interceptor.Funcs{}, objects...)
	plan, on := testPlan(), offMethod()
	on.Name, on.Action, on.MustSuccess = "bmc-on", fence.On, false
	plan.PowerManagement[0].Methods = append(plan.PowerManagement[0].Methods, on)
	if s.plan != nil {
		s.plan(&plan)
	}
	base.config.config.Plans["n1"] = plan
	w := newWorld(t, api.(client.WithWatch))
	w.each = s.each
	if s.setup != nil {
		s.setup(w, base)
	}
	return w, base
}

// condition reports whether the saved fence has had a condition for a time.
func (w *world) condition(name string, age time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fence == nil {
		return false
	}
	c := meta.FindStatusCondition(w.fence.State.Conditions, name)
	return c != nil && c.Status == metav1.ConditionTrue && time.Since(c.LastTransitionTime.Time) > age
}

// bootedAfterStorage has the isolated machine, which runs, reach the API server after its pods were released, and a
// person reboot it some minutes later.
func bootedAfterStorage(_ context.Context, w *world) {
	waits := w.condition(fence.ConditionWaiting, 5*time.Minute)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.cutBoots == 0 && w.boots == 0 && w.lost:
		w.lost = false
	case waits && w.boots == 0 && w.on[bmcDevice]:
		w.power(bmcDevice, false)
		w.power(bmcDevice, true)
	}
}

// pulledAfterGaveUp has a person pull the plug after the fence was given up.
func pulledAfterGaveUp(_ context.Context, w *world) {
	if !w.condition(fence.ConditionGaveUp, 10*time.Minute) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ignores[bmcDevice] {
		w.ignores[bmcDevice] = false
		w.power(bmcDevice, false)
	}
}

// confirmedAfterGaveUp has a person pull the plug and confirm it after the fence was given up, and switch the machine
// on again when it is released.
func confirmedAfterGaveUp(ctx context.Context, w *world) {
	if w.condition(fence.ConditionGaveUp, 10*time.Minute) {
		w.mu.Lock()
		uid := w.fence.UID
		w.power(bmcDevice, false)
		w.mu.Unlock()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotationConfirmOff, uid)
		if err := w.api.Patch(ctx, deadNode(), client.RawPatch("application/merge-patch+json", patch)); err != nil {
			w.t.Errorf("confirm: %v", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fence != nil && w.fence.State.Phase == fence.Released && !w.tainted && w.fence.Status != fence.Running && !w.on[bmcDevice] {
		w.silent[bmcDevice] = false
		w.power(bmcDevice, true)
	}
}

// dump is a listener that received datagrams of n1 for five minutes.
type dump struct{ begun time.Time }

func (d dump) Tried() bool      { return true }
func (d dump) Since() time.Time { return d.begun.Add(-time.Hour) }

func (d dump) Session(string) kdump.Session {
	last := min(time.Since(d.begun), 5*time.Minute).Truncate(10 * time.Second)
	return kdump.Session{First: d.begun, Last: d.begun.Add(last), Datagrams: 1 + int(last/(10*time.Second))}
}

func dumps(_ *world, r *reconciler) { r.kdump = dump{time.Now()} }
