package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/execute"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/tests/bmc"
	"github.com/evictd/evictd/tests/bmc/redfish"
)

// plant is the machine of n1 and that of another node, each behind a device of one kind.
type plant struct {
	// method is the off of the device of n1, other that of the other machine's device.
	method, other fence.Method
	// power and set are the truth about the machine of n1, otherPower that of the other one.
	power      func() bool
	set        func(on bool)
	otherPower func() bool
	// ignore makes the device of n1 accept commands and do nothing.
	ignore func()
	// agents has the fence agents.
	agents string
}

// fault is a seeded fault of a device, which the device itself reports as success.
type fault struct {
	name string
	// change seeds it.
	change func(*plant, *flowPlan)
	// condition and reason are those with which the fence then waits; empty if it ends as Fenced.
	condition, reason string
	// released says that pods and volumes of n1 are released: its machine is off.
	released bool
	// keptOn says that nothing was sent to the other machine.
	keptOn bool
	// slow says that the fence waits for most of a minute.
	slow bool
}

// flowPlan is what a fence of the plant is run with.
type flowPlan struct {
	levels []fence.Level
	// onAfter has the machine on again by itself after so many readings off; 0 for never. onInRelease does when the pod of
	// the node was deleted.
	onAfter     int
	onInRelease bool
	// heals has the node renew its Lease as soon as its machine is said to be proven off.
	heals bool
	// drill says that a person asked for a drill of the healthy node.
	drill bool
	// stuck is a volume that stays attached, so that a release lasts.
	stuck bool
}

func accepted(p *plant, _ *flowPlan) { p.ignore() }

func back(readings int) func(*plant, *flowPlan) {
	return func(_ *plant, f *flowPlan) { f.onAfter, f.stuck = readings, true }
}

// commonFaults are those that each kind of device can have.
func commonFaults() []fault {
	return []fault{
		{name: "none", released: true, keptOn: true},
		{name: "success without effect", change: accepted, condition: fence.ConditionGaveUp, reason: fence.ReasonNotProven, keptOn: true},
		{name: "on again before the second reading", change: back(1), condition: fence.ConditionGaveUp, reason: fence.ReasonNotProven, keptOn: true},
		{name: "on again before the release", change: back(2), condition: fence.ConditionGaveUp, reason: fence.ReasonProofVoid, keptOn: true},
		{name: "on again in the release", change: func(_ *plant, f *flowPlan) { f.onInRelease, f.stuck = true, true }, condition: fence.ConditionGaveUp, reason: fence.ReasonProofVoid, keptOn: true},
	}
}

// identifiedFaults are those of a device that reports the UUID of its machine.
func identifiedFaults() []fault {
	return append(commonFaults(), fault{name: "the machine of another node", keptOn: true,
		change:    func(p *plant, f *flowPlan) { f.levels[0].Methods[0] = p.other },
		condition: fence.ConditionIdentityMismatch, reason: "OtherMachine"})
}

// anonymousFaults are those of a device that does not. That the wrong plug was switched shows only if another device of
// the node reads on, if the node is back, or in a drill.
func anonymousFaults() []fault {
	wrong := func(change func(*plant, *flowPlan)) func(*plant, *flowPlan) {
		return func(p *plant, f *flowPlan) {
			own := f.levels[0].Methods[0]
			f.levels[0].Methods[0] = p.other
			if change == nil {
				f.levels = append(f.levels, fence.Level{Methods: []fence.Method{own}})
				p.ignore()
				return
			}
			change(p, f)
		}
	}
	return append(commonFaults(),
		fault{name: "wrong plug, another device of the node reads on", change: wrong(nil),
			condition: fence.ConditionGaveUp, reason: fence.ReasonNotProven},
		fault{name: "plug of another node, the node is back", change: wrong(func(_ *plant, f *flowPlan) { f.heals = true }),
			condition: fence.ConditionVerificationFailed, reason: "SameBootID"},
		fault{name: "plug of another node, drill", change: wrong(func(_ *plant, f *flowPlan) { f.drill = true }),
			condition: fence.ConditionWaiting, reason: fence.ReasonDeviceReadsOff, slow: true},
	)
}

