package fence

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRandomFences runs fences with random devices, events and restarts, and checks the rules that must hold in each.
func TestRandomFences(t *testing.T) {
	runs := uint64(100_000)
	if testing.Short() {
		runs = 2_000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	workers := uint64(runtime.GOMAXPROCS(0))
	ends := make([]map[string]int, workers)
	var wg sync.WaitGroup
	for w := range workers {
		ends[w] = map[string]int{}
		wg.Go(func() {
			for seed := w; seed < runs && !t.Failed(); seed += workers {
				ends[w][randomFence(t, seed, ends[w])]++
			}
		})
	}
	wg.Wait()
	total := map[string]int{}
	for _, m := range ends {
		for end, n := range m {
			total[end] += n
		}
	}
	checkReached(t, total, runs)
}

// randomFence runs one fence and returns how it ended. It counts what happened in ends.
func randomFence(t *testing.T, seed uint64, ends map[string]int) string {
	rnd := rand.New(rand.NewPCG(seed, 1))
	chance := func(percent int) bool { return rnd.IntN(100) < percent }
	s := newSimulation(t, randomPlan(rnd))
	s.noJSON = true
	mode := modeOf(seed)
	s.dryRun = chance(5)
	s.until = 90 * time.Minute
	s.devices = map[string]*fakeDevice{}
	for _, name := range []string{"bmc", "plug1", "plug2", "switch", "switch2"} {
		s.devices[name] = randomDevice(rnd)
	}
	s.load.Pods[0].Volumes, s.load.Attachments[0].Volume = []Volume{{Driver: san}}, Volume{Driver: san}
	s.load.Attachments[0].Pods = []string{s.load.Pods[0].UID}
	if chance(20) {
		s.bootTime = never
	}
	if unpowered := rand.New(rand.NewPCG(seed, 2)); unpowered.IntN(4) == 0 {
		randomAnswers(s, unpowered)
	}
	if set := rand.New(rand.NewPCG(seed, 3)); set.IntN(8) == 0 {
		by := time.Duration(1+set.IntN([]int{20, 600, 1_000_000}[set.IntN(3)])) * time.Second
		s.after(time.Duration(set.IntN(120_000))*time.Millisecond, func() {
			if acts := s.state.Acts; s.state.Intent == nil { // the deadline of one is waited for
				s.setBack(by)
				s.state.Acts = acts // they are reported again
			}
		})
	}
	randomEvents(s, rnd, mode)
	if mode.drills && chance(40) {
		randomDrill(s, rnd)
	}
	if chance(25) {
		s.plan.Kdump, s.kdump.Since = []KdumpMode{KdumpDelay, KdumpRelease, KdumpRelease}[rnd.IntN(3)], begin.Add(-time.Hour)
		from := time.Duration(rnd.IntN(60)) * time.Second
		s.dump(from, from+time.Duration(rnd.IntN(900))*time.Second)
	}
	s.watchdog = WatchdogFacts{Advert: "1", Armed: chance(90), Why: "not armed", BootID: "b1", Bound: 3 * time.Minute}
	s.unchanged = time.Duration(rnd.IntN(600)-300) * time.Second
	v := &verifier{s: s, seed: seed, rnd: rnd, acts: map[string]bool{}, portOn: map[string]time.Time{}, lastOff: map[string]Reading{},
		reached: map[string]bool{}, ambushed: map[Phase]bool{}}
	s.check = func(in Inputs, o Orders) {
		v.check(in, o)
		v.ambush(mode)
	}
	last := time.Duration(0)
	for at := range s.script {
		last = max(last, at)
	}
	for _, d := range s.devices {
		last = max(last, d.answers)
	}
	s.done = func() bool { return s.at > last+2*time.Minute && v.class() != "" }
	s.run()
	end := v.end()
	for what := range v.reached {
		ends[what]++
	}
	return end
}

func randomPlan(rnd *rand.Rand) Plan {
	on := rnd.IntN(4) > 0
	bmc, plugs := level(on, "bmc"), noIdentity(level(on, "plug1", "plug2"))
	var p Plan
	switch rnd.IntN(6) {
	case 0, 1, 2:
		p = powerPlan(bmc)
	case 3:
		p = powerPlan(plugs)
	case 4:
		p = powerPlan(bmc, plugs)
	case 5:
		p = powerPlan(level(on, "bmc", "plug1"))
	}
	if rnd.IntN(6) == 0 {
		p.PowerManagement = append(p.PowerManagement, watchdogLevel())
	}
	if rnd.IntN(5) < 2 {
		randomIsolation(&p, rnd)
	}
	if rnd.IntN(5) == 0 {
		l := &p.PowerManagement[0]
		at := slices.IndexFunc(l.Methods, func(m Method) bool { return m.Action == On })
		if at < 0 {
			at = len(l.Methods)
		}
		l.Methods = slices.Insert(l.Methods, at, Method{Name: "clean", Action: CleanPods})
	}
	return p
}

// randomIsolation adds Isolation, mostly of storage, and Recovery.
func randomIsolation(p *Plan, rnd *rand.Rand) {
	on := func(device string) Method {
		return Method{Name: device + "-on", Device: device, Action: On, Identity: CheckNone, MustSuccess: rnd.IntN(4) > 0}
	}
	one, two := noIdentity(level(false, "switch")), noIdentity(level(false, "switch", "switch2"))
	two.Methods[1].MustSuccess = rnd.IntN(2) == 0
	p.Isolation = [][]Level{{one}, {two}, {one, two}}[rnd.IntN(3)]
	for _, l := range p.Isolation {
		if rnd.IntN(4) > 0 {
			l.Methods[0].Releases = []string{san}
		}
	}
	p.Recovery = []Level{{Methods: []Method{on("switch"), on("switch2")}}}
	if rnd.IntN(2) == 0 {
		p.Isolation[0].Methods = append([]Method{{Name: "cordon", Action: Cordon}}, p.Isolation[0].Methods...)
		p.Recovery[0].Methods = append(p.Recovery[0].Methods, Method{Name: "uncordon", Action: Uncordon})
	}
}

func randomDevice(rnd *rand.Rand) *fakeDevice {
	d := bmc()
	d.act = time.Duration(1+rnd.IntN(8000)) * time.Millisecond
	d.read = time.Duration(1+rnd.IntN(8000)) * time.Millisecond
	d.ignores = rnd.IntN(8) == 0
	d.refuses = rnd.IntN(12) == 0
	d.lies = rnd.IntN(12) == 0
	if rnd.IntN(12) == 0 {
		d.uuid = []string{"", "b" + uuid[1:], strings.Repeat("0", 32)}[rnd.IntN(3)]
	}
	if rnd.IntN(8) == 0 {
		d.read = time.Duration(8+rnd.IntN(18)) * time.Second
	}
	if rnd.IntN(8) == 0 {
		d.again = time.Duration(1+rnd.IntN(30_000)) * time.Millisecond
	}
	if rnd.IntN(12) == 0 {
		d.returns = time.Duration(1+rnd.IntN(30_000)) * time.Millisecond
	}
	if rnd.IntN(3) == 0 {
		d.silent = time.Duration(rnd.IntN(120_000)) * time.Millisecond
		d.answers = d.silent + time.Duration(rnd.IntN([]int{60_000, 900_000}[rnd.IntN(2)]))*time.Millisecond
		if rnd.IntN(2) == 0 {
			d.late = time.Duration(rnd.IntN(60_000)) * time.Millisecond
		}
	}
	return d
}

// randomAnswers makes the BMC of a node with plugs answer with errors for a while.
func randomAnswers(s *simulation, rnd *rand.Rand) {
	s.plan.PowerManagement = []Level{level(false, "bmc"), noIdentity(level(rnd.IntN(2) == 0, "plug1"))}
	s.plan.PowerManagement[0].Methods[0].SeparatePower = rnd.IntN(4) == 0
	d := s.devices["bmc"]
	d.silent, d.broken = never, time.Millisecond
	if rnd.IntN(2) == 0 {
		d.repaired = time.Duration(rnd.IntN(300_000)) * time.Millisecond
		d.on = rnd.IntN(3) == 0
	}
	if rnd.IntN(2) == 0 {
		d.silent = time.Duration(rnd.IntN(120_000)) * time.Millisecond
		d.answers = d.silent + time.Duration(rnd.IntN(300_000))*time.Millisecond
	}
}

// randomGate returns a gate that is open, or closed by a storm, by the controller, or by a person.
func randomGate(rnd *rand.Rand, mode generatorMode, now time.Time) Gate {
	switch rnd.IntN(4) {
	case 0:
		return Gate{Open: true, RateFull: now.Add(5 * time.Minute)}
	case 1:
		return Gate{Reason: ReasonTooManyUnhealthy, Storm: true, Overridable: true, StormUntil: now.Add(6 * time.Minute)}
	case 2:
		return Gate{Reason: "DryRun", Withheld: mode.withheld}
	}
	return Gate{Reason: "Paused", Withheld: mode.withheld}
}

// randomEvents scripts up to five events, one of them often a gate that changes near the release.
func randomEvents(s *simulation, rnd *rand.Rand, mode generatorMode) {
	events := []func(*simulation){
		(*simulation).restart, (*simulation).restart,
		func(s *simulation) { s.boot("b1") },
		func(s *simulation) { s.boot("b2") },
		(*simulation).die,
		func(s *simulation) { s.lease.Renewed, s.lease.UnchangedSince = s.now(), s.now() },
		func(s *simulation) { s.lease.Known = !s.lease.Known },
		func(s *simulation) { s.lease.Found = !s.lease.Found },
		func(s *simulation) { s.node.Found = false },
		func(s *simulation) { s.node.UID = "n2" },
		func(s *simulation) { s.gate = randomGate(rnd, mode, s.now()) },
		func(s *simulation) { s.gate = randomGate(rnd, mode, s.now()) },
		func(s *simulation) { s.watchdog.Advert, s.unchanged = s.watchdog.Advert+"1", s.at },
		func(s *simulation) { s.node.ConfirmOff = fenceUID },
		func(s *simulation) { s.node.ConfirmOff = "other" },
		func(s *simulation) { s.load.AttachmentsKnown = !s.load.AttachmentsKnown },
		func(s *simulation) { s.load.PodsKnown = !s.load.PodsKnown },
	}
	for _, name := range []string{"bmc", "plug1", "plug2", "switch", "switch2"} {
		events = append(events,
			func(s *simulation) { s.devices[name].on = true },
			func(s *simulation) { s.devices[name].on = false },
			func(s *simulation) { s.devices[name].ignores = !s.devices[name].ignores })
	}
	limit := []int{30_000, 120_000, 600_000}[rnd.IntN(3)]
	if rnd.IntN(4) == 0 {
		s.script[time.Duration(5_000+rnd.IntN(5_000))*time.Millisecond] = func(s *simulation) { s.gate = randomGate(rnd, mode, s.now()) }
	}
	for range rnd.IntN(5) {
		s.script[time.Duration(rnd.IntN(limit))*time.Millisecond] = events[rnd.IntN(len(events))]
	}
}

// verifier checks each step of a random fence.
type verifier struct {
	s       *simulation
	seed    uint64
	rnd     *rand.Rand
	acts    map[string]bool
	busy    time.Time // until then an act may be executed
	lastEnd time.Time // of an act
	lastOn  time.Time // end of the last reading on
	// portOn is when each device of Isolation was read on last.
	portOn map[string]time.Time
	// heard are the last datagrams because of which pods may be released.
	heard      []time.Time
	switchedOn bool // by an act
	tainted    bool
	// answer is the last reading of the BMC.
	answer Reading
	// lastOff is the last reading off of each device since one that says otherwise.
	lastOff map[string]Reading
	// confirmed says that the annotation had the fence's UID.
	confirmed bool
	// reached is what happened in the run, and ambushed are the phases with an event of their own.
	reached  map[string]bool
	ambushed map[Phase]bool
}

func (v *verifier) fail(format string, args ...any) {
	v.s.t.Fatalf("seed %d at %v: %s\n%s\n%+v", v.seed, v.s.at, fmt.Sprintf(format, args...), strings.Join(v.s.log, "\n"), v.s.state)
}

func (v *verifier) check(in Inputs, o Orders) {
	now, state := v.s.now(), &v.s.state
	devices := state.powerDevices()
	on := v.observe(in, devices)
	v.hear(in)
	v.checkReset(in)
	v.reach(in, o, on)
	v.checkWithheld(in, o)
	release := o.Taints.OutOfService || len(o.Delete) > 0
	if !o.Taints.OutOfService && len(o.Delete)+len(o.Detach) > 0 {
		release = false
		v.checkUnproven(in, o, now)
	}
	// A reading that ended before the proof began is a late one.
	if v.tainted && on && release && (state.Proof == nil || v.lastOn.After(state.Proof.begun())) {
		v.fail("released further although a device reads on")
	}
	if o.Taints.OutOfService && !v.tainted {
		v.checkReleasing(in)
	}
	begins := !v.tainted
	v.tainted = o.Taints.OutOfService
	if release {
		v.checkRelease(in, begins)
	}
	if o.Act != nil {
		v.checkAct(o.Act, now)
	}
	if state.DryRun && (o.Act != nil || o.Taints != Taints{} || len(o.Delete) > 0) {
		v.fail("act in dry run: %+v", o)
	}
	if state.FinishedAt.IsZero() && !state.DryRun && !o.Taints.Quarantine {
		v.fail("no quarantine")
	}
	v.checkSize(devices)
	v.repeat(now)
}

func (v *verifier) checkSize(devices []string) {
	state := &v.s.state
	if len(state.History) > maxHistory || len(state.Readings) > 3*len(devices) ||
		state.Storage != nil && len(state.Storage.Readings) > 4 {
		v.fail("state is not bounded")
	}
}

// observe notes the readings of a step, and reports whether a power device reads on.
func (v *verifier) observe(in Inputs, devices []string) (on bool) {
	for _, x := range in.Outcomes {
		if v.acts[x.Intent] {
			v.busy = time.Time{}
			v.lastEnd = x.Ended.Time
		}
	}
	for _, x := range in.Readings {
		if strings.HasPrefix(x.Device, "switch") && x.Power == PowerOn && x.Ended.After(v.portOn[x.Device]) {
			v.portOn[x.Device] = x.Ended.Time
		}
	}
	v.confirmed = v.confirmed || in.Node.ConfirmOff == fenceUID
	for _, x := range in.Readings {
		if x.Device == "bmc" && x.Started.After(v.answer.Started.Time) {
			v.answer = x
		}
		if x.Started.After(v.lastOff[x.Device].Started.Time) { // else a late one
			v.lastOff[x.Device] = x
			if x.Power != PowerOff {
				delete(v.lastOff, x.Device)
			}
		}
		if x.Power == PowerOn && slices.Contains(devices, x.Device) {
			on = true
			if x.Ended.After(v.lastOn) {
				v.lastOn = x.Ended.Time
			}
		}
	}
	return on
}

// checkUnproven checks a release without the taint: of storage that the node is cut off from, or of pods alone.
func (v *verifier) checkUnproven(in Inputs, o Orders, now time.Time) {
	if len(o.Detach) > 0 || v.s.state.Plan.Kdump != KdumpRelease || v.s.state.Step == Isolation && v.s.state.Status == Done &&
		len(o.Delete) == 1 && o.Delete[0].UID == "p1" && v.s.state.storageReleased() {
		v.checkStorage(in, o, now)
		return
	}
	v.checkDump(in, now)
}

// hear notes the datagrams that came in one session while the node was not Ready and its Lease did not change.
func (v *verifier) hear(in Inputs) {
	k, l := in.Kdump, in.Lease
	if n := len(v.heard); n == 0 || k.Last.Sub(v.heard[n-1]) >= kdumpSilence {
		v.heard = nil
	}
	v.heard = slices.DeleteFunc(v.heard, func(t time.Time) bool { return !t.After(l.UnchangedSince) })
	if n := len(v.heard); in.Node.Ready != ReadyTrue && l.Known && k.Last.After(l.UnchangedSince) &&
		(n == 0 || k.Last.After(v.heard[n-1])) {
		v.heard = append(v.heard, k.Last)
	}
}

// checkDump checks that pods are released for a dump only while it goes on, and before the machine is switched off.
func (v *verifier) checkDump(in Inputs, now time.Time) {
	s := &v.s.state
	v.reached["released for a dump"] = true
	if s.Plan.Kdump != KdumpRelease || s.Step == Recovery || s.Phase != "" || s.DryRun || !s.FirstOff.IsZero() {
		v.fail("released pods without a proof in %s %s, phase %q", s.Step, s.Status, s.Phase)
	}
	if in.Node.Ready == ReadyTrue || !in.Node.Found || in.Node.UID != s.Target.UID || !in.Gate.Open || !stale(in.Lease, s.Plan.Timings, now) {
		v.fail("released pods of a node that is %+v, Lease %+v, gate %+v", in.Node, in.Lease, in.Gate)
	}
	if n := len(v.heard); n < 2 || v.heard[n-1].Sub(v.heard[0]) < kdumpApart || now.Sub(v.heard[n-1]) >= kdumpSilence || in.Kdump.Since.IsZero() {
		v.fail("released pods with the datagrams %v", v.heard)
	}
}

// checkStorage checks that pods are released only while each port of the level is off, and only those of the storage.
func (v *verifier) checkStorage(in Inputs, o Orders, now time.Time) {
	s := &v.s.state
	v.reached["released storage"] = true
	if s.Step != Isolation || s.Status != Done || s.DryRun || !s.storageReleased() || s.Storage.Proven.IsZero() {
		v.fail("released storage in %s %s, %+v", s.Step, s.Status, s.Storage)
	}
	if in.Node.Ready == ReadyTrue || !in.Node.Found || in.Node.UID != s.Target.UID || !in.Gate.Open || !stale(in.Lease, s.Plan.Timings, now) {
		v.fail("released storage of a node that is %+v, Lease %+v, gate %+v", in.Node, in.Lease, in.Gate)
	}
	devices, _ := s.isolated()
	if len(devices) == 0 {
		v.fail("released storage without a device")
	}
	for _, d := range devices {
		v.checkPort(d, now)
	}
	onlyOf := func(uid string) bool { return uid == "p1" || uid == "v1" }
	for _, p := range o.Delete {
		if !onlyOf(p.UID) {
			v.fail("released pod %+v", p)
		}
	}
	for _, a := range o.Detach {
		if !onlyOf(a.UID) || len(a.Pods) > 0 {
			v.fail("released attachment %+v", a)
		}
	}
}

// checkPort checks that a port was read off twice since the last act and since it was read on, and just now.
func (v *verifier) checkPort(device string, now time.Time) {
	s := &v.s.state
	var off []Reading
	for _, x := range s.Storage.Readings {
		if x.Device == device && x.Power == PowerOff && x.Started.After(v.lastEnd) && x.Started.After(v.portOn[device]) {
			off = append(off, x)
		}
	}
	if len(off) != 2 || off[1].Started.Sub(off[0].Ended.Time) < s.Plan.Timings.ProofInterval.Duration ||
		now.Sub(off[1].Started.Time) > s.Plan.Timings.ProofTimeout.Duration {
		v.fail("released storage with the readings %+v of %s, read on at %v, last act at %v", off, device, v.portOn[device], v.lastEnd)
	}
}

// repeat delivers outcomes and readings a second time, and saves the state, at random.
func (v *verifier) repeat(now time.Time) {
	if v.rnd.IntN(1000) == 0 {
		v.s.roundTrip()
	}
	if n := len(v.s.state.Acts); n > 0 && v.rnd.IntN(20) == 0 {
		last := v.s.state.Acts[n-1].Outcome
		last.Kind = []OutcomeKind{Succeeded, Failed, Unknown, Refused}[v.rnd.IntN(4)]
		v.s.outcomes = append(v.s.outcomes, last)
		v.reached["outcome reported twice"] = true
	}
	if f := v.s.state.Storage; f != nil && len(f.Readings) > 0 && v.rnd.IntN(10) == 0 {
		v.s.readings = append(v.s.readings, f.Readings[v.rnd.IntN(len(f.Readings))])
	}
	if n := len(v.s.state.Readings); n > 0 && v.rnd.IntN(10) == 0 {
		x := v.s.state.Readings[v.rnd.IntN(n)]
		if v.rnd.IntN(2) == 0 {
			x.Started = micro(now.Add(-time.Duration(v.rnd.IntN(60)) * time.Second))
			x.Ended = x.Started
		}
		v.s.readings = append(v.s.readings, x)
	}
}

// checkRelease checks that what is released has a proof that no later reading contradicts.
func (v *verifier) checkRelease(in Inputs, begins bool) {
	s := &v.s.state
	p := s.Proof
	if p == nil || s.Phase != Releasing {
		v.fail("released in phase %q with proof %+v", s.Phase, p)
	}
	if in.Node.Ready == ReadyTrue || !in.Node.Found || in.Node.UID != s.Target.UID {
		v.fail("released a node that is Ready, gone or replaced")
	}
	if p.How != ByReadings {
		v.checkOptIn(in, p)
		return
	}
	count := map[string]int{}
	for _, x := range p.Readings {
		count[x.Device]++
		if x.Power != PowerOff || !x.Started.After(v.lastOn) || !x.Started.After(v.lastEnd) {
			v.fail("reading %+v is no proof: read on at %v, act ended at %v", x, v.lastOn, v.lastEnd)
		}
		if s.checked(x.Device) && SameMachine(x.UUID, s.Target.SystemUUID) != Yes {
			v.fail("reading %+v is of another machine", x)
		}
	}
	complete := false
	for i := range s.Plan.PowerManagement {
		one := Plan{PowerManagement: s.Plan.PowerManagement[i : i+1]}
		complete = complete || !slices.ContainsFunc(one.devices(Off, 0), func(d string) bool { return count[d] != 2 })
	}
	if !complete {
		v.fail("the proof %+v covers no level", p)
	}
	v.checkOutlets(p, begins)
}

// checkOutlets checks that nothing is released by plugs while the BMC of the node answers without their power. Before
// the release begins it is silent, or says off.
func (v *verifier) checkOutlets(p *Proof, begins bool) {
	s := &v.s.state
	if !strings.HasPrefix(p.Readings[0].Device, "plug") || !slices.Contains(s.powerDevices(), "bmc") || s.separatePower("bmc") ||
		slices.ContainsFunc(p.Readings, func(x Reading) bool { return x.Device == "bmc" }) {
		return
	}
	v.reached["released by plugs beside a BMC"] = true
	settled := v.answer.Started.After(p.Readings[0].Ended.Add(s.Plan.Timings.Settle.Duration))
	if v.answer.Answered && v.answer.Started.After(s.LastAct.Time) && (settled || begins) {
		v.fail("released by the readings %+v although the BMC answers: %+v", p.Readings, v.answer)
	}
}

// checkOptIn checks a release by a person's word, or by the node's watchdog.
func (v *verifier) checkOptIn(in Inputs, p *Proof) {
	known := v.confirmed
	if p.How == ByWatchdog {
		known = v.s.state.usesWatchdog() && p.Watchdog == in.Watchdog.Advert
	}
	if !known || v.lastOn.After(p.At.Time) {
		v.fail("proof %+v; read on at %v, advert %q", p, v.lastOn, in.Watchdog.Advert)
	}
}

// checkReset checks a proof by the node's watchdog in the step that has it: later, a new controller knows less.
func (v *verifier) checkReset(in Inputs) {
	now, s := v.s.now(), &v.s.state
	if s.Proof == nil || s.Proof.How != ByWatchdog || !s.Proof.At.Time.Equal(now) {
		return
	}
	w := in.Watchdog
	if !w.Armed || w.Unchanged < w.Bound || w.BootID != s.Target.BootID || !stale(in.Lease, s.Plan.Timings, now) {
		v.fail("proof by the watchdog %+v, Lease %+v", w, in.Lease)
	}
}

// checkReleasing checks that a release begins while the gate is open, and just after each device of the proof was read off.
func (v *verifier) checkReleasing(in Inputs) {
	now, p := v.s.now(), v.s.state.Proof
	confirmed := p != nil && p.How == Confirmed
	if p != nil && p.How == ByWatchdog {
		v.reached["reset by its watchdog"] = true
		if !in.Gate.Open {
			v.fail("release began while the gate is closed: %+v", in.Gate)
		}
		return
	}
	if g := in.Gate; !g.Open && (!confirmed || !g.Overridable) {
		v.fail("release began while the gate is closed: %+v", g)
	}
	if p == nil || confirmed {
		return
	}
	for _, x := range p.Readings {
		last, ok := v.lastOff[x.Device]
		recent := 2*v.s.plan.Timings.ProofInterval.Duration + v.longestOther(x.Device)
		if !ok || now.Sub(last.Ended.Time) > recent || !last.Started.After(x.Started.Time) {
			v.fail("release began; last reading off of %s is %+v, part of the proof %+v", x.Device, last, x)
		}
	}
}

// checkKdump checks that Power-Management does not switch off for the first time while a dump goes on, unless the one
// wait for it is over.
func (v *verifier) checkKdump(i *Intent, now time.Time) {
	s, k := &v.s.state, v.s.kdump
	first := i.Step == PowerManagement && i.Action == Off && s.FirstOff.Time.Equal(now)
	if !first || k.Since.IsZero() || s.Plan.Kdump == "" {
		return
	}
	if goesOn := k.Datagrams > 0 && now.Sub(k.Last) < kdumpSilence; goesOn && s.Kdump == nil ||
		s.Kdump != nil && s.Kdump.Phase != KdumpFinished {
		v.fail("switched off during a dump")
	}
}

// checkAct checks that there is one act at a time, and none twice.
func (v *verifier) checkAct(i *Intent, now time.Time) {
	s := &v.s.state
	switch {
	case v.acts[i.ID]:
		v.fail("act %s is repeated", i.ID)
	case now.Before(v.busy):
		v.fail("act %s while another may be executed until %v", i.ID, v.busy)
	case s.Intent == nil || s.Intent.ID != i.ID:
		v.fail("act %s is not the intent of the state", i.ID)
	case i.Action == Off && s.Step == PowerManagement && (s.Phase != "" || v.s.node.Ready == ReadyTrue && !s.Drill || !v.s.gate.Open):
		v.fail("off in phase %q of a node that is %s, gate %+v", s.Phase, v.s.node.Ready, v.s.gate)
	case i.Action == On && s.Step == PowerManagement && s.Phase != Released:
		v.fail("on before the release")
	}
	v.checkKdump(i, now)
	v.checkDrill(i)
	v.checkAfterRelease(i)
	v.acts[i.ID] = true
	v.busy = i.Deadline.Time
}

// checkAfterRelease checks the acts that must not come too early.
func (v *verifier) checkAfterRelease(i *Intent) {
	s := &v.s.state
	switch {
	case i.Action == CleanPods && (s.Phase != Released || s.Proof == nil || v.s.node.Ready == ReadyTrue || v.switchedOn):
		v.fail("clean-pods in phase %q, proof %+v, of a node that is %s, on sent: %t", s.Phase, s.Proof, v.s.node.Ready, v.switchedOn)
	case s.Step == Recovery && s.storageReleased():
		if v.reached["unfenced"] = true; v.s.node.BootID == s.Target.BootID {
			v.fail("unfenced with the boot ID %q", v.s.node.BootID)
		}
	}
	v.switchedOn = v.switchedOn || i.Action == On
}

// class returns how the fence ended; empty if it goes on.
func (v *verifier) class() string {
	s := &v.s.state
	switch {
	case s.Result == Fenced && s.FinishedAt.IsZero():
		return "Fenced"
	case s.Result != "":
		return string(s.Result)
	case s.is(ConditionGaveUp):
		return "gave up"
	case s.DryRun && s.Status == Done:
		return "dry run"
	}
	for _, c := range []string{ConditionStormHold, ConditionWaiting, ConditionVerificationFailed, ConditionNodeDidNotReturn,
		ConditionReleaseStuck} {
		if s.is(c) {
			return "held"
		}
	}
	return ""
}

// end returns how the fence ended, and fails if it did not.
func (v *verifier) end() string {
	class := v.class()
	if class == "" {
		v.fail("did not end")
	}
	return class
}
