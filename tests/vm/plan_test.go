package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// newTestRunner returns a runner with a suite of two packages and one with classes.
func newTestRunner(profile string, suites []string, run string) (*runner, []suite) {
	b := &runner{options: options{profile: profile, suites: suites, run: run, kernels: []string{"6.1", "6.12"}, driver: "systemd"}}
	b.payload = &payload{tests: map[string][]string{
		"kernel": {"kernel/psi", "agent/evict"},
		"native": {"tests/native"},
	}}
	return b, []suite{
		{name: "kernel", takes: 10 * time.Second},
		{name: "native", classes: []class{
			{name: "off", run: "^TestOff", takes: 30 * time.Second, powersOff: true},
			{name: "pods", run: "^TestPod", takes: 3 * time.Minute, smoke: true},
			{name: "long", run: "^TestLong", takes: 9 * time.Minute},
			{name: "soft", run: "^TestSoft", takes: 5 * time.Minute},
		}},
	}
}

func planNames(commands []planned) string {
	var all []string
	for _, p := range commands {
		all = append(all, p.command.Name)
	}
	return strings.Join(all, " ")
}

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name, profile string
		suites        []string
		run           string
		want, omitted string
	}{
		{name: "what fits, and later what still does", profile: profileTest, want: "kernel/kernel/psi kernel/agent/evict native/pods native/soft native/off", omitted: "native/long (9m0s)"},
		{name: "no bound", profile: profileFull, want: "kernel/kernel/psi kernel/agent/evict native/pods native/long native/soft native/off"},
		{name: "smoke", profile: profileSmoke, want: "kernel/kernel/psi kernel/agent/evict native/pods"},
		{name: "suites that were asked for have no bound", profile: profileTest, suites: []string{"native"}, want: "kernel/kernel/psi kernel/agent/evict native/pods native/long native/soft native/off"},
		{name: "tests that were asked for", profile: profileTest, suites: []string{"native"}, run: "TestX", want: "kernel/kernel/psi kernel/agent/evict native"},
	} {
		b, suites := newTestRunner(tt.profile, tt.suites, tt.run)
		commands, omitted := b.plan(variant{}, suites)
		if got := planNames(commands); got != tt.want {
			t.Errorf("%s: plan = %q; want %q", tt.name, got, tt.want)
		}
		if got := strings.Join(omitted, " "); got != tt.omitted {
			t.Errorf("%s: omitted = %q; want %q", tt.name, got, tt.omitted)
		}
	}
}

// TestPlanOfMore: further classes are planned after the first class of each subject, across suites.
func TestPlanOfMore(t *testing.T) {
	b, suites := newTestRunner(profileTest, nil, "")
	suites[1].classes = []class{
		{name: "pods", run: "^TestPods$", takes: time.Minute},
		{name: "more-pods", run: "^TestMorePods$", takes: 5 * time.Minute, more: true},
		{name: "soft", run: "^TestSoft$", takes: time.Minute},
	}
	suites = append(suites[1:], suite{name: "late", takes: 5 * time.Minute})
	b.payload.tests["late"] = []string{"tests/late"}
	commands, omitted := b.plan(variant{}, suites)
	if got, want := planNames(commands), "native/pods native/soft late"; got != want {
		t.Errorf("plan = %q; want %q", got, want)
	}
	if got, want := strings.Join(omitted, " "), "native/more-pods (5m0s)"; got != want {
		t.Errorf("omitted = %q; want %q", got, want)
	}
}

// TestPlanOfSpecialMachine: a special machine runs only its suites and classes.
func TestPlanOfSpecialMachine(t *testing.T) {
	b, suites := newTestRunner(profileFull, nil, "")
	commands, _ := b.plan(variant{suites: []string{"native"}, classes: []string{"soft", "pods"}}, suites)
	if got, want := planNames(commands), "native/pods native/soft"; got != want {
		t.Errorf("plan = %q; want %q", got, want)
	}
	b.classes = []string{"pods"}
	commands, _ = b.plan(variant{}, suites)
	if got, want := planNames(commands), "kernel/kernel/psi kernel/agent/evict native/pods"; got != want {
		t.Errorf("plan of one class = %q; want %q", got, want)
	}
	b.classes, b.packages = nil, []string{"kernel/psi"}
	commands, _ = b.plan(variant{}, suites)
	if got, want := planNames(commands), "kernel/kernel/psi"; got != want {
		t.Errorf("plan of one package = %q; want %q", got, want)
	}
	known := slices.Concat(suiteOf(t, "native").classes, suiteOf(t, "service").classes)
	for _, name := range slices.Concat(specialClasses, driverClasses) {
		if !slices.ContainsFunc(known, func(c class) bool { return c.name == name }) {
			t.Errorf("there is no class %s", name)
		}
	}
}

