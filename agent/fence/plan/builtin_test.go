package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/fence"
)

// useFabric adds an agent of a fabric switch for a test.
func useFabric(t *testing.T) {
	agents["fabric"] = &agent{
		steps:      []fence.StepName{fence.Isolation, fence.Recovery},
		parameters: []parameter{{field: field{name: "ip"}, required: true}, {field: field{name: "plug"}, required: true}},
		device:     func(v map[string]string) string { return "fabric://" + v["ip"] + "/" + v["plug"] },
	}
	t.Cleanup(func() { delete(agents, "fabric") })
}

// steps is the valid configuration of a node with all steps.
func steps() files {
	return good().with(files{
		"fence-config-host1": "node_name=host1\nisolation=cordon fc-off\nisolation.2=fc2-off\n" +
			"power_management=bmc-off clean bmc-on\nrecovery=fc-on uncordon",
		"fence-method-cordon-host1":      "template=fence-method-template-cordon",
		"fence-method-uncordon-host1":    "template=fence-method-template-uncordon\nmust_success=no",
		"fence-method-clean-host1":       "template=fence-method-template-clean",
		"fence-method-fc-off-host1":      "template=fence-method-template-fc\naction=off\nplug=2\ndeadline=20s\nidentity=none",
		"fence-method-fc2-off-host1":     "template=fence-method-template-fc\naction=off\nplug=3",
		"fence-method-fc-on-host1":       "template=fence-method-template-fc\naction=on\nplug=2\nidentity=none",
		"fence-method-template-fc":       "agent_name=fabric\nip=10.0.0.8\nreleases=san.example.com, fast san.example.com\nidentity=none\nunverified=accept",
		"fence-method-template-cordon":   "agent_name=cordon",
		"fence-method-template-uncordon": "agent_name=uncordon",
		"fence-method-template-clean":    "agent_name=clean-pods",
	})
}

func TestSteps(t *testing.T) {
	useFabric(t)
	c, problems := Parse(steps().objects())
	if len(problems) > 0 {
		t.Fatalf("problems:\n%s", text(problems))
	}
	fabric := func(name string, action fence.Action, plug string, deadline int) fence.Method {
		m := fence.Method{Name: name, Agent: "fabric", Action: action, Device: "fabric://10.0.0.8/" + plug, MustSuccess: true,
			Identity: fence.CheckNone, Deadline: seconds(deadline), Parameters: map[string]string{"ip": "10.0.0.8", "plug": plug}}
		if action == fence.Off {
			m.Releases, m.Unverified = []string{"fast", "san.example.com"}, fence.Accept
		}
		return m
	}
	object := func(name, agent string, must bool) fence.Method {
		return fence.Method{Name: name, Agent: agent, Action: fence.Action(agent), MustSuccess: must, Identity: fence.CheckNone,
			Deadline: seconds(60), Parameters: map[string]string{}}
	}
	got := c.Plans["host1"]
	wantIsolation := []fence.Level{
		{Methods: []fence.Method{object("cordon", "cordon", true), fabric("fc-off", fence.Off, "2", 20)}},
		{Methods: []fence.Method{fabric("fc2-off", fence.Off, "3", 60)}},
	}
	if diff := cmp.Diff(wantIsolation, got.Isolation); diff != "" {
		t.Errorf("Isolation (-want +got):\n%s", diff)
	}
	wantRecovery := []fence.Level{{Methods: []fence.Method{fabric("fc-on", fence.On, "2", 60), object("uncordon", "uncordon", false)}}}
	if diff := cmp.Diff(wantRecovery, got.Recovery); diff != "" {
		t.Errorf("Recovery (-want +got):\n%s", diff)
	}
	power := got.PowerManagement[0].Methods
	if diff := cmp.Diff(object("clean", "clean-pods", false), power[1]); diff != "" || len(power) != 3 {
		t.Errorf("second of %d methods of PowerManagement; want 3 (-want +got):\n%s", len(power), diff)
	}
	for _, m := range append(power, got.Isolation[0].Methods[0]) {
		if len(m.Releases) > 0 {
			t.Errorf("method %s releases %v; want nothing", m.Name, m.Releases)
		}
	}
}

