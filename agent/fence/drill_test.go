package fence

import (
	"strings"
	"testing"
	"time"
)

// drillSimulation is the drill of a healthy, cordoned and empty node. Its plan has isolation and recovery methods.
func drillSimulation(t testing.TB) *simulation {
	s := newSimulation(t, storagePlan())
	s.drill, s.leaseRuns = true, true
	s.node.Ready, s.node.Unschedulable = ReadyTrue, true
	s.lease.Renewed, s.lease.UnchangedSince = begin.Add(-5*time.Second), begin.Add(-5*time.Second)
	s.load = Load{PodsKnown: true, AttachmentsKnown: true, Pods: []Pod{
		{UID: "p2", Namespace: "x", Name: "ds", DaemonSet: true}, {UID: "p3", Namespace: "x", Name: "mirror", Mirror: true}}}
	s.until = time.Hour
	s.after(10*time.Second, func() {}) // the controller looks at the node
	return s
}

func TestDrillTimelines(t *testing.T) {
	for _, c := range drillTimelines {
		t.Run(c.name, func(t *testing.T) {
			s := drillSimulation(t)
			c.setup(s)
			got := strings.Join(s.run(), "\n")
			if want := strings.TrimSpace(c.want); got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

var drillTimelines = []timeline{
	{"the right machine", func(*simulation) {}, `
0s: open DrillOpened! quarantine=true
1ms: AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
1m3.602s: OffProven
1m3.803s: Releasing out-of-service=true
1m3.903s: Released out-of-service=false
1m9.203s: ActStarted act=power-management-1-0-1=bmc-on
1m10.203s: ActEnded
1m10.404s: SwitchedOn
3m40.203s: NodeReturned Recovered quarantine=false`},
	{"the device ignores commands", func(s *simulation) { s.devices["bmc"].ignores = true }, `
0s: open DrillOpened! quarantine=true
1ms: AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
1m30.201s: NodeReadyUnproven!
1m30.402s: NodeReturned Recovered quarantine=false`},
	{"the device is silent", func(s *simulation) { s.devices["bmc"].silent = 0 }, `
0s: open DrillOpened! quarantine=true
1ms: AttemptStarted
30.001s: ActNotSent! GaveUp! Recovered quarantine=false`},
	{"another machine's plug", func(s *simulation) {
		s.plan = powerPlan(noIdentity(level(true, "bmc")))
		s.devices["bmc"].foreign = true
		s.until = 10 * time.Minute
	}, `
0s: open DrillOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=power-management-1-0-0=bmc-off
1.001s: ActEnded Proving
3m30.001s: NodeReadyUnproven!
3m30.202s: Waiting!`},
	{"two power supplies", func(s *simulation) {
		s.plan = powerPlan(level(true, "bmc", "psu"))
		s.devices["psu"] = bmc()
	}, `
0s: open DrillOpened! quarantine=true
1ms: AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded
1.401s: ActStarted! act=power-management-1-0-1=psu-off
2.401s: ActEnded Proving
1m4.802s: OffProven
1m5.003s: Releasing out-of-service=true
1m5.103s: Released out-of-service=false
1m10.403s: ActStarted act=power-management-1-0-2=bmc-on
1m11.403s: ActEnded
1m11.804s: ActStarted act=power-management-1-0-3=psu-on
1m12.804s: ActEnded
1m13.205s: SwitchedOn
3m41.403s: NodeReturned Recovered quarantine=false`},
}

// TestDrillRefused: a drill of a node that is not healthy, cordoned and empty ends without an act, and so does one that
// the gate does not let begin.
func TestDrillRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*simulation)
		want   string
	}{
		{"not Ready", func(s *simulation) { s.node.Ready = ReadyFalse }, "the node is not Ready"},
		{"not cordoned", func(s *simulation) { s.node.Unschedulable = false }, "the node is not cordoned"},
		{"a pod", func(s *simulation) { s.load.Pods = append(s.load.Pods, Pod{UID: "p1", Namespace: "x", Name: "db-0"}) },
			"the node is not empty: it has pod x/db-0"},
		{"a pod that tolerates the taint", func(s *simulation) {
			s.load.Pods = append(s.load.Pods, Pod{UID: "p1", Namespace: "x", Name: "stays", Tolerates: true})
		}, "the node is not empty: it has pod x/stays"},
		{"a volume", func(s *simulation) { s.load.Attachments = []Attachment{{UID: "v1", Name: "csi-1", KeptByPod: true}} },
			"the node is not empty: it has volume attachment csi-1"},
		{"pods not listed", func(s *simulation) { s.load.PodsKnown = false }, "could not be listed"},
		{"attachments not listed", func(s *simulation) { s.load.AttachmentsKnown = false }, "could not be listed"},
		{"gate closed", func(s *simulation) { s.gate = Gate{Reason: "Rate", Message: "fences began too fast"} }, "fences began too fast"},
		{"Lease not renewed", func(s *simulation) { s.leaseRuns = false }, "the Lease of the node is not renewed"},
		{"uncordoned before the act", func(s *simulation) {
			s.devices["bmc"].read = 10 * time.Second
			s.after(5*time.Second, func() { s.node.Unschedulable = false })
		}, "the node is not cordoned"},
	} {
		s := drillSimulation(t)
		c.change(s)
		s.run()
		if s.state.Result != DrillRefused || !s.devices["bmc"].on || len(s.state.Acts) > 0 {
			t.Errorf("%s: result %q, acts %v; want Refused without an act", c.name, s.state.Result, s.state.Acts)
		}
		if h := s.state.History; len(h) == 0 || !strings.Contains(h[len(h)-1].Message, c.want) {
			t.Errorf("%s: history %v; want %q in the last message", c.name, h, c.want)
		}
		if s.taints != (Taints{}) {
			t.Errorf("%s: taints %+v after the end; want none", c.name, s.taints)
		}
	}
}

// TestDrillPlan: a drill does not isolate, and has one attempt.
func TestDrillPlan(t *testing.T) {
	s := drillSimulation(t)
	s.run()
	if p := s.state.Plan; p.Isolation != nil || p.Recovery != nil || p.Timings.Retries != 0 || s.plan.Isolation == nil {
		t.Errorf("plan of the drill = %+v; want no isolation, no recovery and no retries, and the configured one unchanged", p)
	}
	if s.node.BootID != "b2" || s.state.Proof == nil || s.state.Phase != Released {
		t.Errorf("boot ID %q, proof %v, phase %q; want a new boot ID, a proof and Released", s.node.BootID, s.state.Proof, s.state.Phase)
	}
}