func faultMethod(agent string, identity fence.IdentityCheck, parameters map[string]string) fence.Method {
	m := offMethod()
	m.Agent, m.Identity, m.Parameters, m.Deadline = agent, identity, parameters, metav1.Duration{Duration: 3 * time.Second}
	if identity == fence.CheckNone {
		m.Unverified = fence.Accept
	}
	return m
}

func redfishPlant(t *testing.T) *plant {
	t.Helper()
	start := func(uuid string) *redfish.BMC {
		b, err := redfish.Start(redfish.Options{UUID: uuid})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	b, other := start(machine), start(otherMachine)
	return &plant{
		method: faultMethod("redfish", fence.CheckUUID, b.Parameters()), other: faultMethod("redfish", fence.CheckUUID, other.Parameters()),
		power: b.Power, set: b.SetPower, otherPower: other.Power,
		ignore: func() { b.Set(func(f *redfish.Faults) { f.Ignore = true }) },
	}
}

func ipmiPlant(t *testing.T) *plant {
	t.Helper()
	start := func(guid string) *bmc.Simulator {
		s, err := bmc.Start(t.Context(), bmc.Options{Dir: filepath.Join(t.TempDir(), "bmc"), GUID: guid})
		if errors.Is(err, bmc.ErrMissing) {
			t.Skipf("needs ipmi_sim: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	power := func(s *bmc.Simulator) func() bool {
		return func() bool {
			on, err := s.Power()
			if err != nil {
				t.Error(err)
			}
			return on
		}
	}
	b, other := start("a123456789abcdefa123456789abcdef"), start("b123456789abcdefa123456789abcdef")
	return &plant{
		method: faultMethod("ipmi", fence.CheckUUID, b.Parameters()), other: faultMethod("ipmi", fence.CheckUUID, other.Parameters()),
		power: power(b), otherPower: power(other), set: func(on bool) { check(t, b.SetPower(on)) },
		ignore: func() { check(t, b.Ignore(true)) },
	}
}

// agentPlant is a power distribution unit with two plugs behind a fence agent.
func agentPlant(t *testing.T) *plant {
	t.Helper()
	dir := t.TempDir()
	install(t, dir, `#!/bin/sh
while read -r line; do
	case $line in action=*) action=${line#action=} ;; plug=*) plug=${line#plug=} ;; esac
done
case $action in
metadata) echo '<resource-agent name="fence_x"><parameters><parameter name="ip" required="1"/>`+
		`<parameter name="plug" required="1"/></parameters><actions><action name="on"/><action name="off"/>`+
		`<action name="status"/></actions></resource-agent>' ;;
on | off) [ -e `+dir+`/ignore$plug ] || { echo $action >`+dir+`/new$plug; mv `+dir+`/new$plug `+dir+`/power$plug; } ;;
status) [ "$(cat `+dir+`/power$plug)" = off ] || exit 0; echo "Status: OFF"; exit 2 ;;
*) exit 1 ;;
esac
`)
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) { check(t, os.WriteFile(file(name), []byte(text), 0o600)) }
	power := func(plug string) func() bool {
		return func() bool {
			text, err := os.ReadFile(file("power" + plug))
			check(t, err)
			return string(text) != "off\n"
		}
	}
	write("power1", "on\n")
	write("power2", "on\n")
	method := func(plug string) fence.Method {
		m := faultMethod("fence_x", fence.CheckNone, map[string]string{"ip": "192.0.2.1", "plug": plug})
		m.Device += "/" + plug
		return m
	}
	return &plant{
		method: method("1"), other: method("2"), power: power("1"), otherPower: power("2"), agents: dir,
		set: func(on bool) { write("power1", map[bool]string{true: "on\n", false: "off\n"}[on]) }, ignore: func() { write("ignore1", "") },
	}
}

// jobPlant is agentPlant whose agent runs in Jobs.
func jobPlant(t *testing.T) *plant {
	t.Helper()
	p := agentPlant(t)
	for _, m := range []*fence.Method{&p.method, &p.other} {
		m.Executor, m.Deadline.Duration = fence.InJob, 15*time.Second
	}
	return p
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// TestSeededFaults: what a device of each kind says of its success, and does not do, releases nothing. The flow finds
// it by its readings, the UUID, the Lease, or in a drill.
func TestSeededFaults(t *testing.T) {
	for kind, k := range map[string]struct {
		plant  func(*testing.T) *plant
		faults []fault
	}{
		"ipmi":    {ipmiPlant, identifiedFaults()},
		"redfish": {redfishPlant, identifiedFaults()},
		"agent":   {agentPlant, anonymousFaults()},
		"job":     {jobPlant, anonymousFaults()},
	} {
		for _, f := range k.faults {
			if testing.Short() && f.slow {
				continue
			}
			t.Run(kind+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				runFault(t, k.plant(t), &f)
			})
		}
	}
}

// faultTimings are those of a flow in real time: programs and networks do not run in a synctest bubble.
func faultTimings(inJob bool) fence.Timings {
	ms := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Millisecond} }
	t := fence.Timings{
		Grace: ms(300), ProofTimeout: ms(5000), ProofInterval: ms(300), Settle: ms(300), ReleaseTimeout: ms(60_000), UntaintDelay: ms(100),
		ReturnTimeout: ms(5000), HealthyDelay: ms(100), TotalTimeout: ms(120_000), Backoff: ms(100),
	}
	if inJob { // each reading takes up to a second
		t.ProofTimeout, t.ProofInterval = ms(15_000), ms(1000)
	}
	return t
}