// TestSeparatePower: the word of a template counts for all its methods.
func TestSeparatePower(t *testing.T) {
	c, problems := Parse(good().with(files{
		"fence-method-template-bmc": "name=bmc\nagent_name=ipmi\nusername=admin\nseparate-power=yes"}).objects())
	if len(problems) > 0 || len(c.Plans) != 1 {
		t.Fatalf("%d plans, problems:\n%s", len(c.Plans), text(problems))
	}
	for _, m := range c.Plans["host1"].PowerManagement[0].Methods {
		if !m.SeparatePower {
			t.Errorf("method %s does not have SeparatePower", m.Name)
		}
	}
}

func TestStepProblems(t *testing.T) {
	useFabric(t)
	list := func(isolation, power, recovery string) files {
		return files{"fence-config-host1": fmt.Sprintf("node_name=host1\nisolation=%s\npower_management=%s\nrecovery=%s", isolation, power, recovery)}
	}
	for _, tt := range []struct {
		name   string
		change files
		want   []string // the errors, without "ConfigMap evictd/"
	}{
		{"clean-pods before off", list("cordon", "clean bmc-off bmc-on", ""), []string{
			`fence-config-host1 line 3: power_management: has the method "clean" with action=clean-pods before one with action=off; name all methods with action=off first: nothing is switched on, and no pod is deleted, before it is proven that the machine is off`}},
		{"clean-pods after on", list("cordon", "bmc-off bmc-on clean", ""), []string{
			`fence-config-host1 line 3: power_management: has a method of clean-pods after "bmc-on", which switches on; name it before: no pod of a machine that may run is deleted`}},
		{"clean-pods alone", list("cordon", "clean", ""), []string{
			`fence-config-host1 line 3: power_management: has no method with action=off: nothing could prove that the machine is off; name one, before those with action=on`}},
		{"clean-pods elsewhere", list("clean", "bmc-off", "clean"), []string{
			"fence-config-host1 line 2: isolation: method clean: the agent clean-pods can't be used in this step; its steps: power_management",
			"fence-config-host1 line 4: recovery: method clean: the agent clean-pods can't be used in this step; its steps: power_management"}},
		{"cordon elsewhere", list("uncordon", "bmc-off cordon", "cordon"), []string{
			"fence-config-host1 line 2: isolation: method uncordon: the agent uncordon can't be used in this step; its steps: recovery",
			"fence-config-host1 line 3: power_management: method cordon: the agent cordon can't be used in this step; its steps: isolation",
			"fence-config-host1 line 4: recovery: method cordon: the agent cordon can't be used in this step; its steps: isolation"}},
		{"fabric in power management", list("cordon", "fc-off", ""), []string{
			"fence-config-host1 line 3: power_management: method fc-off: the agent fabric can't be used in this step; its steps: isolation, recovery"}},
		{"wrong direction", list("fc-on", "bmc-off", "fc-off"), []string{
			"fence-config-host1 line 2: isolation: method fc-on: has action=on, which undoes isolation; name it in recovery",
			"fence-config-host1 line 4: recovery: method fc-off: has action=off, but recovery switches on what isolation switched off; name it in isolation or power_management"}},
		{"releases of a power method", files{"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=off\nreleases=fast"}, []string{
			"fence-config-host1 line 4: power_management: method bmc-off: has releases, but does not cut the node off from storage; write releases only for methods of isolation with action=off"}},
		{"releases of on", files{"fence-method-fc-on-host1": "template=fence-method-template-fc\naction=on\nplug=2\nreleases=fast"}, []string{
			"fence-config-host1 line 5: recovery: method fc-on: has releases, but does not cut the node off from storage; write releases only for methods of isolation with action=off"}},
		{"releases with identity", files{"fence-method-fc-off-host1": "template=fence-method-template-fc\naction=off\nplug=2\nidentity=uuid"}, []string{
			"fence-config-host1 line 2: isolation: method fc-off: has releases, but its device can't be compared with the node: a port has no UUID of a machine; write identity=none and unverified=accept if you have seen that the node loses this storage by it"}},
		{"names of storage", files{
			"fence-method-fc-off-host1":  "template=fence-method-template-fc\naction=off\nplug=2\nreleases=,",
			"fence-method-fc2-off-host1": "template=fence-method-template-fc\naction=off\nplug=3\nreleases=Fast"}, []string{
			"fence-method-fc-off-host1 line 4: releases: is empty; write names of CSI drivers or StorageClasses, with blanks between them",
			`fence-method-fc2-off-host1 line 4: releases: has "Fast", which can't be the name of a CSI driver or StorageClass; write names of CSI drivers or StorageClasses, with blanks between them`}},
		{"many names", files{"fence-method-fc-off-host1": "template=fence-method-template-fc\naction=off\nplug=2\nreleases=" + strings.Repeat("a,", 17)}, []string{
			"fence-method-fc-off-host1 line 4: releases: has 17 names; at most 16 are possible; write names of CSI drivers or StorageClasses, with blanks between them"}},
		{"power of its own", files{
			"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=off\nseparate_power=maybe",
			"fence-method-fc-off-host1":  "template=fence-method-template-fc\naction=off\nplug=2\nseparate_power=yes",
			"fence-method-cordon-host1":  "template=fence-method-template-cordon\nseparate_power=yes"}, []string{
			"fence-config-host1 line 2: isolation: method fc-off: has separate_power, but is no BMC whose UUID is compared with the node's; write it only for methods of ipmi and redfish without identity=none",
			"fence-method-bmc-off-host1 line 4: separate_power: is \"maybe\"; write yes or no",
			"fence-method-cordon-host1 line 2: separate_power: is a setting of methods with a device, and cordon has none; remove the line"}},
		{"settings of devices", files{"fence-method-cordon-host1": "template=fence-method-template-cordon\naction=off\nidentity=none\nreleases=fast"}, []string{
			"fence-method-cordon-host1 line 2: action: is not a key of this ConfigMap; the keys are template, must_success, identity, unverified, separate_power, timeout, releases, executor",
			"fence-method-cordon-host1 line 3: identity: is a setting of methods with a device, and cordon has none; remove the line",
			"fence-method-cordon-host1 line 4: releases: is a setting of methods with a device, and cordon has none; remove the line"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, problems := Parse(steps().with(tt.change).objects())
			var got []string
			for _, p := range problems {
				if !p.Warning {
					got = append(got, strings.ReplaceAll(p.String(), "ConfigMap evictd/", ""))
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
			if len(c.Plans) > 0 {
				t.Errorf("Plans = %v; want none", c.Plans)
			}
		})
	}
}

func TestWatchdog(t *testing.T) {
	wd := good().with(files{
		"fence-config-host1":       "node_name=host1\npower_management=bmc-off bmc-on\npower_management.2=wd",
		"fence-method-wd-host1":    "template=fence-method-template-wd",
		"fence-method-template-wd": "agent_name=watchdog",
	})
	warn := func(line int, key string) string {
		return fmt.Sprintf("warning: ConfigMap evictd/fence-config-host1 line %d: %s: method wd: the machine is taken for dead because its own watchdog must have "+
			"reset it; no reading shows that; name it only as the last level, for nodes whose agent has a hardware watchdog armed", line, key)
	}
	for name, tt := range map[string]struct {
		change files
		want   string
		plan   bool
	}{
		"second level": {files{}, warn(3, "power_management.2"), true},
		"only level":   {files{"fence-config-host1": "node_name=host1\npower_management=wd"}, warn(2, "power_management"), true},
		"with another": {files{"fence-config-host1": "node_name=host1\npower_management=bmc-off wd bmc-on"},
			"fence-config-host1 line 2: power_management: has a method of watchdog and others", false},
		"isolation": {files{"fence-config-host1": "node_name=host1\nisolation=wd\npower_management=bmc-off"},
			"the agent watchdog can't be used in this step", false},
		"identity":  {files{"fence-method-wd-host1": "template=fence-method-template-wd\nidentity=none"}, "and watchdog has none; remove the line", false},
		"parameter": {files{"fence-method-wd-host1": "template=fence-method-template-wd\nip=10.0.0.1"}, "line 2: ip: ", false},
	} {
		t.Run(name, func(t *testing.T) {
			c, problems := Parse(wd.with(tt.change).objects())
			if got := text(problems); !strings.Contains(got, tt.want) {
				t.Errorf("problems:\n%s\nwant %s", got, tt.want)
			}
			p, planned := c.Plans["host1"]
			if planned != tt.plan {
				t.Fatalf("planned = %t; want %t", planned, tt.plan)
			}
			if !planned {
				return
			}
			last := p.PowerManagement[len(p.PowerManagement)-1].Methods
			want := fence.Method{Name: "wd", Agent: "watchdog", Action: fence.Watchdog, Identity: fence.CheckNone, Deadline: seconds(60), Parameters: map[string]string{}}
			if diff := cmp.Diff([]fence.Method{want}, last); diff != "" {
				t.Errorf("last level (-want +got):\n%s", diff)
			}
		})
	}
}
