package plan

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/properties"
)

var update = flag.Bool("update", false, "write the golden files")

// TestProposal checks that all mistakes in the example of the proposal are reported.
func TestProposal(t *testing.T) {
	const golden = "testdata/seed.golden"
	c, problems := Parse(readObjects(t, "testdata/seed.yaml"))
	got := text(problems)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("Parse(seed.yaml) (-want +got):\n%s", diff)
	}
	if len(c.Plans) != 0 || c.Policy.Enforce {
		t.Errorf("Plans, Enforce = %v, %t; want none, false", c.Plans, c.Policy.Enforce)
	}
	if diff := cmp.Diff([]string{"host1", "lago-kube-host0"}, c.Refused); diff != "" {
		t.Errorf("Refused (-want +got):\n%s", diff)
	}
	for _, secret := range []string{"brocade_password", "apc_password", "eaton_password", "eaton_snmp_passwd"} {
		if strings.Contains(got, secret) {
			t.Errorf("a problem has the password %s", secret)
		}
	}
}

// readObjects reads a list, or documents and a list.
func readObjects(t *testing.T, file string) Objects {
	t.Helper()
	type object struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Data     map[string]string
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []object
	if err := yaml.NewDecoder(f).Decode(&list); err != nil {
		t.Fatal(err)
	}
	var out Objects
	for _, o := range list {
		out.ConfigMaps = append(out.ConfigMaps, Object{Namespace: "evictd", Name: o.Metadata.Name, Data: o.Data})
	}
	return out
}