// faultRun is a fence of the plant.
type faultRun struct {
	t     *testing.T
	plant *plant
	flow  *flowPlan
	r     *reconciler
	api   client.Client

	mu       sync.Mutex
	offs     int  // readings off
	gone     bool // the pod
	healed   bool
	tainted  bool
	released bool
}

func runFault(t *testing.T, p *plant, f *fault) {
	t.Helper()
	run := &faultRun{t: t, plant: p, flow: &flowPlan{levels: []fence.Level{{Methods: []fence.Method{p.method}}}}}
	if f.change != nil {
		f.change(p, run.flow)
	}
	inRelease := run.flow.onInRelease
	run.begin()
	defer run.r.executor.running.Wait()
	ended := func(nf *nodefence.NodeFence) bool {
		if f.condition == "" {
			return nf.State.Result == fence.Fenced
		}
		c := meta.FindStatusCondition(nf.State.Conditions, f.condition)
		return c != nil && c.Status == metav1.ConditionTrue && c.Reason == f.reason
	}
	nf := run.until(ended)
	run.mu.Lock()
	defer run.mu.Unlock()
	if nf == nil || !ended(nf) {
		t.Fatalf("phase %s, conditions %+v, history %+v; want %s %s", nf.State.Phase, nf.State.Conditions, nf.State.History, f.condition, f.reason)
	}
	if p.otherPower() != f.keptOn {
		t.Errorf("the other machine is on: %t; want %t", p.otherPower(), f.keptOn)
	}
	if n := getNode(t, run.api); taintIndex(n, &outOfService) >= 0 {
		t.Errorf("taints = %v at the end; want no release", n.Spec.Taints)
	}
	if !f.released && run.released && !inRelease {
		t.Error("the Node was out of service; want that nothing is released")
	}
	if f.released && (p.power() || !run.released) {
		t.Errorf("machine on: %t, released: %t; want the release of one that is off", p.power(), run.released)
	}
}

// begin makes the cluster of the run.
func (run *faultRun) begin() {
	p, flow := run.plant, run.flow
	objects := []client.Object{healthyNode("n2"), healthyNode("n3"), leaseOf("n1", time.Now().Add(-time.Hour))}
	if flow.drill {
		objects = append(objects, cordonedNode(), drillRequest())
	} else {
		objects = append(objects, deadNode(), pod("db-0", "StatefulSet", nil))
	}
	if flow.stuck {
		objects = append(objects, attachment("volume", "n1", "pv"))
	}
	r, api := testReconciler(run.t, nil, interceptor.Funcs{Create: run.created, Patch: run.patched, Delete: run.deleted}, objects...)
	plan := fence.Plan{PowerManagement: flow.levels, Timings: faultTimings(p.method.Executor == fence.InJob)}
	if flow.drill {
		plan.Timings.Grace.Duration = 6 * time.Second
	}
	r.config.config.Plans["n1"] = plan
	r.observer.live.agents = newFenceAgents(p.agents)
	e := r.executor
	e.check = r.checkAct
	e.jobs = &jobs{live: r.observer.live, cached: api, writer: api, namespace: "evictd", image: "agents:v1", log: r.log}
	open := e.openDevice(r.observer.live)
	e.open = func(ctx context.Context, u *use) (device.Device, error) {
		d, err := open(ctx, u)
		return &countedDevice{d, run}, err
	}
	run.r, run.api = r, api
}

