package fence

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var begin = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	uuid     = "a1234567-89ab-cdef-a123-456789abcdef"
	fenceUID = "f1"
	never    = time.Duration(-1)
)

func micro(t time.Time) metav1.MicroTime       { return metav1.NewMicroTime(t) }
func duration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

// level returns a level with an off of each device, and with on an on of each.
func level(on bool, devices ...string) Level {
	var l Level
	for _, action := range []Action{Off, On} {
		for _, d := range devices {
			if action == Off || on {
				l.Methods = append(l.Methods, Method{Name: d + "-" + string(action), Agent: "ipmi", Action: action, Device: d,
					MustSuccess: action == Off, Identity: CheckUUID, Deadline: duration(30 * time.Second)})
			}
		}
	}
	return l
}

// noIdentity makes the methods of a level not compare UUIDs.
func noIdentity(l Level) Level {
	for i := range l.Methods {
		l.Methods[i].Identity = CheckNone
	}
	return l
}

func powerPlan(levels ...Level) Plan {
	return Plan{PowerManagement: levels, Timings: DefaultTimings(), Hash: "h"}
}

// fakeDevice is a power device and its behaviour.
type fakeDevice struct {
	uuid string
	on   bool
	// act and read are the durations of an act and of a reading.
	act, read time.Duration
	// ignores accepts commands and does nothing; refuses answers with an error.
	ignores, refuses bool
	// silent does not answer from its time on until answers, after the beginning; late is when a command that was not
	// answered takes effect, after it was issued; negative for never.
	silent, answers, late time.Duration
	// lies reports off while on.
	lies bool
	// foreign switches another machine.
	foreign bool
	// broken answers each reading with an error, from its time on until repaired, after the beginning; 0 for never.
	broken, repaired time.Duration
	// again is after which time a command is executed a second time, as from a datagram that the network delivered late;
	// returns is after which time the machine is on again after off, as with the power policy always-on; 0 for never.
	again, returns time.Duration
}

func bmc() *fakeDevice {
	return &fakeDevice{uuid: uuid, on: true, act: time.Second, read: 200 * time.Millisecond, silent: never, late: never}
}

func (d *fakeDevice) answersAt(at time.Duration) bool {
	return d.silent < 0 || at < d.silent || d.answers > 0 && at >= d.answers
}

func (d *fakeDevice) brokenAt(at time.Duration) bool {
	return d.broken > 0 && at >= d.broken && (d.repaired == 0 || at < d.repaired)
}

// occurrence is something that happens in the simulation.
type occurrence struct {
	at  time.Duration
	run func()
}

// simulation is one fence of a node whose machine dies at the beginning.
type simulation struct {
	t       testing.TB
	plan    Plan
	dryRun  bool
	drill   bool
	devices map[string]*fakeDevice
	node    Node
	lease   Lease
	load    Load
	gate    Gate
	kdump   Kdump
	// watchdog is what the node says of its watchdog, unchanged since a time after the beginning.
	watchdog  WatchdogFacts
	unchanged time.Duration
	// script is what happens at which time after the beginning.
	script map[time.Duration]func(*simulation)
	// bootTime is the time from on to Ready; negative for never.
	bootTime time.Duration
	until    time.Duration
	noJSON   bool

	state     State
	at        time.Duration
	queue     []occurrence
	outcomes  []Outcome
	readings  []Reading
	inFlight  string
	executor  int
	reading   map[string]bool
	leaseRuns bool // the node renews its Lease
	taints    Taints
	log       []string

	// done ends the simulation early.
	done func() bool
	// check is called after each step.
	check func(in Inputs, o Orders)
}

func newSimulation(t testing.TB, p Plan) *simulation {
	lastRenewed := begin.Add(-time.Minute)
	return &simulation{
		t: t, plan: p, devices: map[string]*fakeDevice{"bmc": bmc()}, gate: Gate{Open: true}, bootTime: 90 * time.Second,
		node:  Node{Found: true, Name: "a", UID: "n1", Ready: ReadyUnknown, BootID: "b1", SystemUUID: uuid},
		lease: Lease{Known: true, Found: true, Renewed: lastRenewed, UnchangedSince: lastRenewed},
		load: Load{PodsKnown: true, AttachmentsKnown: true,
			Pods: []Pod{{UID: "p1", Namespace: "x", Name: "db-0", StatefulSet: true}, {UID: "p2", Namespace: "x", Name: "ds", DaemonSet: true},
				{UID: "p3", Namespace: "x", Name: "mirror", Mirror: true}, {UID: "p4", Namespace: "x", Name: "stays", Tolerates: true}},
			Attachments: []Attachment{{UID: "v1", Name: "csi-1"}, {UID: "v2", Name: "csi-2", KeptByPod: true}}},
		until: 3 * time.Hour, reading: map[string]bool{}, script: map[time.Duration]func(*simulation){},
	}
}

