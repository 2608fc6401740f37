package fence

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const san = "san.example.com"

// storagePlan has a switch that cuts the node off from the storage, and undoes that in Recovery.
func storagePlan() Plan {
	p := powerPlan(level(true, "bmc"))
	p.Isolation = []Level{noIdentity(level(false, "switch"))}
	p.Isolation[0].Methods[0].Releases = []string{san}
	p.Recovery = []Level{{Methods: []Method{{Name: "switch-on", Device: "switch", Action: On, Identity: CheckNone, MustSuccess: true}}}}
	return p
}

// storageSimulation is a fence with that plan of a node with pods with and without volumes of the storage.
func storageSimulation(t testing.TB) *simulation {
	s := newSimulation(t, storagePlan())
	s.devices["switch"] = bmc()
	shared, other := Volume{Driver: san, Class: "fast"}, Volume{Driver: "other.example.com", Class: "slow"}
	s.load = Load{PodsKnown: true, AttachmentsKnown: true,
		Pods: []Pod{
			{UID: "p1", Name: "db-0", StatefulSet: true, Volumes: []Volume{shared}},
			{UID: "p2", Name: "both", StatefulSet: true, Volumes: []Volume{shared, other}},
			{UID: "p3", Name: "other", Volumes: []Volume{other}},
			{UID: "p4", Name: "none"},
			{UID: "p5", Name: "unknown", Volumes: []Volume{shared, {}}},
			{UID: "p6", Name: "ds", DaemonSet: true, Volumes: []Volume{shared}},
			{UID: "p7", Name: "stays", Tolerates: true, Volumes: []Volume{shared}},
			{UID: "p8", Name: "mirror", Mirror: true, Volumes: []Volume{shared}},
			{UID: "p9", Name: "db-1", StatefulSet: true, Volumes: []Volume{shared, shared}},
		},
		Attachments: []Attachment{
			{UID: "v1", Name: "csi-1", Volume: shared, Pods: []string{"p1"}},
			{UID: "v2", Name: "csi-2", Volume: shared, Pods: []string{"p1", "p2"}},
			{UID: "v3", Name: "csi-3", Volume: other, Pods: []string{"p3"}},
			{UID: "v4", Name: "csi-4", Volume: shared, Pods: []string{"p7"}, KeptByPod: true},
			{UID: "v5", Name: "csi-5", Pods: []string{"p5"}},
			{UID: "v6", Name: "csi-6", Volume: other},
			{UID: "v7", Name: "csi-7", Volume: shared},
			{UID: "v9", Name: "csi-9", Volume: shared, Pods: []string{"p9"}},
		}}
	s.until = time.Hour
	return s
}