// until makes passes until the fence is as wanted, or for 90 s.
func (run *faultRun) until(ended func(*nodefence.NodeFence) bool) (nf *nodefence.NodeFence) {
	wake := make(chan struct{}, 1)
	run.r.executor.done = func(string) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	plan, renewed := run.r.config.config.Plans["n1"], time.Time{}
	for deadline := time.Now().Add(90 * time.Second); time.Now().Before(deadline); {
		// A reading that a renewal falls into does not count as one of a machine that is off.
		if run.healed || run.flow.drill && time.Since(renewed) > plan.Timings.Grace.Duration*2/3 {
			renewed = time.Now()
			renew(run.t, run.api)
		}
		result, err := run.r.Reconcile(run.t.Context(), request)
		if err != nil {
			run.t.Fatal(err)
		}
		if nf = getFence(run.t, run.api); nf != nil && ended(nf) {
			break
		}
		if nf != nil && nf.State.Phase == fence.OffProven && run.flow.heals {
			run.healed = true
			continue
		}
		select {
		case <-wake:
		case <-time.After(min(max(result.RequeueAfter, 10*time.Millisecond), 200*time.Millisecond)):
		}
	}
	return nf
}

// patched observes the taint.
func (run *faultRun) patched(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if err := c.Patch(ctx, o, p, opts...); err != nil {
		return err
	}
	n, ok := o.(*corev1.Node)
	if !ok {
		return nil
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	tainted := taintIndex(n, &outOfService) >= 0
	if tainted && !run.tainted && run.plant.power() {
		run.t.Error("the Node becomes out of service, and its machine is on")
	}
	run.tainted, run.released = tainted, run.released || tainted
	return nil
}

// deleted observes the deletion of pods and volumes of n1.
func (run *faultRun) deleted(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
	if o.GetNamespace() == "default" && run.plant.power() {
		run.t.Errorf("%T %s is deleted, and the machine of its node is on", o, o.GetName())
	}
	if o.GetNamespace() != "default" {
		return c.Delete(ctx, o, opts...)
	}
	run.mu.Lock()
	defer run.mu.Unlock()
	run.gone = true
	return c.Delete(ctx, o, opts...)
}

// created runs the executor of a Job.
func (run *faultRun) created(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	if err := c.Create(ctx, o, opts...); err != nil {
		return err
	}
	job, ok := o.(*batchv1.Job)
	if !ok {
		return nil
	}
	secret := &corev1.Secret{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(job), secret); err != nil {
		return err
	}
	job = job.DeepCopy()
	dir := run.t.TempDir()
	run.r.executor.running.Go(func() {
		options := execute.Options{
			Request: filepath.Join(dir, "request"), Report: filepath.Join(dir, "report"), AgentsDirectory: run.plant.agents, NodeName: "n2",
		}
		check(run.t, os.WriteFile(options.Request, secret.Data[requestFile], 0o600))
		report, err := execute.Run(context.WithoutCancel(ctx), options)
		check(run.t, err)
		if err := c.Create(context.WithoutCancel(ctx), ranPod(job, report)); err != nil {
			run.t.Error(fmt.Errorf("pod of Job %s: %w", job.Name, err))
		}
	})
	return nil
}

// countedDevice has the machine on again after a number of readings off.
type countedDevice struct {
	device.Device
	run *faultRun
}

// Status implements device.Device.
func (d *countedDevice) Status(ctx context.Context) (fence.Power, error) {
	power, err := d.Device.Status(ctx)
	if power == fence.PowerOff && err == nil {
		d.run.mu.Lock()
		defer d.run.mu.Unlock()
		if d.run.offs++; d.run.offs == d.run.flow.onAfter || d.run.flow.onInRelease && d.run.gone {
			d.run.flow.onInRelease = false
			d.run.plant.set(true)
		}
	}
	return power, err
}