func (s *simulation) now() time.Time { return begin.Add(s.at) }

func (s *simulation) after(d time.Duration, run func()) {
	s.queue = append(s.queue, occurrence{s.at + d, run})
}

// run runs the simulation until the fence is finished or the time is over, and returns the timeline.
func (s *simulation) run() []string {
	s.t.Helper()
	for at, f := range s.script {
		s.queue = append(s.queue, occurrence{at, func() { f(s) }})
	}
	var o Orders
	if s.drill {
		s.state, o = OpenDrill(s.node, s.lease, s.plan, s.now())
	} else {
		s.state, o = Open(s.node, s.lease, s.plan, s.dryRun, s.now())
	}
	s.state.UID = fenceUID
	s.carryOut(o)
	s.note(o, "open")
	wake := o.Wake
	for steps := 0; s.state.FinishedAt.IsZero(); steps++ {
		if steps > 20_000 {
			s.t.Fatalf("not ended after %v: %+v\n%s", s.at, s.state, strings.Join(s.log, "\n"))
		}
		if wake.IsZero() || !wake.After(s.now()) {
			s.t.Fatalf("at %v: Wake = %v of an unfinished fence", s.at, wake)
		}
		next := wake.Sub(begin)
		for _, q := range s.queue {
			next = min(next, max(q.at, s.at))
		}
		if next > s.until || s.done != nil && s.done() {
			break
		}
		s.at = next
		s.happen()
		wake = s.step()
	}
	return s.log
}

// happen runs what is due.
func (s *simulation) happen() {
	slices.SortStableFunc(s.queue, func(a, b occurrence) int { return int(a.at - b.at) })
	for len(s.queue) > 0 && s.queue[0].at <= s.at {
		run := s.queue[0].run
		s.queue = s.queue[1:]
		run()
	}
}

func (s *simulation) step() time.Time {
	if s.leaseRuns {
		renewed := begin.Add(s.at.Truncate(10 * time.Second))
		if renewed.After(s.lease.Renewed) {
			s.lease.Renewed, s.lease.UnchangedSince = renewed, renewed
		}
	}
	in := Inputs{Node: s.node, Lease: s.lease, Load: s.load, Outcomes: s.outcomes, Readings: s.readings, InFlight: s.inFlight,
		Executor: "c" + strconv.Itoa(s.executor), Gate: s.gate, Kdump: s.kdump}
	in.Watchdog = s.watchdog
	in.Watchdog.Unchanged = max(0, s.at-s.unchanged)
	in.Node.Quarantined, in.Node.OutOfService = s.taints.Quarantine, s.taints.OutOfService
	s.outcomes, s.readings = nil, nil
	var o Orders
	s.state, o = Step(s.state, in, s.now())
	if !s.noJSON {
		s.roundTrip()
	}
	if s.check != nil {
		s.check(in, o)
	}
	s.carryOut(o)
	s.note(o, "")
	return o.Wake
}

// roundTrip saves the state as JSON and restores it.
func (s *simulation) roundTrip() {
	s.t.Helper()
	data, err := json.Marshal(s.state)
	if err != nil {
		s.t.Fatal(err)
	}
	var restored State
	if err := json.Unmarshal(data, &restored); err != nil {
		s.t.Fatal(err)
	}
	if diff := cmp.Diff(s.state, restored); diff != "" {
		s.t.Fatalf("at %v: state after JSON (-before +after):\n%s", s.at, diff)
	}
	s.state = restored
}

// restart simulates a new controller: outcomes and readings of the old one are lost, but its act goes on.
func (s *simulation) restart() {
	s.executor++
	s.inFlight, s.outcomes, s.readings = "", nil, nil
	s.reading = map[string]bool{}
	s.lease.UnchangedSince = s.now()
	if !s.kdump.Since.IsZero() {
		s.kdump = Kdump{Since: s.now()}
	}
}

func (s *simulation) carryOut(o Orders) {
	if o.Act != nil {
		s.act(*o.Act)
	}
	for _, d := range o.Read {
		if !s.reading[d] {
			s.read(d)
		}
	}
	for _, p := range o.Delete {
		s.load.Pods = slices.DeleteFunc(slices.Clone(s.load.Pods), func(x Pod) bool { return x.UID == p.UID })
		s.load.Attachments = slices.Clone(s.load.Attachments)
		for i := range s.load.Attachments {
			a := &s.load.Attachments[i]
			a.Pods = slices.DeleteFunc(slices.Clone(a.Pods), func(uid string) bool { return uid == p.UID })
		}
		if !o.Taints.OutOfService {
			s.after(time.Second, func() {}) // the controller calls Step
			continue
		}
		s.after(time.Second, func() {
			s.load.Attachments = slices.DeleteFunc(slices.Clone(s.load.Attachments), func(a Attachment) bool { return !a.KeptByPod })
		})
	}
	for _, d := range o.Detach {
		s.load.Attachments = slices.DeleteFunc(slices.Clone(s.load.Attachments), func(a Attachment) bool { return a.UID == d.UID })
	}
}