func TestGoTestCommand(t *testing.T) {
	b, suites := newTestRunner(profileFull, nil, "")
	commands, _ := b.plan(variant{name: "6.1-cgroupfs", driver: "cgroupfs"}, suites)
	c := commands[2].command
	if got, want := strings.Join(c.Argv, " "), "./native.test -test.v -test.timeout=17m50s -test.run=^TestPod"; got != want {
		t.Errorf("command = %q; want %q", got, want)
	}
	if c.Dir != "/payload/src/tests/native" || c.Timeout != 18*time.Minute {
		t.Errorf("directory %q, timeout %v; want the package's and six times the expected", c.Dir, c.Timeout)
	}
	for _, want := range []string{"EVICTD_TEST_CGROUP_DRIVER=cgroupfs", "EVICTD_TEST_VM=1", "EVICTD_TEST_PROGRAMS=/payload/bin", "VM_CGROUP=v2", "VM_PSI=1", "VM_BTF=yes"} {
		if !slices.Contains(c.Env, want) {
			t.Errorf("environment %q; want %s", c.Env, want)
		}
	}
}

// TestPlansAreValid: each machine of each profile has a valid plan with a command for each suite.
func TestPlansAreValid(t *testing.T) {
	for _, profile := range []string{profileSmoke, profileTest, profileFull} {
		b := &runner{options: options{profile: profile, kernels: []string{"6.1", "6.12"}, driver: "systemd"}}
		b.payload = &payload{tests: map[string][]string{
			"kernel": {"kernel/psi"}, "agent": {"agent/evict"}, "node": {"tests/node"}, "native": {"tests/native"}, "service": {"tests/service"},
		}}
		names := make(map[string]bool)
		for _, v := range b.variants() {
			if names[v.name] {
				t.Errorf("%s: two machines are named %s", profile, v.name)
			}
			names[v.name] = true
			commands, _ := b.plan(v, b.selectedSuites())
			plan := protocol.Plan{Writes: v.writes, Hide: v.hide}
			for _, p := range commands {
				plan.Commands = append(plan.Commands, p.command)
			}
			if err := plan.Validate(); err != nil {
				t.Errorf("%s on %s: %v", profile, v.name, err)
			}
			if len(plan.Commands) == 0 || plan.Commands[0].Name != "boot" {
				t.Errorf("%s on %s: plan = %q; want it to begin with boot", profile, v.name, planNames(commands))
			}
		}
		want := map[string]int{profileSmoke: 1, profileTest: 2, profileFull: 15}[profile]
		if len(names) != want {
			t.Errorf("%s: machines are %v; want %d", profile, names, want)
		}
	}
}

func TestMachineFlag(t *testing.T) {
	b := &runner{options: options{profile: profileFull, kernels: []string{"6.1", "6.12"}, machines: []string{"6.1-cgroupfs-v1", "6.12-systemd", "6.12-cgroupfs-v1"}}}
	var names []string
	for _, v := range b.variants() {
		names = append(names, v.name)
	}
	if want := []string{"6.12-systemd", "6.1-cgroupfs-v1"}; !slices.Equal(names, want) {
		t.Errorf("machines = %q; want %q", names, want)
	}
}

func TestMatrix(t *testing.T) {
	for _, v := range matrix([]string{"6.1", "6.12"}) {
		switch {
		case v.cgroupV1 && v.kernel != "6.1":
			t.Errorf("%s: %s has no memory controller of cgroup v1", v.name, v.kernel)
		case v.cgroupV1 && !slices.Contains(v.env(), "VM_CGROUP=v1"), v.noPSI && !slices.Contains(v.env(), "VM_PSI=0"), v.noBTF && !slices.Contains(v.env(), "VM_BTF=no"):
			t.Errorf("%s: environment %q does not describe the machine", v.name, v.env())
		}
	}
}