func text(problems []Problem) string {
	var b strings.Builder
	for _, p := range problems {
		if p.Warning {
			b.WriteString("warning: ")
		}
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// files are ConfigMaps by name, and Secrets by name with the prefix "secret:", whose text lists the keys.
type files map[string]string

// good is the valid configuration of one node.
func good() files {
	return files{
		"cluster-fence-config":       "mode=enforce",
		"fence-config-host1":         "node_name=host1\npower_management=bmc-off bmc-on",
		"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=off",
		"fence-method-bmc-on-host1":  "template=fence-method-template-bmc\nip=10.0.0.1\naction=on",
		"fence-method-template-bmc":  "name=bmc\nagent_name=ipmi\nusername=admin",

		"secret:fence-method-template-bmc": "password",
	}
}

// with returns a copy with other files; those with the text "-" are removed.
func (f files) with(others files) files {
	out := files{}
	for _, from := range []files{f, others} {
		for name, text := range from {
			if out[name] = text; text == "-" {
				delete(out, name)
			}
		}
	}
	return out
}

func (f files) objects() Objects {
	var o Objects
	for _, name := range sortedKeys(f) {
		secret, isSecret := strings.CutPrefix(name, "secret:")
		data := map[string]string{}
		switch {
		case isSecret:
			for _, key := range strings.Fields(f[name]) {
				data[key] = ""
			}
			o.Secrets = append(o.Secrets, Object{Namespace: "evictd", Name: secret, Data: data})
			continue
		case strings.HasPrefix(name, templatePrefix):
			data[templateKey] = f[name]
		case strings.HasPrefix(name, methodPrefix):
			data[methodKey] = f[name]
		default:
			data[configKey] = f[name]
		}
		o.ConfigMaps = append(o.ConfigMaps, Object{Namespace: "evictd", Name: name, Data: data})
	}
	return o
}

func seconds(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }

func TestPlan(t *testing.T) {
	c, problems := Parse(good().with(files{
		"cluster-fence-config": "# policy\r\nmode = enforce\r\n\r\npercentage=40\nmax_unhealthy=3\nmax_concurrent=2\nrate=7m\nburst=4\ncooldown=90\napplies_to=all\ngrace=90\npower_delay=2m\nkdump_max_wait=3m\nproof_timeout=30s\n" +
			"proof_interval=6\nsettle=40s\nrelease_timeout=5m\nuntaint_delay=7s\nreturn_timeout=15m\nhealthy_delay=10s\ntotal_timeout=1h\nbackoff=20s\n" +
			"giveup_retries=2\nhistory_ttl=48h\n",
		"fence-config-host1":           "node_name=host1\npower_management=bmc-off bmc-on\npower_management.2=again-off\nkdump=off\n",
		"fence-method-again-off-host1": "template=fence-method-template-bmc\nipaddr=[2001:DB8::1]\nipport=0623\naction=off\nidentity=none\ndeadline=20s\nmust_success=no\nlogin=other",
		"kube-root-ca.crt":             "no properties",
	}).objects())
	if len(problems) > 0 {
		t.Fatalf("problems:\n%s", text(problems))
	}
	wantPolicy := fence.Policy{Enforce: true, Percentage: 40, MaxUnhealthy: new(int32(3)), MaxConcurrent: 2,
		Rate: 7 * time.Minute, Burst: 4, Cooldown: 90 * time.Second, AppliesTo: fence.All, Timings: fence.Timings{
			Grace: seconds(90), PowerDelay: seconds(120), KdumpMaxWait: seconds(180), ProofTimeout: seconds(30), ProofInterval: seconds(6), Settle: seconds(40),
			ReleaseTimeout: seconds(300), UntaintDelay: seconds(7), ReturnTimeout: seconds(900), HealthyDelay: seconds(10),
			TotalTimeout: seconds(3600), Backoff: seconds(20), Retries: 2,
		}}
	method := func(name string, action fence.Action) fence.Method {
		return fence.Method{Name: name, Agent: "ipmi", Action: action, Device: "ipmi://10.0.0.1:623", MustSuccess: action == fence.Off,
			Identity: fence.CheckUUID, Deadline: seconds(60), Secrets: []string{"fence-method-template-bmc"},
			Parameters: map[string]string{"ip": "10.0.0.1", "ipport": "623", "username": "admin"}}
	}
	want := Config{Policy: wantPolicy, HistoryTTL: 48 * time.Hour, Plans: map[string]fence.Plan{"host1": {
		PowerManagement: []fence.Level{
			{Methods: []fence.Method{method("bmc-off", fence.Off), method("bmc-on", fence.On)}},
			{Methods: []fence.Method{{Name: "again-off", Agent: "ipmi", Action: fence.Off, Device: "ipmi://[2001:db8::1]:623",
				Identity: fence.CheckNone, Deadline: seconds(20), Secrets: []string{"fence-method-template-bmc"},
				Parameters: map[string]string{"ip": "2001:db8::1", "ipport": "623", "username": "other"}}}},
		},
		Kdump:   fence.KdumpOff,
		Timings: wantPolicy.Timings,
		Hash:    c.Plans["host1"].Hash,
	}}}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
}

func TestHash(t *testing.T) {
	hashOf := func(f files) string {
		c, problems := Parse(f.objects())
		if c.Plans["host1"].Hash == "" {
			t.Fatalf("no plan:\n%s", text(problems))
		}
		return c.Plans["host1"].Hash
	}
	const want = "8e4788213d8f6111b7f8bba05b6a5e5f"
	first := hashOf(good())
	if first != want {
		t.Errorf("hash = %s; want %s: the hash of an unchanged configuration must not change", first, want)
	}
	other := hashOf(good().with(files{"fence-method-template-bmc": "# the same\nusername=admin\nagent_name=ipmi"}))
	if other != first {
		t.Errorf("hash with other order = %s; want %s", other, first)
	}
	for _, change := range []files{
		{"fence-method-bmc-on-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=on\nidentity=none"},
		{"cluster-fence-config": "mode=enforce\ngrace=61"},
		{"secret:fence-method-bmc-off-host1": "password"},
	} {
		if got := hashOf(good().with(change)); got == first {
			t.Errorf("hash with %v = %s; want another one", change, got)
		}
	}
}

const (
	methodHost2 = "template=fence-method-template-bmc\naction=off\nip="
	configHost2 = "node_name=host2\npower_management=bmc-off"
)

func TestProblems(t *testing.T) {
	long := strings.Repeat("a", 61) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "." + strings.Repeat("d", 40)
	for _, tt := range []struct {
		name   string
		change files
		plans  string // the nodes that have a plan
		want   string // without "ConfigMap evictd/"
	}{
		{"valid", nil, "host1", ""},
		{"node of another name", files{"fence-config-host1": "power_management=bmc-off\n\nnode_name=host2", "fence-method-bmc-on-host1": "-"}, "",
			`fence-config-host1 line 3: node_name: is "host2", but the name of the ConfigMap is that of node host1; write node_name=host1, or name the ConfigMap after the other node`},
		{"misspelt names", files{"fence-config-host1": "-", "fecne-config-host1": "node_name=host1\npower_managment=bmc-off bmc-on",
			"cluster-fence-config": "-", "fence-cluster-config": "precentage=60",
			"fence-method-template-bmc": "agent_name=ipmi\nusername=admin\nmust_sucess=yes"}, "host1", `
warning: fecne-config-host1: the name is misspelt; name it fence-config-host1
warning: fecne-config-host1 line 2: power_managment: is read as power_management; write power_management
warning: fence-cluster-config: the name is misspelt; name it cluster-fence-config
warning: fence-cluster-config line 1: precentage: is read as percentage; write percentage
warning: fence-method-template-bmc line 3: must_sucess: is read as must_success; write must_success`},
		{"both names", files{"fecne-config-host1": "node_name=host1\npower_managment=bmc-off", "fence-cluster-config": "mode=enforce",
			"cluster-fence-config": "mode=enforce\nprecentage=60\npercentage=60"}, "", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config: there is also a ConfigMap fence-cluster-config; delete that one
warning: cluster-fence-config line 2: precentage: is read as percentage; write percentage
cluster-fence-config line 3: percentage: is the same as precentage in line 2; remove one of the lines
fecne-config-host1: there is also a ConfigMap fence-config-host1; delete this one
fence-config-host1: there is also a ConfigMap fecne-config-host1; delete that one`},
		{"broken policy", files{"cluster-fence-config": "mode=enforced\npercentage=101\ngrace=1h30\nproof_interval=4s\nspeed=9\ntotal_timeout=30s"}, "host1", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 1: mode: is "enforced"; write enforce or dry-run
cluster-fence-config line 2: percentage: is "101"; write a number from 0 to 100
cluster-fence-config line 3: grace: is "1h30"; write a duration from 1s to 24h0m0s, such as 90s or 1m30s
cluster-fence-config line 4: proof_interval: is "4s"; write a duration from 5s to 1h0m0s, such as 90s or 1m30s
cluster-fence-config line 5: speed: is not a key of this ConfigMap; the keys are mode,
cluster-fence-config line 6: total_timeout: is 30s, which is too short for one attempt; write a duration above proof_timeout, which is 1m0s`},
		{"actions", files{
			"fence-config-host1":         "node_name=host1\npower_management=bmc-off bmc-on\npower_management.2=reset",
			"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1",
			"fence-method-bmc-on-host1":  "template=fence-method-template-bmc\nip=10.0.0.1\naction=cycle",
			"fence-method-reset-host1":   "template=fence-method-template-bmc\nip=10.0.0.1"}, "", `
warning: fence-method-bmc-off-host1: action: is missing; it is off because of the name of the method; write action=off
fence-method-bmc-on-host1 line 3: action: is cycle, which switches on again before it is proven that the machine was off; use two methods, one with action=off and one with action=on
fence-method-reset-host1: action: is missing; write action=off or action=on`},
		{"reboot and reset", files{
			"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=reboot",
			"fence-method-bmc-on-host1":  "template=fence-method-template-bmc\nip=10.0.0.1\naction=reset"}, "", `
fence-method-bmc-off-host1 line 3: action: is reboot, which switches on again before it is proven that the machine was off; use two methods, one with action=off and one with action=on
fence-method-bmc-on-host1 line 3: action: is reset, which switches on again before it is proven that the machine was off; use two methods, one with action=off and one with action=on`},
		{"action of another name", files{"fence-method-bmc-on-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=off"}, "host1",
			"warning: fence-method-bmc-on-host1 line 3: action: is off, but the name of the method ends in -on; correct the one or the other"},
		{"on before off", files{"fence-config-host1": "node_name=host1\npower_management=bmc-on bmc-off"}, "",
			`fence-config-host1 line 2: power_management: has the method "bmc-on" with action=on before one with action=off; name all methods with action=off first: nothing is switched on, and no pod is deleted, before it is proven that the machine is off`},
		{"no off", files{"fence-config-host1": "node_name=host1\npower_management=bmc-off\npower_management.2=bmc-on"}, "",
			"fence-config-host1 line 3: power_management.2: has no method with action=off: nothing could prove that the machine is off; name one, before those with action=on"},
		{"no power", files{"fence-config-host1": "node_name=host1\nisolation=\npower_management.3=bmc-off bmc-off\npower_management.1=bmc-on"}, "", `
fence-config-host1 line 3: power_management.3: is level 3, but there is no level 1; number the levels without gaps
fence-config-host1 line 3: power_management.3: names the method "bmc-off" twice; name it once
fence-config-host1 line 4: power_management.1: is not a level; write power_management for the first one, power_management.2 to power_management.9 for those after it
warning: fence-method-bmc-on-host1: no fence-config has a method`},
		{"power agent in isolation", files{"fence-config-host1": "node_name=host1\nisolation=bmc-off\npower_management=bmc-off bmc-on"}, "",
			"fence-config-host1 line 2: isolation: method bmc-off: the agent ipmi can't be used in this step; its steps: power_management"},
		{"missing objects", files{"fence-method-bmc-on-host1": "-", "fence-method-bmc-off-host1": "template=fence-method-template-x\naction=off"}, "", `
fence-config-host1 line 2: power_management: method bmc-on: there is no ConfigMap fence-method-bmc-on-host1; create it, or correct the name of the method
fence-method-bmc-off-host1 line 1: template: there is no ConfigMap fence-method-template-x; create it, or name another template
warning: fence-method-template-bmc: no method uses this template;`},
		{"names of methods", files{"fence-config-host1": "node_name=host1\npower_management=bmc-off bmc-on template template-a Bmc-off password=abc"}, "", `
fence-config-host1 line 2: power_management: has "Bmc-off", which can't be the name of a method; use
fence-config-host1 line 2: power_management: has "template", which can't be the name of a method; use
fence-config-host1 line 2: power_management: has "template-a", which can't be the name of a method; use
fence-config-host1 line 2: power_management: has a value that is not shown because it may contain a password, which can't be the name of a method; use`},
		{"agents", files{"fence-method-template-bmc": "agent_name=fence_apc\npasswd_script=/bin/x\nsnmp-priv-passwd=hunter2", "secret:fence-method-template-bmc": "-"}, "", `
fence-method-template-bmc line 1: agent_name: fence_apc is not installed where evictd-controller runs; install it there, into the directory --fence-agents-dir, or use an agent that is built in: clean-pods, cordon, ipmi, redfish, uncordon, watchdog
fence-method-template-bmc line 2: passwd_script: would run a program; move the password to a Secret named fence-method-template-bmc
fence-method-template-bmc line 3: snmp-priv-passwd: a ConfigMap is not for passwords; move it to`},
		{"no agent", files{"fence-method-template-bmc": "agent_name=../bin/sh"}, "",
			`fence-method-template-bmc line 1: agent_name: is "../bin/sh", which is not an agent; use an agent of this release: clean-pods, cordon, ipmi, redfish, uncordon, watchdog`},
		{"parameters", files{"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1:623\nipaddr=10.0.0.1\nipport=0\naction=off\nlanplus=1\n" +
			"timeout=0\nidentity=guid\nmust_success=maybe\nusername=a-name-of-18-bytes"}, "", `
fence-method-bmc-off-host1 line 2: ip: is neither an IP address nor a host name; correct the value
fence-method-bmc-off-host1 line 3: ipaddr: is the same as ip in line 2; remove one of the lines
fence-method-bmc-off-host1 line 4: ipport: is not a port from 1 to 65535; correct the value
fence-method-bmc-off-host1 line 6: lanplus: is not a key of this ConfigMap; the keys are template, action, must_success, identity, unverified, separate_power, timeout, releases, executor, ip, ipport, username, password
fence-method-bmc-off-host1 line 7: timeout: is "0"; write a duration from 1s to 10m0s
fence-method-bmc-off-host1 line 8: identity: is "guid"; write uuid, which compares the device's UUID with the node's, or none, which does not
fence-method-bmc-off-host1 line 9: must_success: is "maybe"; write yes or no
fence-method-bmc-off-host1 line 10: username: has 18 bytes, but IPMI has names of at most 16; correct the value`},
		{"missing parameters", files{"fence-method-template-bmc": "agent_name=ipmi", "secret:fence-method-template-bmc": "-",
			"secret:fence-method-bmc-off-host1": "password login", "fence-method-bmc-on-host1": "template=fence-method-template-bmc\naction=on"}, "", `
fence-method-bmc-on-host1: ip: is missing; write it here or in the template
fence-method-bmc-on-host1: password: is missing; create a Secret named fence-method-template-bmc or fence-method-bmc-on-host1 with the key password
fence-method-bmc-on-host1: username: is missing; create`},
		{"plain password", files{"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=off\npasswd=hunter2"}, "",
			"fence-method-bmc-off-host1 line 4: passwd: a ConfigMap is not for passwords; move it to a Secret named fence-method-bmc-off-host1, key passwd, or write allow_plain_secrets=yes in cluster-fence-config"},
		{"allowed plain password", files{"cluster-fence-config": "mode=enforce\nallow_plain_secrets=yes",
			"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=off\npasswd=hunter2"}, "host1",
			"warning: fence-method-bmc-off-host1 line 4: passwd: a ConfigMap is not for passwords; move it to a Secret named fence-method-bmc-off-host1, key passwd"},
		{"keys of Secrets", files{"secret:fence-method-template-bmc": "password passwd ip username", "secret:fence-method-bmc-off-host0": "password", "secret:tls": "tls.key"}, "", `
warning: Secret evictd/fence-method-bmc-off-host0: is not used: there is no ConfigMap with this name; name it like the ConfigMap of the method or template that it belongs to
Secret evictd/fence-method-template-bmc: ip: is not a key that a Secret may have; the keys are username, password
Secret evictd/fence-method-template-bmc: password: is there under two names; remove one of them
Secret evictd/fence-method-template-bmc: username: is also in the ConfigMap of this name; remove it there`},
		{"overrides a Secret", files{"fence-method-template-bmc": "agent_name=ipmi", "secret:fence-method-template-bmc": "password username",
			"fence-method-bmc-on-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=on\nusername=root"}, "",
			"fence-method-bmc-on-host1 line 4: username: is also in the Secret fence-method-template-bmc of the template; move it to a Secret named fence-method-bmc-on-host1"},
		{"properties", files{"cluster-fence-config": "mode=enforce\nhunter2\nmode=dry-run\n=x\na b=c\ngrace=\xff\nsettle=1\x00"}, "host1", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 2: the line has no "="; write key=value, or # before a comment
cluster-fence-config line 3: mode: is given twice, first in line 1; remove one of the lines
cluster-fence-config line 4: the key is not valid; begin it with a letter and use letters, digits, '_', '-' and '.', at most 64
cluster-fence-config line 5: the key is not valid; begin
cluster-fence-config line 6: the line is not valid UTF-8; save the text as UTF-8
cluster-fence-config line 7: the line has a control character; remove it`},
		{"one line for two", files{"fence-method-bmc-off-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=off password=hunter2"}, "",
			"fence-method-bmc-off-host1 line 3: action: is a value that is not shown because it may contain a password; write action=off or action=on"},
		{"too large", files{"cluster-fence-config": strings.Repeat("#", properties.MaxText+1)}, "host1", `
cluster-fence-config: has 1048577 bytes; shorten it to 1048576 bytes
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap`},
		{"kdump", files{"fence-config-host1": "node_name=host1\npower_management=bmc-off bmc-on\nkdump=release\nKdump=delay", "cluster-fence-config": "mode=enforce\nkdump_max_wait=2h"}, "", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 2: kdump_max_wait: is "2h"; write a duration from 0s to 1h0m0s, such as 90s or 1m30s
warning: fence-config-host1 line 3: kdump: is release: pods are released for datagrams that anyone can forge who can send with an address of the node, and no reading shows that the machine is off; write delay unless the network prevents that
fence-config-host1 line 4: Kdump: is the same as kdump in line 3; remove one of the lines`},
		{"storage lost", files{"cluster-fence-config": "mode=enforce\nstorage=lost"}, "host1", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 2: storage: is "lost"; remove the line: nothing that evictd-controller can read proves that a node has lost its storage; to release pods whose storage a node is cut off from, use a method of isolation with releases`},
		{"storage alive", files{"cluster-fence-config": "storage=alive"}, "host1", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 1: storage: is "alive"; remove the line: evictd-controller has no access to the storage, and can't read whether a node still writes to it; to keep a node from being fenced, use the annotation evictd.io/fencing-paused`},
		{"storage", files{"cluster-fence-config": "storage=none"}, "host1", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 1: storage: is "none"; remove the line: there are no policies by a node's access to its storage`},
		{"kdump mode", files{"fence-config-host1": "node_name=host1\npower_management=bmc-off bmc-on\nkdump=yes"}, "",
			"fence-config-host1 line 3: kdump: is \"yes\"; write delay, off or release"},
		{"another node is broken", files{"fence-config-host2": configHost2}, "host1",
			"fence-config-host2 line 2: power_management: method bmc-off: there is no ConfigMap fence-method-bmc-off-host2; create it, or correct the name of the method"},
		{"a shared device", files{"fence-config-host2": configHost2, "fence-method-bmc-off-host2": methodHost2 + "::ffff:10.0.0.1",
			"fence-config-host3": "node_name=host3\npower_management=bmc-off", "fence-method-bmc-off-host3": methodHost2 + "10.0.0.3"}, "host3", `
fence-method-bmc-off-host1 line 2: ip: the device ipmi://10.0.0.1:623 is that of node host1 and of node host2; give each node the device of its own machine
fence-method-bmc-off-host2 line 3: ip: the device ipmi://10.0.0.1:623 is that of node host2 and of node host1; give each node the device of its own machine`},
		{"a shared host name", files{"fence-method-template-bmc": "agent_name=ipmi\nusername=admin\nip=BMC.Example.com.",
			"fence-method-bmc-off-host1": "template=fence-method-template-bmc\naction=off", "fence-method-bmc-on-host1": "template=fence-method-template-bmc\naction=on",
			"fence-config-host2": configHost2, "fence-method-bmc-off-host2": methodHost2 + "bmc.example.com"}, "", `
fence-method-bmc-off-host1: the device ipmi://bmc.example.com:623 is that of node host1 and of node host2; give
fence-method-bmc-off-host2 line 3: ip: the device ipmi://bmc.example.com:623 is that of node host2 and of node host1; give`},
		{"a shared ConfigMap", files{"fence-config-a-b": "node_name=a-b\npower_management=off", "fence-config-b": "node_name=b\npower_management=off-a",
			"fence-method-off-a-b": methodHost2 + "10.0.0.9"}, "host1", `
fence-method-off-a-b line 3: ip: the device ipmi://10.0.0.9:623 is that of node a-b and of node b; give
fence-method-off-a-b line 3: ip: the device ipmi://10.0.0.9:623 is that of node b and of node a-b; give`},
		{"long names", files{"fence-config-" + long: "node_name=" + long + "\npower_management=a " + strings.Repeat("b", 20)}, "host1",
			"fence-config-" + long + ` line 2: power_management: method a: there is no ConfigMap fence-method-a-` + long + `; create it, or correct the name of the method
fence-config-` + long + ` line 2: power_management: the ConfigMap of method "bbbbbbbb`},
		{"few nodes", files{"cluster-fence-config": "percentage=40\ngrace=10s", "fence-config-host2": configHost2, "fence-method-bmc-off-host2": methodHost2 + "10.0.0.2"}, "host1 host2", `
warning: cluster-fence-config: percentage: is 40, which allows no unhealthy node of 2: in a cluster of this size no node is fenced; write at least 50
warning: cluster-fence-config line 2: grace: is 10s: kubelets renew their Leases each 10s, and a Lease older than half of this counts as that of an unhealthy node: most of the time no node is fenced; write at least 40s`},
		{"short grace", files{"cluster-fence-config": "grace=21s"}, "host1",
			"warning: cluster-fence-config line 1: grace: is 21s: a node that misses a few renewals of its Lease is fenced; write at least 40s"},
		{"policy that never fences", files{"cluster-fence-config": "max_unhealthy=0\nrate=0\nburst=0"}, "host1", `
warning: cluster-fence-config: burst: is 0, with which no fence begins; write the number of fences that may begin at once, such as 2
warning: cluster-fence-config: max_unhealthy: is 0, which allows no unhealthy node: no node is fenced; write at least 1, or use percentage
warning: cluster-fence-config: rate: is 0, with which no fence begins; write the time in which one fence may begin, such as 5m`},
		{"no percentage", files{"cluster-fence-config": "percentage=0"}, "host1",
			"warning: cluster-fence-config: percentage: is 0, which allows no unhealthy node: no node is fenced; write at least 1, or use max_unhealthy"},
		{"no percentage, but a number", files{"cluster-fence-config": "percentage=0\nmax_unhealthy=1"}, "host1", ""},
		{"all nodes unhealthy", files{"cluster-fence-config": "max_unhealthy=2", "fence-config-host2": configHost2,
			"fence-method-bmc-off-host2": methodHost2 + "10.0.0.2"}, "host1 host2",
			"warning: cluster-fence-config: max_unhealthy: is 2, which allows all 2 nodes with a fence-config to be unhealthy: " +
				"a fault of the network can have all of them switched off; write less, or use percentage"},
		{"limits of the policy", files{"cluster-fence-config": "max_unhealthy=-1\nrate=25h\nburst=101\ncooldown=-1s\nquorum=3"}, "host1", `
warning: cluster-fence-config: is not used: the default policy applies, in dry run; correct the problems of this ConfigMap
cluster-fence-config line 1: max_unhealthy: is "-1"; write a number from 0 to 10000
cluster-fence-config line 2: rate: is "25h"; write a duration from 0s to 24h0m0s, such as 90s or 1m30s
cluster-fence-config line 3: burst: is "101"; write a number from 0 to 100
cluster-fence-config line 4: cooldown: is "-1s"; write a duration from 0s to 24h0m0s, such as 90s or 1m30s
cluster-fence-config line 5: quorum: is not a key of this ConfigMap; the keys are mode,`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, problems := Parse(good().with(tt.change).objects())
			wantProblems(t, problems, tt.want)
			if plans := strings.Join(sortedKeys(c.Plans), " "); plans != tt.plans {
				t.Errorf("nodes with a plan = %q; want %q", plans, tt.plans)
			}
			if strings.Contains(text(problems)+fmt.Sprint(c), "hunter2") {
				t.Error("a password is in the plan or in a problem")
			}
		})
	}
}

// wantProblems compares the lines of problems, without "ConfigMap evictd/", with their beginnings.
func wantProblems(t *testing.T, problems []Problem, all string) {
	t.Helper()
	got := strings.Split(strings.TrimSuffix(strings.ReplaceAll(text(problems), "ConfigMap evictd/", ""), "\n"), "\n")
	want := strings.Split(strings.TrimPrefix(all, "\n"), "\n")
	for i := range max(len(got), len(want)) {
		g, w := at(got, i), at(want, i)
		if g == w || w != "" && strings.HasPrefix(g, w) {
			continue
		}
		t.Errorf("problem %d = %s\nwant %s", i, g, w)
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

func TestObjects(t *testing.T) {
	objects := good().objects()
	objects.ConfigMaps = append(objects.ConfigMaps, objects.ConfigMaps[1], Object{Name: "fence-config-", Data: map[string]string{configKey: "node_name="}},
		Object{Name: "fence-config-host9", Data: map[string]string{"config.property": "node_name=host9"}})
	c, problems := Parse(objects)
	if len(c.Plans) != 1 {
		t.Errorf("%d plans; want 1", len(c.Plans))
	}
	got := text(problems)
	for _, want := range []string{
		"ConfigMap evictd/fence-config-host1: is defined twice; remove one of the two definitions\n",
		"ConfigMap fence-config-: the name does not end in the name of a node; name it fence-config-NODE\n",
		"ConfigMap fence-config-host9: config.properties: is missing; put the properties into the data key config.properties\n",
		"ConfigMap fence-config-host9: config.property: is not a data key of this ConfigMap; put the properties into the data key config.properties\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("problems:\n%swant also %s", got, want)
		}
	}
	if _, problems := Parse(files{"cluster-fence-config": strings.Repeat("x\n", 1000)}.objects()); len(problems) != maxProblems+1 {
		t.Errorf("Parse(1000 wrong lines) = %d problems; want %d", len(problems), maxProblems+1)
	}
	if c, problems := Parse(Objects{}); len(problems) > 0 || c.Policy.Enforce || c.Policy.Percentage != 50 {
		t.Errorf("Parse(no objects) = %+v, %v; want the default policy, no problems", c, problems)
	}
}

func TestResolve(t *testing.T) {
	f := good().with(files{"cluster-fence-config": "allow_plain_secrets=yes", "secret:fence-method-bmc-on-host1": "login",
		"fence-method-bmc-on-host1": "template=fence-method-template-bmc\nip=10.0.0.1\naction=on\npassword=a=b"})
	c, problems := Parse(f.objects())
	if len(c.Plans) != 1 {
		t.Fatalf("no plan:\n%s", text(problems))
	}
	methods := c.Plans["host1"].PowerManagement[0].Methods
	data := map[string]map[string]string{
		"Secret fence-method-template-bmc":    {"passwd": "one\r\n", "ip": "10.6.6.6", "other": "x"},
		"Secret fence-method-bmc-on-host1":    {"login": "root"},
		"ConfigMap fence-method-bmc-on-host1": {methodKey: "ip=10.7.7.7\nusername=x\npassword=a=b"},
	}
	read := func(s Source) (Data, error) {
		if d, ok := data[s.String()]; ok {
			return Data{Values: d}, nil
		}
		return Data{}, errors.New("not found")
	}
	for i, want := range []map[string]string{
		{"ip": "10.0.0.1", "ipport": "623", "username": "admin", "password": "one"},
		{"ip": "10.0.0.1", "ipport": "623", "username": "root", "password": "a=b"},
	} {
		got, err := Resolve(methods[i], read)
		if err != nil {
			t.Fatalf("Resolve(%s): %v", methods[i].Name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Resolve(%s) (-want +got):\n%s", methods[i].Name, diff)
		}
	}
	if _, ok := methods[0].Parameters["password"]; ok {
		t.Error("Resolve changed the plan")
	}

	for _, tt := range []struct {
		name   string
		change func(m *fence.Method)
		data   map[string]string
		want   string
	}{
		{"no Secret", nil, nil, "read the parameters of method bmc-off from Secret fence-method-template-bmc: not found"},
		{"no password", nil, map[string]string{"password": "\n"}, "read the parameters of method bmc-off: no value of password; write the key password in one of its Secrets"},
		{"two passwords", nil, map[string]string{"password": "hunter2", "passwd": "hunter2"},
			"read the parameters of method bmc-off from Secret fence-method-template-bmc: passwd and password are the same; remove one of them"},
		{"another agent", func(m *fence.Method) { m.Agent = "fence_apc" }, nil, "read the parameters of method bmc-off: fence_apc is not built in"},
	} {
		m := methods[0]
		if tt.change != nil {
			tt.change(&m)
		}
		delete(data, "Secret fence-method-template-bmc")
		if tt.data != nil {
			data["Secret fence-method-template-bmc"] = tt.data
		}
		if _, err := Resolve(m, read); err == nil || err.Error() != tt.want {
			t.Errorf("%s: Resolve = %v; want %s", tt.name, err, tt.want)
		}
	}
}
