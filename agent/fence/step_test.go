package fence

import (
	"strings"
	"testing"
	"time"
)

func TestTimelines(t *testing.T) {
	for _, c := range timelines {
		t.Run(c.name, func(t *testing.T) {
			s := newSimulation(t, powerPlan(level(true, "bmc")))
			s.until = time.Hour
			c.setup(s)
			got := strings.Join(s.run(), "\n")
			if want := strings.TrimSpace(c.want); got != want {
				t.Errorf("timeline:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

type timeline struct {
	name  string
	setup func(*simulation)
	want  string
}

var timelines = []timeline{
	{"fenced and back", func(*simulation) {}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
7.903s: Released out-of-service=false
13.203s: ActStarted act=power-management-1-0-1=bmc-on
14.203s: ActEnded
14.404s: SwitchedOn
2m44.203s: NodeReturned Recovered quarantine=false
`},
	{"bmc ignores commands", func(s *simulation) { s.devices["bmc"].ignores = true; s.until = 20 * time.Minute }, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
1m1.201s: NotProven!
1m31.201s: Retrying AttemptStarted
1m31.401s: ActStarted! act=power-management-2-0-0=bmc-off
1m32.401s: ActEnded Proving
2m32.401s: NotProven!
3m32.401s: Retrying AttemptStarted
3m32.601s: ActStarted! act=power-management-3-0-0=bmc-off
3m33.601s: ActEnded Proving
4m33.601s: NotProven!
6m33.601s: Retrying AttemptStarted
6m33.801s: ActStarted! act=power-management-4-0-0=bmc-off
6m34.801s: ActEnded Proving
7m34.801s: GaveUp!
`},
	{"bmc silent: nothing is sent", func(s *simulation) { s.devices["bmc"].silent = 0; s.until = 20 * time.Minute }, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
30.001s: ActNotSent! ActNotSent!
1m0.001s: Retrying AttemptStarted
1m30.001s: ActNotSent! ActNotSent!
2m30.001s: Retrying AttemptStarted
3m0.001s: ActNotSent! ActNotSent!
5m0.001s: Retrying AttemptStarted
5m30.001s: ActNotSent! GaveUp!
`},
	{"silent after the identity: late off is proven after GaveUp", func(s *simulation) {
		s.devices["bmc"].silent, s.devices["bmc"].late = 201*time.Millisecond, 30*time.Second
		s.devices["bmc"].answers = 20 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
20.201s: ActEnded! Proving
1m30.201s: NotProven!
2m0.201s: Retrying AttemptStarted
2m30.201s: ActNotSent! ActNotSent!
3m30.201s: Retrying AttemptStarted
4m0.201s: ActNotSent! ActNotSent!
6m0.201s: Retrying AttemptStarted
6m30.201s: ActNotSent! GaveUp!
21m20.601s: OffProven
21m20.802s: Releasing out-of-service=true
21m20.902s: delete=db-0
21m21.902s: Released out-of-service=false
21m27.202s: ActStarted act=power-management-4-0-1=bmc-on
21m28.202s: ActEnded
21m28.403s: SwitchedOn
23m58.202s: NodeReturned Recovered quarantine=false
`},
	{"answers again after GaveUp: one new attempt", func(s *simulation) {
		s.devices["bmc"].silent, s.devices["bmc"].answers = 0, 20*time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
30.001s: ActNotSent! ActNotSent!
1m0.001s: Retrying AttemptStarted
1m30.001s: ActNotSent! ActNotSent!
2m30.001s: Retrying AttemptStarted
3m0.001s: ActNotSent! ActNotSent!
5m0.001s: Retrying AttemptStarted
5m30.001s: ActNotSent! GaveUp!
20m30.201s: DeviceAnswersAgain AttemptStarted ActStarted! act=power-management-5-0-0=bmc-off
20m31.201s: ActEnded Proving
20m36.602s: OffProven
20m36.803s: Releasing out-of-service=true
20m36.903s: delete=db-0
20m37.903s: Released out-of-service=false
20m43.203s: ActStarted act=power-management-5-0-1=bmc-on
20m44.203s: ActEnded
20m44.404s: SwitchedOn
23m14.203s: NodeReturned Recovered quarantine=false
`},
	{"second level", func(s *simulation) {
		s.plan = powerPlan(level(true, "bmc"), noIdentity(level(true, "plug1", "plug2")))
		s.devices["bmc"].silent = 1200 * time.Millisecond
		s.devices["bmc"].ignores = true
		s.devices["plug1"], s.devices["plug2"] = bmc(), bmc()
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
1m1.201s: NextLevel! ActStarted! act=power-management-1-1-0=plug1-off
1m2.201s: ActEnded ActStarted! act=power-management-1-1-1=plug2-off
1m3.201s: ActEnded Proving
1m8.602s: OffProven
1m13.202s: Releasing out-of-service=true
1m13.302s: delete=db-0
1m14.302s: Released out-of-service=false
1m19.402s: ActStarted act=power-management-1-1-2=plug1-on
1m20.402s: ActEnded
1m20.603s: ActStarted act=power-management-1-1-3=plug2-on
1m21.603s: ActEnded
1m22.004s: SwitchedOn
3m50.402s: NodeReturned Recovered quarantine=false
`},
	{"another device reads on", func(s *simulation) {
		s.plan = powerPlan(level(true, "bmc"), noIdentity(level(true, "plug")))
		s.devices["plug"] = bmc()
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
1m1.201s: NextLevel! ActStarted! act=power-management-1-1-0=plug-off
1m2.201s: ActEnded Proving
1m7.602s: OffProven
1m7.803s: Releasing out-of-service=true
1m7.903s: delete=db-0
1m8.903s: Released out-of-service=false
1m14.003s: ActStarted act=power-management-1-1-1=plug-on
1m15.003s: ActEnded
1m15.204s: SwitchedOn
3m45.003s: NodeReturned Recovered quarantine=false
`},
	{"one of two plugs reads on", func(s *simulation) {
		s.plan = powerPlan(noIdentity(level(true, "plug1", "plug2")))
		s.devices["plug1"], s.devices["plug2"] = bmc(), bmc()
		s.devices["plug2"].ignores = true
		s.until = 2 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted ActStarted! act=power-management-1-0-0=plug1-off
1.001s: ActEnded ActStarted! act=power-management-1-0-1=plug2-off
2.001s: ActEnded Proving
1m2.001s: NotProven!
1m32.001s: Retrying AttemptStarted ActStarted! act=power-management-2-0-0=plug1-off
1m33.001s: ActEnded ActStarted! act=power-management-2-0-1=plug2-off
1m34.001s: ActEnded Proving
`},
	{"another machine", func(s *simulation) { s.devices["bmc"].uuid = "b" + uuid[1:]; s.until = 20 * time.Minute }, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: IdentityMismatch! ActNotSent! ActNotSent!
30.201s: Retrying AttemptStarted
30.401s: IdentityMismatch! ActNotSent! ActNotSent!
1m30.401s: Retrying AttemptStarted
1m30.601s: IdentityMismatch! ActNotSent! ActNotSent!
3m30.601s: Retrying AttemptStarted
3m30.801s: IdentityMismatch! ActNotSent! GaveUp!
`},
	{"no uuid", func(s *simulation) { s.devices["bmc"].uuid = ""; s.until = 20 * time.Second }, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: IdentityMismatch! ActNotSent! ActNotSent!
`},
	{"back before any act", func(s *simulation) {
		s.gate = Gate{Reason: "TooManyUnhealthy", Message: "3 of 5 nodes are unhealthy; 50 % allow 2"}
		s.script[30*time.Second] = func(s *simulation) { s.boot("b1") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver StormHold!
30s: Recovered quarantine=false
`},
	{"gate opens", func(s *simulation) {
		s.gate = Gate{Reason: "TooManyUnhealthy"}
		s.script[time.Minute] = func(s *simulation) { s.gate.Open = true }
		s.until = 2 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver StormHold!
1m0s: AttemptStarted
1m0.2s: ActStarted! act=power-management-1-0-0=bmc-off
1m1.2s: ActEnded Proving
1m6.601s: OffProven
1m6.802s: Releasing out-of-service=true
1m6.902s: delete=db-0
1m7.902s: Released out-of-service=false
1m13.202s: ActStarted act=power-management-1-0-1=bmc-on
1m14.202s: ActEnded
1m14.403s: SwitchedOn
`},
	{"Ready after an unproven act: a late off", func(s *simulation) {
		s.devices["bmc"].silent, s.devices["bmc"].answers, s.devices["bmc"].late = 201*time.Millisecond, 20*time.Second, 40*time.Second
		s.script[10*time.Second] = func(s *simulation) { s.boot("b1") }
		s.script[80*time.Second] = func(s *simulation) { s.node.Ready = ReadyUnknown }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
20.201s: ActEnded! NodeReadyUnproven!
1m20s: Proving
2m22.6s: OffProven
2m22.801s: Releasing out-of-service=true
2m22.901s: delete=db-0
2m23.901s: Released out-of-service=false
2m29.201s: ActStarted act=power-management-1-0-1=bmc-on
2m30.201s: ActEnded
2m30.402s: SwitchedOn
5m0.201s: NodeReturned Recovered quarantine=false
`},
	{"Ready after an unproven act: stays on", func(s *simulation) {
		s.devices["bmc"].ignores = true
		s.script[10*time.Second] = func(s *simulation) { s.boot("b1") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
10s: NodeReadyUnproven!
1m30.402s: NodeReturned Recovered quarantine=false
`},
	{"on while releasing", func(s *simulation) {
		s.load.Attachments = append(s.load.Attachments, Attachment{UID: "v3", Name: "csi-3", KeptByPod: false})
		s.load.AttachmentsKnown = false
		s.script[20*time.Second] = func(s *simulation) { s.devices["bmc"].on = true }
		s.script[3*time.Minute] = func(s *simulation) { s.load.AttachmentsKnown = true }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
22.403s: ProofLost! Retrying AttemptStarted ActStarted! act=power-management-2-0-0=bmc-off out-of-service=false
23.403s: ActEnded Proving
28.804s: OffProven
29.005s: Releasing out-of-service=true
3m0s: Released out-of-service=false
3m5.3s: ActStarted act=power-management-2-0-1=bmc-on
3m6.3s: ActEnded
3m6.501s: SwitchedOn
5m36.3s: NodeReturned Recovered quarantine=false
`},
	{"Lease renewed after the proof", func(s *simulation) {
		s.load.AttachmentsKnown = false
		s.script[20*time.Second] = func(s *simulation) { s.lease.Renewed, s.lease.UnchangedSince = s.now(), s.now() }
		s.until = 10 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
20s: FenceVerificationFailed! out-of-service=false
`},
	{"Ready with the old boot ID after the release", func(s *simulation) {
		s.bootTime = never
		s.script[time.Minute] = func(s *simulation) { s.boot("b1") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
7.903s: Released out-of-service=false
13.203s: ActStarted act=power-management-1-0-1=bmc-on
14.203s: ActEnded
14.404s: SwitchedOn
1m0s: FenceVerificationFailed!
`},
	{"does not return, and then does", func(s *simulation) {
		s.bootTime = never
		s.script[50*time.Minute] = func(s *simulation) { s.boot("b2") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
7.903s: Released out-of-service=false
13.203s: ActStarted act=power-management-1-0-1=bmc-on
14.203s: ActEnded
14.404s: SwitchedOn
30m14.404s: NodeDidNotReturn!
51m0s: NodeReturned Recovered quarantine=false
`},
	{"plan without on", func(s *simulation) {
		s.plan = powerPlan(level(false, "bmc"))
		s.script[30*time.Minute] = func(s *simulation) { s.boot("b2") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
7.903s: Released out-of-service=false
13.003s: Fenced
31m0s: NodeReturned Recovered quarantine=false
`},
	{"release stuck", func(s *simulation) {
		s.load.AttachmentsKnown = false
		s.script[15*time.Minute] = func(s *simulation) { s.load.AttachmentsKnown = true }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
10m6.803s: ReleaseStuck!
15m0s: Released out-of-service=false
15m5.3s: ActStarted act=power-management-1-0-1=bmc-on
15m6.3s: ActEnded
15m6.501s: SwitchedOn
17m36.3s: NodeReturned Recovered quarantine=false
`},
	{"late off after on", func(s *simulation) {
		s.script[40*time.Second] = func(s *simulation) { s.devices["bmc"].on = false }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
7.903s: Released out-of-service=false
13.203s: ActStarted act=power-management-1-0-1=bmc-on
14.203s: ActEnded
14.404s: SwitchedOn
45.604s: SwitchingOn! ActStarted act=power-management-2-0-1=bmc-on
46.604s: ActEnded
46.805s: SwitchedOn
2m44.203s: NodeReturned Recovered quarantine=false
`},
	{"confirmed by a person", func(s *simulation) {
		s.devices["bmc"].silent = 0
		s.devices["bmc"].answers = 30 * time.Minute
		s.script[20*time.Minute] = func(s *simulation) { s.node.ConfirmOff = "other" }
		s.script[25*time.Minute] = func(s *simulation) { s.node.ConfirmOff = fenceUID; s.devices["bmc"].on = false }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
30.001s: ActNotSent! ActNotSent!
1m0.001s: Retrying AttemptStarted
1m30.001s: ActNotSent! ActNotSent!
2m30.001s: Retrying AttemptStarted
3m0.001s: ActNotSent! ActNotSent!
5m0.001s: Retrying AttemptStarted
5m30.001s: ActNotSent! GaveUp!
20m0s: ConfirmOffIgnored!
25m0s: ConfirmedOff!
25m10.001s: Releasing out-of-service=true
25m10.101s: delete=db-0
25m11.101s: Released out-of-service=false
25m46.201s: ActNotSent! SwitchedOn
31m16.601s: SwitchingOn! ActStarted act=power-management-5-0-1=bmc-on
31m17.601s: ActEnded
31m17.802s: SwitchedOn
33m47.601s: NodeReturned Recovered quarantine=false
`},
	{"confirmed but reads on", func(s *simulation) {
		s.devices["bmc"].ignores = true
		s.script[5*time.Second] = func(s *simulation) { s.node.ConfirmOff = fenceUID }
		s.until = 20 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
5s: ConfirmedOff!
5.201s: ProofLost! Retrying AttemptStarted ActStarted! act=power-management-2-0-0=bmc-off
6.201s: ActEnded Proving
1m6.201s: NotProven!
2m6.201s: Retrying AttemptStarted
2m6.401s: ActStarted! act=power-management-3-0-0=bmc-off
2m7.401s: ActEnded Proving
3m7.401s: NotProven!
5m7.401s: Retrying AttemptStarted
5m7.601s: ActStarted! act=power-management-4-0-0=bmc-off
5m8.601s: ActEnded Proving
6m8.601s: GaveUp!
`},
	{"node deleted", func(s *simulation) {
		s.script[7*time.Second] = func(s *simulation) { s.node.Found = false }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.903s: delete=db-0
7s: NodeGone! out-of-service=false quarantine=false
`},
	{"node replaced during an act", func(s *simulation) {
		s.script[time.Second] = func(s *simulation) { s.node.UID = "n2" }
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1s: NodeGone! quarantine=false
`},
	{"restart during an act", func(s *simulation) {
		s.script[700*time.Millisecond] = (*simulation).restart
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
30.7s: ActEnded! Proving Waiting!
1m33.301s: OffProven
1m33.502s: Releasing out-of-service=true
1m33.602s: delete=db-0
1m34.602s: Released out-of-service=false
1m39.902s: ActStarted act=power-management-1-0-1=bmc-on
1m40.902s: ActEnded
1m41.103s: SwitchedOn
4m10.902s: NodeReturned Recovered quarantine=false
`},
	{"restart while releasing", func(s *simulation) {
		s.script[6850*time.Millisecond] = (*simulation).restart
	}, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! act=power-management-1-0-0=bmc-off
1.201s: ActEnded Proving
6.602s: OffProven
6.803s: Releasing out-of-service=true
6.85s: delete=db-0
7.85s: Released out-of-service=false
13.15s: ActStarted act=power-management-1-0-1=bmc-on
14.15s: ActEnded
14.351s: SwitchedOn
2m44.15s: NodeReturned Recovered quarantine=false
`},
	{"dry run", func(s *simulation) {
		s.dryRun = true
		s.script[10*time.Minute] = func(s *simulation) { s.boot("b1") }
	}, `
0s: open FenceOpened!
1ms: PowerDelayOver AttemptStarted
201ms: ActStarted! Proving
5.401s: WouldRelease
10m0s: Recovered
`},
	{"isolation first", func(s *simulation) {
		s.plan.Isolation = []Level{noIdentity(level(false, "switch"))}
		s.plan.Recovery = []Level{{Methods: []Method{{Name: "switch-on", Device: "switch", Action: On, Identity: CheckNone, MustSuccess: true}}}}
		s.devices["switch"] = bmc()
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
5m1.001s: PowerDelayOver AttemptStarted
5m1.201s: ActStarted! act=power-management-2-0-0=bmc-off
5m2.201s: ActEnded Proving
5m7.602s: OffProven
5m7.803s: Releasing out-of-service=true
5m7.903s: delete=db-0
5m8.903s: Released out-of-service=false
5m14.203s: ActStarted act=power-management-2-0-1=bmc-on
5m15.203s: ActEnded
5m15.404s: SwitchedOn
7m45.203s: NodeReturned AttemptStarted ActStarted act=recovery-3-0-0=switch-on
7m46.203s: ActEnded Recovered quarantine=false
`},
	{"isolation helps: Ready again", func(s *simulation) {
		s.plan.Isolation = []Level{noIdentity(level(false, "switch"))}
		s.devices["switch"] = bmc()
		s.script[2*time.Minute] = func(s *simulation) { s.boot("b1") }
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded Isolated
2m0s: NodeReadyUnproven! NodeReturned Recovered quarantine=false
`},
	{"isolation fails", func(s *simulation) {
		s.plan.Isolation = []Level{noIdentity(level(false, "switch"))}
		s.devices["switch"] = bmc()
		s.devices["switch"].refuses = true
		s.until = 6 * time.Minute
	}, `
0s: open FenceOpened! quarantine=true
1ms: AttemptStarted ActStarted! act=isolation-1-0-0=switch-off
1.001s: ActEnded! MethodFailed!
31.001s: Retrying AttemptStarted ActStarted! act=isolation-2-0-0=switch-off
32.001s: ActEnded! MethodFailed!
1m32.001s: Retrying AttemptStarted ActStarted! act=isolation-3-0-0=switch-off
1m33.001s: ActEnded! MethodFailed!
3m33.001s: Retrying AttemptStarted ActStarted! act=isolation-4-0-0=switch-off
3m34.001s: ActEnded! MethodFailed!
5m1.001s: PowerDelayOver AttemptStarted
5m1.201s: ActStarted! act=power-management-5-0-0=bmc-off
5m2.201s: ActEnded Proving
5m7.602s: OffProven
5m7.803s: Releasing out-of-service=true
5m7.903s: delete=db-0
5m8.903s: Released out-of-service=false
5m14.203s: ActStarted act=power-management-5-0-1=bmc-on
5m15.203s: ActEnded
5m15.404s: SwitchedOn
`},
	{"no methods", func(s *simulation) { s.plan.PowerManagement = nil; s.until = 10 * time.Minute }, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver GaveUp!
`},
	{"Lease gone", func(s *simulation) { s.lease.Found = false; s.until = 10 * time.Minute }, `
0s: open FenceOpened! quarantine=true
1ms: PowerDelayOver Waiting!
`},
}