func TestStorageTimelines(t *testing.T) {
	for _, c := range storageTimelines {
		t.Run(c.name, func(t *testing.T) {
			s := storageSimulation(t)
			c.setup(s)
			got := strings.Join(s.run(), "\n")
			if want := strings.TrimSpace(c.want); got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

var storageTimelines = []timeline{
	{"storage, then power", func(*simulation) {}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12.602s: detach=csi-1 detach=csi-7 detach=csi-9
5m1.001s: PowerDelayOver AttemptStarted
5m1.201s: ActStarted! act=power-management-2-0-0=bmc-off
5m2.201s: ActEnded Proving
5m7.602s: OffProven
5m7.803s: Releasing out-of-service=true
5m7.903s: delete=both delete=other delete=none delete=unknown
5m8.903s: Released out-of-service=false
5m14.203s: ActStarted act=power-management-2-0-1=bmc-on
5m15.203s: ActEnded
5m15.404s: SwitchedOn
7m45.203s: NodeReturned AttemptStarted ActStarted act=recovery-3-0-0=switch-on
7m46.203s: ActEnded Recovered quarantine=false
`},
	{"Ready again after a reboot", func(s *simulation) {
		s.script[2*time.Minute] = func(s *simulation) { s.boot("b2") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12.602s: detach=csi-1 detach=csi-7 detach=csi-9
2m0s: NodeReadyUnproven!
3m0s: NodeReturned AttemptStarted ActStarted act=recovery-2-0-0=switch-on
3m1s: ActEnded Recovered quarantine=false
`},
	{"Ready again without a reboot, later with one", func(s *simulation) {
		s.script[2*time.Minute] = func(s *simulation) { s.boot("b1") }
		s.script[20*time.Minute] = func(s *simulation) { s.boot("b2") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12.602s: detach=csi-1 detach=csi-7 detach=csi-9
2m0s: NodeReadyUnproven! RebootNeeded! Waiting!
20m0.2s: NodeReturned AttemptStarted ActStarted act=recovery-2-0-0=switch-on
20m1.2s: ActEnded Recovered quarantine=false
`},
	{"Ready again without a reboot, and dead again", func(s *simulation) {
		s.script[2*time.Minute] = func(s *simulation) { s.boot("b1") }
		s.script[10*time.Minute] = (*simulation).die
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12.602s: detach=csi-1 detach=csi-7 detach=csi-9
2m0s: NodeReadyUnproven! RebootNeeded! Waiting!
10m0s: AttemptStarted
10m0.2s: ActStarted! act=power-management-2-0-0=bmc-off
10m1.2s: ActEnded Proving
10m6.601s: OffProven
10m6.802s: Releasing out-of-service=true
10m6.902s: delete=both delete=other delete=none delete=unknown
10m7.902s: Released out-of-service=false
10m13.202s: ActStarted act=power-management-2-0-1=bmc-on
10m14.202s: ActEnded
10m14.403s: SwitchedOn
12m44.202s: NodeReturned AttemptStarted ActStarted act=recovery-3-0-0=switch-on
12m45.202s: ActEnded Recovered quarantine=false
`},
	{"Ready again before the release", func(s *simulation) {
		s.script[6*time.Second] = func(s *simulation) { s.boot("b1") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6s: NodeReadyUnproven! NodeReturned AttemptStarted ActStarted act=recovery-2-0-0=switch-on
7s: ActEnded Recovered quarantine=false
`},
	{"the port comes on again", func(s *simulation) {
		s.script[10*time.Second] = func(s *simulation) { s.devices["switch"].on = true }
		s.until = time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: ProofVoid!
41.602s: Retrying AttemptStarted ActStarted! act=isolation-2-0-0=switch-off
42.602s: ActEnded Isolated
48.003s: StorageProven
53.203s: StorageReleased! delete=db-0 delete=db-1
54.203s: detach=csi-1 detach=csi-7 detach=csi-9
`},
	{"the port comes on after the release", func(s *simulation) {
		s.load.Pods[8].UID = "p10" // csi-9 stays
		s.script[12*time.Second] = func(s *simulation) { s.devices["switch"].on, s.devices["switch"].ignores = true, true }
		s.until = 6 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12s: detach=csi-1 detach=csi-7
16.802s: ProofVoid!
46.802s: Retrying AttemptStarted ActStarted! act=isolation-2-0-0=switch-off
47.802s: ActEnded Isolated
48.003s: ProofVoid!
1m48.003s: Retrying AttemptStarted ActStarted! act=isolation-3-0-0=switch-off
1m49.003s: ActEnded Isolated
1m49.204s: ProofVoid!
3m49.204s: Retrying AttemptStarted ActStarted! act=isolation-4-0-0=switch-off
3m50.204s: ActEnded Isolated
3m50.405s: ProofVoid!
5m1.001s: PowerDelayOver AttemptStarted
5m1.201s: ActStarted! act=power-management-5-0-0=bmc-off
5m2.201s: ActEnded Proving
5m7.602s: OffProven
5m7.803s: Releasing out-of-service=true
5m7.903s: delete=both delete=other delete=none delete=unknown
5m8.903s: Released out-of-service=false
5m14.203s: ActStarted act=power-management-5-0-1=bmc-on
5m15.203s: ActEnded
5m15.404s: SwitchedOn
`},
	{"the switch is silent, and off again", func(s *simulation) {
		s.devices["switch"].silent, s.devices["switch"].answers = 3*time.Second, time.Minute
		s.until = 2 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
1m11.602s: StorageProven
1m16.802s: StorageReleased! delete=db-0 delete=db-1
1m17.802s: detach=csi-1 detach=csi-7 detach=csi-9
`},
	{"the outcome of the act is unknown: the readings span a minute", func(s *simulation) {
		s.plan.Isolation[0].Methods[0].MustSuccess = false
		s.devices["switch"].silent, s.devices["switch"].answers, s.devices["switch"].late = 0, 25*time.Second, 3*time.Second
		s.until = 2 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
20.001s: ActEnded! Isolated
1m32.602s: StorageProven
1m37.802s: StorageReleased! delete=db-0 delete=db-1
1m38.802s: detach=csi-1 detach=csi-7 detach=csi-9
`},
	{"closed gate", func(s *simulation) {
		s.script[8*time.Second] = func(s *simulation) { s.gate = Gate{Reason: "Closed"} }
		s.script[50*time.Second] = func(s *simulation) { s.gate.Open = true }
		s.until = time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StormHold!
50s: StorageReleased! delete=db-0 delete=db-1
51s: detach=csi-1 detach=csi-7 detach=csi-9
`},
	{"restart before the release", func(s *simulation) {
		s.script[8*time.Second] = (*simulation).restart
		s.until = 4 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: Waiting!
1m8s: StorageReleased! delete=db-0 delete=db-1
1m8.602s: detach=csi-1 detach=csi-7 detach=csi-9
`},
	{"second level of two ports", func(s *simulation) {
		two := noIdentity(level(false, "port1", "port2"))
		two.Methods[1].Releases = []string{"fast"}
		s.plan.Isolation = append(s.plan.Isolation, two)
		s.devices["port1"], s.devices["port2"] = bmc(), bmc()
		s.devices["switch"].refuses = true
		s.devices["port1"].read = 3 * time.Second
		s.until = time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded! NextLevel! ActStarted! act=isolation-1-1-0=port1-off
2.001s: ActEnded ActStarted! act=isolation-1-1-1=port2-off
3.001s: ActEnded Isolated
14.002s: StorageProven
22.002s: StorageReleased! delete=db-0 delete=db-1
23.002s: detach=csi-1 detach=csi-7 detach=csi-9
`},
	{"dry run", func(s *simulation) {
		s.dryRun, s.devices["switch"].on = true, false
		s.until = time.Minute
	}, `
0s: open FenceOpened!
1ms: AttemptStarted ActStarted! Isolated
5.401s: StorageProven
`},
	{"recovery fails", func(s *simulation) {
		s.script[2*time.Minute] = func(s *simulation) { s.boot("b2"); s.devices["switch"].refuses = true }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12.602s: detach=csi-1 detach=csi-7 detach=csi-9
2m0s: NodeReadyUnproven!
3m0s: NodeReturned AttemptStarted ActStarted act=recovery-2-0-0=switch-on
3m1s: ActEnded! MethodFailed!
3m31s: Retrying AttemptStarted ActStarted act=recovery-3-0-0=switch-on
3m32s: ActEnded! MethodFailed!
4m32s: Retrying AttemptStarted ActStarted act=recovery-4-0-0=switch-on
4m33s: ActEnded! MethodFailed!
6m33s: Retrying AttemptStarted ActStarted act=recovery-5-0-0=switch-on
6m34s: ActEnded! GaveUp!
`},
	{"recovery by the second level", func(s *simulation) {
		s.plan.Recovery = append(s.plan.Recovery, Level{Methods: []Method{{Name: "spare-on", Device: "spare", Action: On,
			Identity: CheckNone, MustSuccess: true, Deadline: duration(5 * time.Second)}}})
		s.devices["spare"] = bmc()
		s.script[2*time.Minute] = func(s *simulation) { s.boot("b2"); s.devices["switch"].refuses = true }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12.602s: detach=csi-1 detach=csi-7 detach=csi-9
2m0s: NodeReadyUnproven!
3m0s: NodeReturned AttemptStarted ActStarted act=recovery-2-0-0=switch-on
3m1s: ActEnded! NextLevel! ActStarted act=recovery-2-1-0=spare-on
3m2s: ActEnded Recovered quarantine=false
`},
	{"recovery that need not succeed", func(s *simulation) {
		s.plan.Recovery[0].Methods[0].MustSuccess = false
		s.script[2*time.Minute] = func(s *simulation) { s.boot("b2"); s.devices["switch"].refuses = true }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
12.602s: detach=csi-1 detach=csi-7 detach=csi-9
2m0s: NodeReadyUnproven!
3m0s: NodeReturned AttemptStarted ActStarted act=recovery-2-0-0=switch-on
3m1s: ActEnded! Recovered quarantine=false
`},
	{"objects", func(s *simulation) {
		object := func(name string, a Action) Method {
			return Method{Name: name, Action: a, Deadline: duration(20 * time.Second)}
		}
		s.plan.Isolation[0].Methods = []Method{object("cordon", Cordon)}
		s.plan.PowerManagement[0].Methods = slices.Insert(s.plan.PowerManagement[0].Methods, 1, object("clean", CleanPods))
		s.plan.Recovery[0].Methods = []Method{object("uncordon", Uncordon)}
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted act=isolation-1-0-0=cordon
1.001s: ActEnded Isolated
5m1.001s: PowerDelayOver AttemptStarted
5m1.201s: ActStarted! act=power-management-2-0-0=bmc-off
5m2.201s: ActEnded Proving
5m7.602s: OffProven
5m7.803s: Releasing out-of-service=true
5m7.903s: delete=db-0 delete=both delete=other delete=none delete=unknown delete=db-1
5m8.903s: Released out-of-service=false
5m14.003s: ActStarted! act=power-management-2-0-1=clean
5m15.003s: ActEnded
5m15.203s: ActStarted act=power-management-2-0-2=bmc-on
5m16.203s: ActEnded
5m16.404s: SwitchedOn
7m46.203s: NodeReturned AttemptStarted ActStarted act=recovery-3-0-0=uncordon
7m47.203s: ActEnded Recovered quarantine=false
`},
	{"attachments unknown", func(s *simulation) {
		s.load.AttachmentsKnown = false
		s.script[30*time.Second] = func(s *simulation) { s.load.AttachmentsKnown = true }
		s.until = time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
6.402s: StorageProven
11.602s: StorageReleased! delete=db-0 delete=db-1
30s: detach=csi-1 detach=csi-7 detach=csi-9
`},
	{"cordon, and Ready again", func(s *simulation) {
		s.plan.Isolation[0].Methods = []Method{{Name: "cordon", Action: Cordon}}
		s.plan.Recovery[0].Methods = []Method{{Name: "uncordon", Action: Uncordon}}
		s.script[time.Minute] = func(s *simulation) { s.boot("b1") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted act=isolation-1-0-0=cordon
1.001s: ActEnded Isolated
1m0s: NodeReadyUnproven! NodeReturned AttemptStarted ActStarted act=recovery-2-0-0=uncordon
1m1s: ActEnded Recovered quarantine=false
`},
	{"clean-pods without on", func(s *simulation) {
		s.plan = powerPlan(level(false, "bmc"))
		s.plan.PowerManagement[0].Methods = append(s.plan.PowerManagement[0].Methods, Method{Name: "clean", Action: CleanPods})
		s.until = time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0 delete=both delete=other delete=none delete=unknown delete=db-1
7.903s: Released out-of-service=false
13.003s: ActStarted! act=power-management-1-0-1=clean
14.003s: ActEnded Fenced
`},
	{"clean-pods while the machine runs again", func(s *simulation) {
		clean := Method{Name: "clean", Action: CleanPods}
		s.plan.PowerManagement[0].Methods = slices.Insert(s.plan.PowerManagement[0].Methods, 1, clean)
		s.plan.Isolation, s.devices["bmc"].read = nil, time.Millisecond
		s.script[8*time.Second] = func(s *simulation) { s.lease.Renewed = s.now(); s.lease.UnchangedSince = s.now() }
		s.until = time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
2ms: ActStarted! act=power-management-1-0-0=bmc-off
1.002s: ActEnded Proving
6.005s: OffProven
6.007s: Releasing out-of-service=true
6.107s: delete=db-0 delete=both delete=other delete=none delete=unknown delete=db-1
7.107s: Released out-of-service=false
12.207s: SwitchedOn
`},
	{"clean-pods with a closed gate, and on repeated", func(s *simulation) {
		clean := Method{Name: "clean", Action: CleanPods}
		s.plan.PowerManagement[0].Methods = slices.Insert(s.plan.PowerManagement[0].Methods, 1, clean)
		s.plan.Isolation = nil
		gateAt(s, 9*time.Second, storm)
		s.script[40*time.Second] = func(s *simulation) { s.devices["bmc"].on = false }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0 delete=both delete=other delete=none delete=unknown delete=db-1
7.903s: Released out-of-service=false
13.003s: ActNotSent!
13.203s: ActStarted act=power-management-1-0-2=bmc-on
14.203s: ActEnded
14.404s: SwitchedOn
45.604s: SwitchingOn! ActStarted act=power-management-2-0-2=bmc-on
46.604s: ActEnded
46.805s: SwitchedOn
2m44.203s: NodeReturned AttemptStarted ActStarted act=recovery-3-0-0=switch-on
2m45.203s: ActEnded Recovered quarantine=false
`},
}

// TestStorageNotReleased checks that a rule alone keeps pods from being released.
func TestStorageNotReleased(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*simulation)
	}{
		{"nothing named", func(s *simulation) { s.plan.Isolation[0].Methods[0].Releases = nil }},
		{"another storage named", func(s *simulation) { s.plan.Isolation[0].Methods[0].Releases = []string{"slower"} }},
		{"the switch ignores commands", func(s *simulation) { s.devices["switch"].ignores = true }},
		{"silent after one reading", func(s *simulation) { s.devices["switch"].silent = 3 * time.Second }},
		{"silent after the proof", func(s *simulation) { s.devices["switch"].silent = 7 * time.Second }},
		{"the second port reads on", func(s *simulation) {
			two := noIdentity(level(false, "switch", "port2"))
			two.Methods[0].Releases, two.Methods[1].MustSuccess = []string{san}, false
			s.plan.Isolation[0], s.devices["port2"] = two, bmc()
			s.devices["port2"].refuses = true
		}},
		{"on after the proof", func(s *simulation) {
			s.script[7*time.Second] = func(s *simulation) { s.devices["switch"].on, s.devices["switch"].ignores = true, true }
		}},
		{"Ready after the proof", func(s *simulation) {
			s.script[7*time.Second] = func(s *simulation) { s.node.Ready = ReadyTrue }
		}},
		{"renews its Lease", func(s *simulation) { s.script[2*time.Second] = func(s *simulation) { s.leaseRuns = true } }},
		{"closed gate", func(s *simulation) { s.script[2*time.Second] = func(s *simulation) { s.gate.Open = false } }},
		{"no pod of the storage", func(s *simulation) { s.load.Pods = s.load.Pods[1:4] }},
		{"pods unknown", func(s *simulation) { s.load.PodsKnown = false }},
		{"another UUID", func(s *simulation) {
			s.script[2*time.Second] = func(s *simulation) {
				s.state.Plan.Isolation[0].Methods[0].Identity = CheckUUID
				s.devices["switch"].uuid = "b" + uuid[1:]
			}
		}},
		{"replaced", func(s *simulation) { s.script[7*time.Second] = func(s *simulation) { s.node.UID = "n2" } }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := storageSimulation(t)
			s.until = 4 * time.Minute
			c.setup(s)
			s.check = func(_ Inputs, o Orders) {
				if len(o.Delete)+len(o.Detach) > 0 || s.state.storageReleased() {
					t.Fatalf("at %v: released %+v %+v\n%s", s.at, o.Delete, o.Detach, strings.Join(s.log, "\n"))
				}
			}
			s.run()
		})
	}
}

// TestStorageReadingsAge checks that readings of a controller that is gone prove nothing: the port may be on since.
func TestStorageReadingsAge(t *testing.T) {
	for away, want := range map[time.Duration]bool{time.Second: true, time.Minute: true, 62 * time.Second: false} {
		s := storageSimulation(t)
		s.until = 11500 * time.Millisecond // proven, and not yet confirmed
		s.run()
		last := *lastOf(s.state.Storage.Readings, "switch")
		x := last
		x.Started, x.Ended = micro(last.Ended.Add(5*time.Second)), micro(last.Ended.Add(6*time.Second))
		now := x.Started.Add(away)
		in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Readings: []Reading{x}, Executor: "c1"}
		after, o := Step(s.state, in, now)
		if now := *lastOf(s.state.Storage.Readings, "switch"); now != last {
			t.Errorf("Step changed its argument: last reading %+v; want %+v", now, last)
		}
		if got := len(o.Delete) > 0 && after.storageReleased(); got != want {
			t.Errorf("%v after the reading: released %t; want %t", away, got, want)
		}
	}
}

// TestAwaitsReboot checks that a fence that waits for a person to reboot the node does not keep others from acting.
func TestAwaitsReboot(t *testing.T) {
	s := storageSimulation(t)
	s.script[2*time.Minute] = func(s *simulation) { s.boot("b1") }
	s.until = 10 * time.Minute
	s.check = func(Inputs, Orders) {
		if want := s.at < 2*time.Minute; s.state.Acting() != want {
			t.Fatalf("at %v: Acting = %t; want %t", s.at, !want, want)
		}
	}
	s.run()
}

// TestStorageReadings checks which readings are kept. The last act ended at second 100.
func TestStorageReadings(t *testing.T) {
	at := func(second int) time.Time { return begin.Add(time.Duration(second) * time.Second) }
	read := func(p Power, started, ended int) Reading {
		return Reading{Device: "switch", Power: p, Started: micro(at(started)), Ended: micro(at(ended))}
	}
	for _, c := range []struct {
		name     string
		readings []Reading
		want     string
	}{
		{"off", []Reading{read(PowerOff, 101, 102)}, "Off@101"},
		{"off twice", []Reading{read(PowerOff, 101, 102), read(PowerOff, 106, 107)}, "Off@101 Off@106"},
		{"off three times", []Reading{read(PowerOff, 101, 102), read(PowerOff, 106, 107), read(PowerOff, 111, 112)}, "Off@101 Off@111"},
		{"the same again", []Reading{read(PowerOff, 101, 102), read(PowerOff, 101, 102)}, "Off@101"},
		{"an older one later", []Reading{read(PowerOff, 106, 107), read(PowerOff, 101, 108)}, "Off@106"},
		{"off of the time of the act", []Reading{read(PowerOff, 100, 101), read(PowerOff, 99, 102)}, ""},
		{"on of the time of the act", []Reading{read(PowerOff, 101, 102), read(PowerOn, 99, 100)}, "Off@101"},
		{"on after off", []Reading{read(PowerOff, 101, 102), read(PowerOff, 106, 107), read(PowerOn, 108, 109)}, "On@108"},
		{"off before on had ended", []Reading{read(PowerOn, 101, 104), read(PowerOff, 104, 105)}, "On@101"},
		{"off after on", []Reading{read(PowerOn, 101, 102), read(PowerOff, 104, 105), read(PowerOff, 109, 110)}, "Off@104 Off@109"},
		{"on, reported late", []Reading{read(PowerOff, 103, 104), read(PowerOn, 101, 105)}, "On@101"},
		{"off after an on that was reported late", []Reading{read(PowerOn, 101, 110), read(PowerUnknown, 111, 112), read(PowerOff, 105, 113)}, "Unknown@111"},
		{"unknown between", []Reading{read(PowerOff, 101, 102), read(PowerUnknown, 103, 104), read(PowerOff, 105, 106)}, "Off@105"},
		{"in the future", []Reading{read(PowerOff, 201, 202)}, ""},
	} {
		s := State{Progress: Progress{Step: Isolation, Status: Done}, Detail: Detail{Plan: storagePlan(), LastAct: micro(at(100)), Storage: &StorageFence{}}}
		for _, x := range c.readings {
			r := run{s: &s, in: &Inputs{Readings: []Reading{x}}, now: at(202)}
			r.takeStorageReadings()
		}
		r := run{s: &s, in: &Inputs{}, now: at(200)} // the clock was set back
		r.takeStorageReadings()
		var got []string
		for _, x := range s.Storage.Readings {
			got = append(got, fmt.Sprintf("%s@%.0f", x.Power, x.Started.Sub(begin).Seconds()))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s: readings = %q; want %q", c.name, got, c.want)
		}
		s.Status = Running
		if r.takeStorageReadings(); len(s.Storage.Readings) > 0 {
			t.Errorf("%s: readings while the methods run = %+v; want none", c.name, s.Storage.Readings)
		}
	}
}

// TestRecovery checks states of Recovery that are not reached from those before it.
func TestRecovery(t *testing.T) {
	recovering := func(t *testing.T) *simulation {
		s := storageSimulation(t)
		s.until = 12 * time.Second
		s.run()
		s.state.Step, s.state.Status, s.state.LastAct = Recovery, New, micro(s.now())
		s.boot("b1")
		return s
	}
	step := func(s *simulation) (State, Orders) {
		return Step(s.state, Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Executor: "c0"}, s.now().Add(time.Second))
	}
	for boot, want := range map[string]bool{"b1": false, "": false, "b2": true} {
		s := recovering(t)
		s.node.BootID = boot
		if after, o := step(s); (o.Act != nil) != want || after.is(ConditionWaiting) == want {
			t.Errorf("boot ID %q: act %+v, conditions %+v; want an act: %t", boot, o.Act, after.Conditions, want)
		}
	}
	s := recovering(t)
	s.node.BootID, s.state.Storage, s.state.Resumed = "b2", nil, true
	s.state.Step, s.state.Status, s.state.Phase, s.state.HealthySince = PowerManagement, Done, Released, micro(begin.Add(-time.Hour))
	if after, _ := step(s); after.Step != Recovery || after.Resumed {
		t.Errorf("after the return: step %s, resumed %t; want all attempts for Recovery", after.Step, after.Resumed)
	}
}

func TestMayClean(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*run)
		want   bool
	}{
		{"off and released", func(*run) {}, true},
		{"Recovery", func(r *run) { r.s.Step = Recovery }, false},
		{"Releasing", func(r *run) { r.s.Phase = Releasing }, false},
		{"no proof", func(r *run) { r.s.Proof = nil }, false},
		{"dry run", func(r *run) { r.s.DryRun = true }, false},
		{"on repeated", func(r *run) { r.s.OnRepeats = 1 }, false},
		{"on sent", func(r *run) { r.s.Acts = append(r.s.Acts, Act{Intent: Intent{Step: PowerManagement, Action: On}}) }, false},
		{"reads on", func(r *run) { r.s.Readings = []Reading{{Device: "bmc", Power: PowerOn}} }, false},
		{"Ready", func(r *run) { r.in.Node.Ready = ReadyTrue }, false},
		{"Lease young", func(r *run) { r.in.Lease.UnchangedSince = begin.Add(-time.Second) }, false},
		{"Lease renewed after the proof", func(r *run) { r.s.Proof.LeaseRenewed = micro(begin.Add(-time.Hour)) }, false},
		{"closed gate", func(r *run) { r.in.Gate.Open = false }, false},
	} {
		m := newSimulation(t, powerPlan(level(true, "bmc")))
		s := State{Progress: Progress{Step: PowerManagement, Status: Running}, Detail: Detail{Plan: m.plan, Phase: Released,
			Proof: &Proof{How: ByReadings, LeaseRenewed: micro(m.lease.Renewed)}}}
		s.Acts = []Act{{Intent: Intent{Step: PowerManagement, Action: Off}}}
		r := run{s: &s, in: &Inputs{Node: m.node, Lease: m.lease, Gate: m.gate}, now: begin}
		c.change(&r)
		if got := r.mayClean(); got != c.want {
			t.Errorf("%s: mayClean = %t; want %t", c.name, got, c.want)
		}
	}
}

// TestCordonIsNotLate checks that a cordon without an answer is not waited for: only a device can switch off late.
func TestCordonIsNotLate(t *testing.T) {
	s := storageSimulation(t)
	s.plan.Isolation[0].Methods = []Method{{Name: "cordon", Action: Cordon, Deadline: duration(time.Minute)}}
	s.until = 10 * time.Second
	s.run()
	if !s.state.LateUntil.IsZero() {
		t.Errorf("LateUntil = %v; want zero", s.state.LateUntil)
	}
}

// TestDeadAfterRecovery checks that a node whose isolation could not be undone is fenced again when it dies again: its
// fence ends, so that another can begin.
func TestDeadAfterRecovery(t *testing.T) {
	s := storageSimulation(t)
	s.script[2*time.Minute] = func(s *simulation) { s.boot("b2"); s.devices["switch"].refuses = true }
	s.script[10*time.Minute] = (*simulation).die
	s.run()
	// The Lease was renewed for the last time at 10 min.
	if s.state.FinishedAt.IsZero() || s.at < 11*time.Minute-10*time.Second || s.at > 12*time.Minute {
		t.Errorf("fence %s %s at %v; want that it ended one grace after the node died:\n%s", s.state.Step, s.state.Status, s.at,
			strings.Join(s.log, "\n"))
	}
}

// TestInheritStorage checks that a Node object which was deleted and registered again does not hide that its machine
// still has data for storage which others use now.
func TestInheritStorage(t *testing.T) {
	released := StorageFence{Released: micro(begin), Proven: micro(begin)}
	for _, c := range []struct {
		name    string
		earlier State
		boot    string
		want    bool
	}{
		{"same boot", State{Detail: Detail{Result: NodeGone, Storage: &released, Target: Target{BootID: "b1"}}}, "b1", true},
		{"boot unknown", State{Detail: Detail{Result: NodeGone, Storage: &released}}, "b1", true},
		{"booted again", State{Detail: Detail{Result: NodeGone, Storage: &released, Target: Target{BootID: "b0"}}}, "b1", false},
		{"recovered", State{Detail: Detail{Result: Recovered, Storage: &released, Target: Target{BootID: "b1"}}}, "b1", false},
		{"nothing released", State{Detail: Detail{Result: NodeGone, Storage: &StorageFence{}}}, "b1", false},
	} {
		s := storageSimulation(t)
		next, _ := Open(s.node, s.lease, s.plan, false, s.now())
		next.Inherit(&c.earlier)
		if next.storageReleased() != c.want || next.Storage != nil && !next.Storage.Proven.IsZero() {
			t.Errorf("%s: storage = %+v; want that pods were released: %t", c.name, next.Storage, c.want)
		}
	}
	// The node is back before anything is switched off: it stays cut off.
	s := storageSimulation(t)
	s.script[0] = func(s *simulation) { s.state.Storage = &StorageFence{Released: micro(begin.Add(-time.Hour))} }
	s.script[30*time.Second] = func(s *simulation) { s.boot("b1") }
	s.check = func(_ Inputs, o Orders) {
		if o.Act != nil && o.Act.Action == On {
			t.Errorf("at %v: %s was ordered without a new boot", s.at, o.Act.ID)
		}
	}
	if s.run(); !s.state.FinishedAt.IsZero() {
		t.Errorf("the fence ended:\n%s", strings.Join(s.log, "\n"))
	}
}

// What Isolation released is not ordered in the step that ends it.
func TestNoStorageOrdersAfterIsolation(t *testing.T) {
	s := newSimulation(t, storagePlan())
	s.devices["switch"] = bmc()
	s.load.Pods[0].Volumes, s.load.Attachments[0].Volume = []Volume{{Driver: san}}, Volume{Driver: san}
	s.load.Attachments[0].Pods = []string{"p1"}
	s.done = func() bool { return s.state.storageReleased() }
	s.run()
	if !s.state.storageReleased() {
		t.Fatalf("storage was not released: %v", s.log)
	}
	s.state.PowerAt = micro(s.now())
	in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate}
	after, orders := Step(s.state, in, s.now().Add(time.Millisecond))
	if after.Step != PowerManagement || len(orders.Delete)+len(orders.Detach) > 0 {
		t.Errorf("step %s, deleted %v, detached %v; want Power-Management and nothing", after.Step, orders.Delete, orders.Detach)
	}
}

// While the clock, which was set back, says that no reading of a port counts, none follows another at once.
func TestStorageReadingsAfterClockStep(t *testing.T) {
	p := powerPlan(level(false, "bmc"))
	p.Isolation = []Level{noIdentity(level(false, "switch"))}
	p.Isolation[0].Methods[0].Releases = []string{san}
	s := newSimulation(t, p)
	for _, ahead := range []time.Duration{-time.Minute, 10 * time.Second, time.Hour} {
		state, _ := Open(s.node, s.lease, s.plan, false, begin)
		state.Status, state.Attempt, state.PowerAt = Done, 1, micro(begin.Add(time.Hour))
		state.LastAct, state.Storage = micro(begin.Add(-2*time.Minute)), &StorageFence{On: micro(begin.Add(ahead))}
		in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Gate: s.gate, Executor: "c0"}
		reads := 0
		for now := begin; now.Before(begin.Add(30 * time.Second)); now = now.Add(20 * time.Millisecond) {
			var o Orders
			state, o = Step(state, in, now)
			in.Readings = nil
			for _, d := range o.Read {
				reads++
				in.Readings = append(in.Readings, Reading{Device: d, Power: PowerOff, Started: micro(now), Ended: micro(now)})
			}
		}
		if counts := ahead < 30*time.Second; counts && reads < 4 || reads > 6 || state.Storage.Proven.IsZero() == counts {
			t.Errorf("read on in %v: %d readings in 30 s, proven %v; want one each 5 s from then on", ahead, reads, state.Storage.Proven)
		}
	}
}
