package fence

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// plugs returns a level that switches off plugs whose devices are not compared with the node.
func plugs(devices ...string) Level {
	l := noIdentity(level(true, devices...))
	for i := range l.Methods {
		l.Methods[i].Agent, l.Methods[i].Parameters = "fence_apc", map[string]string{"ip": "192.0.2.1", "plug": l.Methods[i].Device}
	}
	return l
}

func accepted(l Level) Level {
	l.Methods = slices.Clone(l.Methods)
	for i := range l.Methods {
		l.Methods[i].Unverified = Accept
	}
	return l
}

// TestDrillDigest: the digest has what names machine, devices and plugs, and nothing else. It is the same in each
// release: drills are kept.
func TestDrillDigest(t *testing.T) {
	node := Node{UID: "n1", SystemUUID: uuid}
	base := DrillDigest(node, plugs("1", "2"))
	if want := "v1-c7acb611debd75760fa29271be724e91"; base != want {
		t.Errorf("DrillDigest = %s; want %s as in the releases before", base, want)
	}
	change := func(f func(m *Method)) Level {
		l := plugs("1", "2")
		f(&l.Methods[0])
		return l
	}
	for name, tt := range map[string]struct {
		node  Node
		level Level
		same  bool
	}{
		"order":           {node, plugs("2", "1"), true},
		"no on":           {node, Level{Methods: plugs("1", "2").Methods[:2]}, true},
		"name":            {node, change(func(m *Method) { m.Name = "other" }), true},
		"deadline":        {node, change(func(m *Method) { m.Deadline = duration(time.Hour) }), true},
		"executor":        {node, change(func(m *Method) { m.Executor = InJob }), true},
		"Secret":          {node, change(func(m *Method) { m.Secrets = []string{"x"} }), true},
		"accepted":        {node, accepted(plugs("1", "2")), true},
		"Node":            {Node{UID: "n2", SystemUUID: uuid}, plugs("1", "2"), false},
		"machine":         {Node{UID: "n1", SystemUUID: "other"}, plugs("1", "2"), false},
		"one plug less":   {node, plugs("1"), false},
		"one more":        {node, plugs("1", "2", "3"), false},
		"agent":           {node, change(func(m *Method) { m.Agent = "fence_raritan" }), false},
		"device":          {node, change(func(m *Method) { m.Device = "3" }), false},
		"value in Secret": {node, change(func(m *Method) { m.SecretDigest = "1" }), false},
		"parameter":       {node, change(func(m *Method) { m.Parameters["plug"] = "3" }), false},
		"more parameters": {node, change(func(m *Method) { m.Parameters["switch"] = "1" }), false},
	} {
		if got := DrillDigest(tt.node, tt.level); (got == base) != tt.same {
			t.Errorf("%s: DrillDigest = %s, before %s; want the same %t", name, got, base, tt.same)
		}
	}
	// In a NodeFence an empty map of parameters is none.
	empty, none := level(true, "1"), level(true, "1")
	empty.Methods[0].Parameters = map[string]string{}
	if a, b := DrillDigest(node, empty), DrillDigest(node, none); a != b {
		t.Errorf("DrillDigest without parameters = %s and %s; want one digest", a, b)
	}
}

// TestDrilled: what nothing has shown to be of the node is left out of the plan.
func TestDrilled(t *testing.T) {
	node := Node{UID: "n1", SystemUUID: uuid}
	shown := []string{"v1-other", DrillDigest(node, plugs("1"))}
	bmcAndPlug := Level{Methods: slices.Concat(level(false, "bmc").Methods, plugs("2").Methods)}
	half := accepted(plugs("2", "3"))
	half.Methods[0].Unverified = ""
	watchdog := Level{Methods: []Method{{Name: "wd", Agent: "watchdog", Action: Watchdog, Identity: CheckNone}}}
	for name, tt := range map[string]struct {
		level Level
		left  string
	}{
		"uuid":                   {level(true, "bmc"), ""},
		"drilled":                {plugs("1"), ""},
		"not drilled":            {plugs("2"), "level 2 of power_management (2-off) is not used: no drill of this node has shown that it switches its machine off"},
		"one of two drilled":     {plugs("1", "2"), "level 2 of power_management (1-off, 2-off) is not used"},
		"accepted":               {accepted(plugs("2")), ""},
		"one of two accepted":    {half, "level 2 of power_management (2-off, 3-off) is not used"},
		"with a compared BMC":    {bmcAndPlug, ""},
		"watchdog":               {watchdog, ""},
		"many plugs are counted": {plugs("2", "3", "4", "5", "6", "7"), "(2-off, 3-off, 4-off, 5-off, 6-off and 1 more)"},
	} {
		p := powerPlan(level(true, "other"), tt.level)
		got := p.Drilled(node, shown)
		left := strings.Join(got.LeftOut, "; ")
		if want := 2 - len(got.LeftOut); (tt.left == "") != (left == "") || !strings.Contains(left, tt.left) || len(got.PowerManagement) != want {
			t.Errorf("%s: Drilled leaves out %q, %d levels; want %q, %d levels", name, left, len(got.PowerManagement), tt.left, want)
		}
		if len(p.PowerManagement) != 2 || p.LeftOut != nil {
			t.Errorf("%s: the configured plan was changed: %+v", name, p)
		}
	}
	port := storagePlan()
	released := func(p Plan) (n int) {
		for _, m := range p.Isolation[0].Methods {
			n += len(m.Releases)
		}
		return n
	}
	for i := range port.Isolation[0].Methods {
		port.Isolation[0].Methods[i].Identity = CheckUUID
	}
	compared := released(port.Drilled(node, shown))
	if compared == 0 {
		t.Error("Drilled removes the releases of a port that is compared with the node")
	}
	port.Isolation[0] = noIdentity(port.Isolation[0])
	if got := port.Drilled(node, shown); released(got) != 0 || len(got.LeftOut) != 1 || released(port) != compared {
		t.Errorf("Drilled leaves %d releases of an unverified port, LeftOut %q; want none", released(got), got.LeftOut)
	}
	port.Isolation[0] = accepted(port.Isolation[0])
	if got := port.Drilled(node, shown); released(got) != compared || got.LeftOut != nil {
		t.Errorf("Drilled leaves %d of %d releases of an accepted port; want all", released(got), compared)
	}
}