func (s *simulation) act(i Intent) {
	if i.Action.OnObjects() {
		s.inFlight = i.ID
		s.after(time.Second, func() {
			if s.inFlight == i.ID {
				s.inFlight = ""
				s.outcomes = append(s.outcomes, Outcome{Intent: i.ID, Kind: Succeeded, Ended: micro(s.now())})
			}
		})
		return
	}
	name := strings.TrimSuffix(i.Method, "-"+string(i.Action))
	d := s.devices[name]
	s.inFlight = i.ID
	executor := s.executor
	report := func(kind OutcomeKind, message string) {
		if executor == s.executor && s.inFlight == i.ID {
			s.inFlight = ""
			s.outcomes = append(s.outcomes, Outcome{Intent: i.ID, Kind: kind, Message: message, Ended: micro(s.now())})
		}
	}
	if !d.answersAt(s.at) {
		if d.late >= 0 {
			s.after(d.late, func() { s.power(d, i.Action) })
		}
		s.after(20*time.Second, func() { report(Unknown, "no answer") })
		return
	}
	s.after(d.act, func() {
		switch {
		case d.refuses:
			report(Failed, "completion code 0xff")
		case d.ignores:
			report(Succeeded, "")
		default:
			s.power(d, i.Action)
			report(Succeeded, "")
			if d.again > 0 {
				s.after(d.again, func() { s.power(d, i.Action) })
			}
			if d.returns > 0 && i.Action == Off {
				s.after(d.returns, func() { s.power(d, On) })
			}
		}
	})
}

// power switches a device, and boots the machine once all devices are on.
func (s *simulation) power(d *fakeDevice, a Action) {
	d.on = a == On
	if d.foreign {
		return
	}
	if !d.on {
		s.lose()
		return
	}
	if s.bootTime >= 0 {
		s.after(s.bootTime, func() {
			if d.on {
				s.boot("b2")
			}
		})
	}
}

// boot makes the node Ready with a boot ID.
func (s *simulation) boot(id string) {
	s.leaseRuns = true
	s.lease.Renewed, s.lease.UnchangedSince = s.now(), s.now()
	s.node.Ready, s.node.BootID = ReadyTrue, id
}

// lose stops a machine. kube-controller-manager needs a while to see that.
func (s *simulation) lose() {
	if s.leaseRuns && s.node.Ready == ReadyTrue {
		s.after(50*time.Second, func() {
			if !s.leaseRuns {
				s.node.Ready = ReadyUnknown
			}
		})
	}
	s.leaseRuns = false
}

// die makes the node not Ready.
func (s *simulation) die() {
	s.leaseRuns, s.node.Ready = false, ReadyUnknown
}

func (s *simulation) read(name string) {
	s.reading[name] = true
	d := s.devices[name]
	started, executor := s.now(), s.executor
	took, answers := d.read, d.answersAt(s.at)
	if !answers {
		took = 10 * time.Second
	}
	s.after(took, func() {
		if executor != s.executor {
			return
		}
		delete(s.reading, name)
		x := Reading{Device: name, Power: PowerUnknown, Error: "no answer", Started: micro(started), Ended: micro(s.now())}
		if answers {
			x.Power, x.UUID, x.Error = PowerOff, d.uuid, ""
			if d.on && !d.lies {
				x.Power = PowerOn
			}
			if d.brokenAt(started.Sub(begin)) {
				x.Power, x.UUID, x.Error, x.Answered = PowerUnknown, "", "wrong password", true
			}
		}
		s.readings = append(s.readings, x)
	})
}

// note adds a line to the timeline if anything but a reading was ordered.
func (s *simulation) note(o Orders, words ...string) {
	words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
	for _, e := range o.Events {
		w := e.Reason
		if e.Warning {
			w += "!"
		}
		words = append(words, w)
	}
	if o.Act != nil {
		words = append(words, "act="+o.Act.ID+"="+o.Act.Method)
	}
	for _, p := range o.Delete {
		words = append(words, "delete="+p.Name)
	}
	for _, a := range o.Detach {
		words = append(words, "detach="+a.Name)
	}
	if o.Taints.OutOfService != s.taints.OutOfService {
		words = append(words, fmt.Sprintf("out-of-service=%v", o.Taints.OutOfService))
	}
	if o.Taints.Quarantine != s.taints.Quarantine {
		words = append(words, fmt.Sprintf("quarantine=%v", o.Taints.Quarantine))
	}
	if s.taints != o.Taints {
		s.after(100*time.Millisecond, func() {}) // the Node changes: the controller calls Step
	}
	s.taints = o.Taints
	if len(words) > 0 {
		s.log = append(s.log, fmt.Sprintf("%v: %s", s.at, strings.Join(words, " ")))
	}
}