// TestNotDrilled: without a usable level nothing is switched off and nothing is released, until a person confirms. With
// one, that is used.
func TestNotDrilled(t *testing.T) {
	s := newSimulation(t, powerPlan(plugs("bmc")).Drilled(Node{UID: "n1", SystemUUID: uuid}, nil))
	s.until = 20 * time.Minute
	s.run()
	if !s.devices["bmc"].on || len(s.state.Acts) > 0 || !s.state.is(ConditionGaveUp) || !s.state.is(ConditionNotDrilled) || s.taints.OutOfService {
		t.Errorf("a plan that was not drilled: on %t, acts %v, conditions %v; want GaveUp without an act", s.devices["bmc"].on, s.state.Acts, s.state.Conditions)
	}
	// The plug reads off all the same, for whatever reason: it proves nothing.
	s = newSimulation(t, powerPlan(plugs("bmc")).Drilled(Node{UID: "n1", SystemUUID: uuid}, nil))
	s.devices["bmc"].on, s.until = false, 20*time.Minute
	s.run()
	if s.state.Proof != nil {
		t.Errorf("proof by a plug that was not drilled: %+v", s.state.Proof)
	}
	s = newSimulation(t, powerPlan(plugs("plug"), level(true, "bmc")).Drilled(Node{UID: "n1", SystemUUID: uuid}, nil))
	s.devices["plug"] = bmc()
	s.run()
	if !s.devices["plug"].on || s.state.Result != Recovered || !s.state.is(ConditionNotDrilled) {
		t.Errorf("one level of two: plug on %t, result %q; want a fence by the other level", s.devices["plug"].on, s.state.Result)
	}
}

// TestDrillShows: a drill shows that the plug is the node's if its node goes down with it, and comes back with a new
// boot ID. It never shows the plug of another machine, also if a person restarts the node then.
func TestDrillShows(t *testing.T) {
	node := Node{UID: "n1", SystemUUID: uuid}
	reboot := func(s *simulation) { // by a person
		s.leaseRuns, s.node.Ready = false, ReadyUnknown
		s.after(3*time.Minute, func() {
			s.leaseRuns, s.node.Ready, s.node.BootID = true, ReadyTrue, "b2"
		})
	}
	for _, c := range []struct {
		name  string
		setup func(*simulation)
		want  string // what is shown
		event string
	}{
		{"its plug", func(*simulation) {}, DrillDigest(node, plugs("bmc")), ReasonDrillShowed},
		{"a device with a UUID", func(s *simulation) { s.plan = powerPlan(level(true, "bmc")) }, "", ""},
		{"another machine's plug", func(s *simulation) { s.devices["bmc"].foreign = true }, "", ""},
		{"another machine's plug, and a restart by a person", func(s *simulation) {
			s.devices["bmc"].foreign = true
			s.after(2*time.Minute, func() { reboot(s) })
		}, "", ReasonDrillShowedNothing},
		{"the plug ignores commands", func(s *simulation) { s.devices["bmc"].ignores = true }, "", ReasonDrillShowedNothing},
		{"the second level", func(s *simulation) {
			s.plan = powerPlan(plugs("silent"), plugs("bmc"))
			s.devices["silent"] = bmc()
			s.devices["silent"].silent = 0
		}, "", ""},
	} {
		s := drillSimulation(t)
		s.plan = powerPlan(plugs("bmc"))
		c.setup(s)
		shown, reasons := "", []string{}
		s.check = func(_ Inputs, o Orders) {
			if o.Drilled != "" {
				shown = o.Drilled
			}
			for _, e := range o.Events {
				reasons = append(reasons, e.Reason)
			}
		}
		s.run()
		if shown != c.want {
			t.Errorf("%s: shown %q; want %q", c.name, shown, c.want)
		}
		if c.event != "" && !slices.Contains(reasons, c.event) {
			t.Errorf("%s: events %v; want %s", c.name, reasons, c.event)
		}
		if c.want == "" && slices.Contains(reasons, ReasonDrillShowed) {
			t.Errorf("%s: event %s", c.name, ReasonDrillShowed)
		}
	}
}
