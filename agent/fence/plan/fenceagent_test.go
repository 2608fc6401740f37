package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/fence"
)

// pdu is the valid configuration of a node with a fence agent.
func pdu() files {
	return files{
		"cluster-fence-config":       "mode=enforce",
		"fence-config-host1":         "node_name=host1\npower_management=pdu-off pdu-on",
		"fence-method-pdu-off-host1": "template=fence-method-template-pdu\nplug=2\naction=off",
		"fence-method-pdu-on-host1":  "template=fence-method-template-pdu\nport=02\naction=on",
		"fence-method-template-pdu":  "agent_name=fence_apc\nipaddr=PDU.Example.com\nlogin=apc\nsecure=Yes\npower-wait=05\nidentity=none\ntimeout=90s",

		"secret:fence-method-template-pdu": "passwd",
	}
}

func (f files) agents(t *testing.T) Objects {
	o := f.objects()
	o.Agents = schemas(t)
	return o
}

func TestFenceAgentPlan(t *testing.T) {
	c, problems := Parse(pdu().agents(t))
	if len(problems) > 0 {
		t.Fatalf("problems:\n%s", text(problems))
	}
	method := func(name string, action fence.Action, plug string) fence.Method {
		return fence.Method{Name: name, Agent: "fence_apc", Action: action, Device: "fence_apc://pdu.example.com:23/2", MustSuccess: action == fence.Off,
			Identity: fence.CheckNone, Deadline: seconds(90), Secrets: []string{"fence-method-template-pdu"},
			Parameters: map[string]string{"ip": "pdu.example.com", "username": "apc", "ssh": "1", "power_wait": "5", "plug": plug}}
	}
	want := []fence.Level{{Methods: []fence.Method{method("pdu-off", fence.Off, "2"), method("pdu-on", fence.On, "02")}}}
	if diff := cmp.Diff(want, c.Plans["host1"].PowerManagement); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"fence_apc"}, FenceAgents(pdu().objects())); diff != "" {
		t.Errorf("FenceAgents (-want +got):\n%s", diff)
	}
}

func TestFenceAgentProblems(t *testing.T) {
	const identity = "must be none: fence_apc does not report which machine it switches; find out in a drill"
	const ok, method = "agent_name=fence_apc\nip=192.0.2.1\nusername=apc\nidentity=none", "template=fence-method-template-pdu\nplug=2\naction=off\n"
	host2 := files{"fence-config-host2": "node_name=host2\npower_management=pdu-off"}
	for _, tt := range []struct {
		name    string
		change  files
		objects func(*Objects)
		plans   string
		want    string // without "ConfigMap evictd/"
	}{
		{name: "valid", plans: "host1"},
		{name: "not installed", change: files{"fence-method-template-pdu": strings.ReplaceAll(ok, "fence_apc", "fence_absent")}, want: `
fence-method-template-pdu line 1: agent_name: fence_absent is not installed where evictd-controller runs; install it there, into the directory --fence-agents-dir`},
		{name: "broken", change: files{"fence-method-template-pdu": strings.ReplaceAll(ok, "fence_apc", "fence_absent")},
			objects: func(o *Objects) { o.Unusable = map[string]string{"fence_absent": "its metadata can't be read"} }, want: `
fence-method-template-pdu line 1: agent_name: its metadata can't be read; correct the agent, or use one that is built in`},
		{name: "no status", objects: func(o *Objects) { o.Agents["fence_apc"] = Schema{Actions: []string{"off", "on"}} }, want: `
fence-method-template-pdu line 1: agent_name: fence_apc has no action status in its metadata: nothing it did could be proven or undone; use another agent`},
		{name: "no plug", objects: func(o *Objects) { o.Agents["fence_apc"] = Schema{Actions: []string{"off", "on", "status"}} }, want: `
fence-method-template-pdu line 1: agent_name: fence_apc has neither ip nor plug in its metadata: two nodes with the same device could not be found; use another`},
		{name: "identity is missing", change: files{"fence-method-template-pdu": "agent_name=fence_apc\nip=192.0.2.1\nusername=apc"}, want: `
fence-method-pdu-off-host1: identity: ` + identity + `
fence-method-pdu-on-host1: identity: ` + identity},
		{name: "identity is uuid", change: files{"fence-method-pdu-off-host1": method + "identity=uuid"}, want: `
fence-method-pdu-off-host1 line 4: identity: ` + identity},
		{name: "unknown and refused parameters", change: files{"fence-method-template-pdu": ok + "\nspeed=9\npasswd_script=/bin/x\nssh_path=/bin/x\nverbose=1\ndebug-file=/tmp/x\n" +
			"quiet=1\ndelay=5\nssh-options=-oProxyCommand=x\nplug_separator=;\nversion=1"}, want: `
fence-method-template-pdu line 5: speed: is not a key of this ConfigMap; the keys are name, agent_name, must_success, identity, unverified, separate_power, timeout,
fence-method-template-pdu line 6: passwd_script: would run a program: move the password to a Secret; remove the line
fence-method-template-pdu line 7: ssh_path: would run another program: install the one that the agent runs by default; remove
fence-method-template-pdu line 8: verbose: prints passwords; remove
fence-method-template-pdu line 9: debug-file: writes passwords to a file; remove
fence-method-template-pdu line 10: quiet: hides what the agent reads from the device; remove
fence-method-template-pdu line 11: delay: delays the act: use power_delay in cluster-fence-config; remove
fence-method-template-pdu line 12: ssh-options: can make ssh run a program; remove
fence-method-template-pdu line 13: plug_separator: makes several plugs of one: use one method for each plug; remove
fence-method-template-pdu line 14: version: makes the agent do nothing; remove`},
		{name: "values", change: files{"fence-method-template-pdu": "agent_name=fence_ipmilan\nidentity=none\nip=192.0.2.1\nmethod=cycle\nlanplus=maybe\npower_wait=1s\nprivlvl=root\nipport=0\n" +
			"username=\"admin\"\npassword=\"hunter2\"\nport_as_ip=1", "fence-method-pdu-off-host1": method + "ip=192.0.2.1:623"}, want: `
fence-method-pdu-off-host1 line 4: ip: is neither an IP address nor a host name; correct the value
fence-method-template-pdu line 4: method: is not onoff: off would switch on again; correct the value
fence-method-template-pdu line 5: lanplus: is not a switch: write 1 or 0; correct the value
fence-method-template-pdu line 6: power_wait: is not a whole number; correct the value
fence-method-template-pdu line 7: privlvl: is not one of callback, user, operator, administrator; correct the value
fence-method-template-pdu line 8: ipport: is not a port from 1 to 65535; correct the value
fence-method-template-pdu line 9: username: is in double quotes, which fence agents remove; correct the value
fence-method-template-pdu line 10: password: a ConfigMap is not for passwords; move it
fence-method-template-pdu line 10: password: is in double quotes, which fence agents remove; correct the value, or remove the line
fence-method-template-pdu line 11: port_as_ip: puts the address into plug: write it into ip; remove the line
Secret evictd/fence-method-template-pdu: passwd: is also in the ConfigMap of this name; remove it there`},
		{name: "two plugs", change: files{"fence-method-pdu-off-host1": "template=fence-method-template-pdu\nplug=2,3\naction=off"}, want: `
fence-method-pdu-off-host1 line 2: plug: has a comma: use one method for each plug; correct the value`},
		{name: "missing parameters", change: files{"fence-method-template-pdu": "agent_name=fence_apc\nidentity=none", "fence-method-pdu-on-host1": "template=fence-method-template-pdu\naction=on"}, want: `
fence-method-pdu-off-host1: ip: is missing; write it here or in the template
fence-method-pdu-off-host1: username: is missing; create a Secret named
fence-method-pdu-on-host1: ip: is missing; write it here or in the template
fence-method-pdu-on-host1: plug: is missing; write it here or in the template
fence-method-pdu-on-host1: username: is missing; create a Secret named`},
		{name: "plain secrets", change: files{"fence-method-template-pdu": ok + "\nsnmp-priv-passwd=hunter2", "fence-method-pdu-off-host1": method + "passwd=hunter2"},
			objects: func(o *Objects) {
				s := o.Agents["fence_apc"]
				s.Parameters = append(s.Parameters, Parameter{Name: "snmp_priv_passwd"})
				o.Agents["fence_apc"] = s
			}, want: `
fence-method-pdu-off-host1 line 4: passwd: a ConfigMap is not for passwords; move it to a Secret named fence-method-pdu-off-host1, key passwd
fence-method-template-pdu line 5: snmp-priv-passwd: a ConfigMap is not for passwords; move it to a Secret named fence-method-template-pdu, key snmp-priv-passwd`},
		{name: "keys of Secrets", change: files{"secret:fence-method-template-pdu": "passwd password ip plug passwd_script username"}, want: `
Secret evictd/fence-method-template-pdu: ip: is not a key that a Secret may have
Secret evictd/fence-method-template-pdu: passwd_script: is not a key that a Secret may have
Secret evictd/fence-method-template-pdu: password: is there under two names; remove one of them
Secret evictd/fence-method-template-pdu: plug: is not a key that a Secret may have
Secret evictd/fence-method-template-pdu: username: is also in the ConfigMap of this name; remove it there`},
		{name: "the same plug", change: host2.with(files{"fence-method-pdu-off-host2": "template=fence-method-template-pdu\nplug=1:2\nipport=0023\naction=off"}), want: `
fence-method-pdu-off-host1: the device fence_apc://pdu.example.com:23/2 is that of node host1 and of node host2; give each node the device of its own machine
fence-method-pdu-off-host2: the device fence_apc://pdu.example.com:23/2 is that of node host2 and of node host1; give`},
		{name: "another plug", plans: "host1 host2", change: host2.with(files{"fence-method-pdu-off-host2": "template=fence-method-template-pdu\nplug=2\nswitch=2\naction=off"})},
		{name: "the BMC of another node's ipmi", change: host2.with(files{
			"fence-method-pdu-off-host2":       "template=fence-method-template-bmc\naction=off\nip=192.0.2.9",
			"fence-method-template-bmc":        "agent_name=ipmi\nusername=admin",
			"secret:fence-method-template-bmc": "password",
			"fence-method-template-pdu":        "agent_name=fence_ipmilan\nip=192.0.2.9\nidentity=none",
		}), want: `
fence-method-pdu-off-host1: the device ipmi://192.0.2.9:623 is that of node host1 and of node host2; give
fence-method-pdu-off-host2 line 3: ip: the device ipmi://192.0.2.9:623 is that of node host2 and of node host1; give`},
		{name: "a fabric agent switches no power", change: files{"fence-method-template-pdu": "agent_name=fence_brocade\nip=192.0.2.1\nusername=x\nidentity=none"}, want: `
fence-config-host1 line 2: power_management: method pdu-off: the agent fence_brocade can't be used in this step; its steps: isolation, recovery
fence-config-host1 line 2: power_management: method pdu-on: the agent fence_brocade can't be used in this step; its steps: isolation, recovery`},
		{name: "not checked", plans: "host1", change: files{"fence-method-template-pdu": strings.ReplaceAll(ok, "fence_apc", "fence_absent") + "\nspeed=9",
			"secret:fence-method-template-pdu": "passwd what-ever"},
			objects: func(o *Objects) { o.Unchecked = true }, want: `
warning: fence-method-template-pdu line 1: agent_name: the parameters of fence_absent are not checked; print its metadata where evictd-controller runs, with fence_absent -o metadata > fence_absent.xml, and`},
		{name: "mistakes of one that is not checked", change: files{
			"fence-method-template-pdu":  "agent_name=fence_absent\npassword=hunter2\nsnmp-priv-passwd=hunter2\nfoo_script=x\nverbose=1\nspeed=\"9\"",
			"fence-method-pdu-off-host1": "template=fence-method-template-pdu\naction=cycle\nmethod=cycle\nidentity=none",
			"fence-method-pdu-on-host1":  "-", "fence-config-host1": "node_name=host1\npower_management=pdu-off", "secret:fence-method-template-pdu": "-"},
			objects: func(o *Objects) { o.Unchecked = true }, want: `
fence-method-pdu-off-host1 line 2: action: is cycle, which switches on again
fence-method-pdu-off-host1 line 3: method: is not onoff: off would switch on again; correct the value
warning: fence-method-template-pdu line 1: agent_name: the parameters of fence_absent are not checked
fence-method-template-pdu line 2: password: a ConfigMap is not for passwords
fence-method-template-pdu line 3: snmp-priv-passwd: a ConfigMap is not for passwords
fence-method-template-pdu line 4: foo_script: would run a program
fence-method-template-pdu line 5: verbose: prints passwords
fence-method-template-pdu line 6: speed: is in double quotes, which fence agents remove`},
		{name: "nothing that identifies the plug", change: files{"fence-method-template-pdu": "agent_name=fence_absent\nidentity=none",
			"fence-method-pdu-off-host1": "template=fence-method-template-pdu\naction=off", "fence-method-pdu-on-host1": "-", "fence-config-host1": "node_name=host1\npower_management=pdu-off"},
			objects: func(o *Objects) { o.Unchecked = true }, want: `
fence-method-pdu-off-host1: plug: is missing: it is not known what is switched; write plug, or ip
warning: fence-method-template-pdu line 1: agent_name: the parameters of fence_absent are not checked`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := pdu().with(tt.change).agents(t)
			if tt.objects != nil {
				tt.objects(&o)
			}
			c, problems := Parse(o)
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

func TestResolveFenceAgent(t *testing.T) {
	c, problems := Parse(pdu().agents(t))
	if len(problems) > 0 {
		t.Fatalf("problems:\n%s", text(problems))
	}
	planned := c.Plans["host1"].PowerManagement[0].Methods[0]
	schema := schemas(t)["fence_apc"]
	for i := range schema.Parameters {
		if schema.Parameters[i].Name == "login_timeout" {
			schema.Parameters[i].Name = "loginTimeout" // some agents have names like this
		}
	}
	for _, tt := range []struct {
		name   string
		change map[string]string // of the plan's parameters
		data   map[string]string
		want   map[string]string // in addition to the plan's
		secret string
		err    string
	}{
		{"alias", nil, map[string]string{"passwd": "a=b\n"}, map[string]string{"password": "a=b"}, "password", ""},
		{"spelling", map[string]string{"logintimeout": "9"}, map[string]string{"password": "x", "login": "y"},
			map[string]string{"password": "x", "username": "y", "loginTimeout": "9"}, "password username", ""},
		{"switch that is off", nil, map[string]string{"passwd": "x", "inet4_only": "no", "inet6-only": "on"},
			map[string]string{"password": "x", "inet6_only": "1"}, "inet6_only password", ""},
		{"blank", nil, map[string]string{"passwd": "hunter2 "}, nil, "", "from Secret fence-method-template-pdu: passwd begins or ends with a blank, which fence agents remove"},
		{"quotes", nil, map[string]string{"passwd": `"hunter2"`}, nil, "", "passwd is in double quotes, which fence agents remove"},
		{"line break", nil, map[string]string{"passwd": "hunter2\naction=reboot"}, nil, "", "passwd has a line break or another control character"},
		{"refused key", nil, map[string]string{"passwd_script": "/bin/x", "ip": "192.0.2.66", "passwd": "x"}, map[string]string{"password": "x"}, "password", ""},
		{"edited: cycle", map[string]string{"method": "cycle"}, nil, nil, "", "from its plan: method is not a parameter of fence_apc"},
		{"edited: script", map[string]string{"password_script": "/bin/x"}, nil, nil, "", "from its plan: password_script would run a program"},
		{"edited: alias", map[string]string{"port": "3"}, nil, nil, "", "from its plan: port is not a parameter of fence_apc"},
		{"edited: action", map[string]string{"action": "reboot"}, nil, nil, "", "from its plan: action is not a parameter of fence_apc"},
		{"edited: line break", map[string]string{"plug": "2\naction=reboot"}, nil, nil, "", "from its plan: plug has a line break"},
	} {
		m := planned
		m.Parameters, m.Unverified = map[string]string{}, fence.Accept
		for _, from := range []map[string]string{planned.Parameters, tt.change} {
			for k, v := range from {
				m.Parameters[k] = v
			}
		}
		got, secrets, err := schema.Resolve(m, func(Source) (Data, error) { return Data{Values: tt.data}, nil })
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: Resolve = %v; want %s", tt.name, err, tt.err)
			}
			continue
		}
		want := map[string]string{"ip": "pdu.example.com", "username": "apc", "ssh": "1", "power_wait": "5", "plug": "2"}
		for k, v := range tt.want {
			want[k] = v
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: Resolve: %v, (-want +got):\n%s", tt.name, err, diff)
		}
		if s := strings.Join(secrets, " "); s != tt.secret {
			t.Errorf("%s: secrets = %s; want %s", tt.name, s, tt.secret)
		}
	}
	if _, _, err := (Schema{}).Resolve(planned, nil); err == nil || !strings.Contains(err.Error(), "has no action status") {
		t.Errorf("Resolve with an agent without status = %v", err)
	}
}

func TestFenceAgentDevice(t *testing.T) {
	for _, tt := range []struct {
		agent  string
		values map[string]string
		want   string
	}{
		{"fence_ipmilan", map[string]string{"ip": "192.0.2.1"}, "ipmi://192.0.2.1:623"},
		{"fence_idrac", map[string]string{"ip": "2001:db8::1", "ipport": "6230", "plug": "ignored"}, "ipmi://[2001:db8::1]:6230"},
		{"fence_ipmilan", map[string]string{"ip": "192.0.2.1", "target": "0x82"}, "fence_ipmilan://192.0.2.1:623/0x82%2F"},
		{"fence_apc", map[string]string{"ip": "a", "plug": "2"}, "fence_apc://a:23/2"},
		{"fence_apc", map[string]string{"ip": "a", "plug": "02", "switch": "01"}, "fence_apc://a:23/2"},
		{"fence_apc", map[string]string{"ip": "a", "plug": "1:2"}, "fence_apc://a:23/2"},
		{"fence_apc", map[string]string{"ip": "a", "plug": "3:02"}, "fence_apc://a:23/3:2"},
		{"fence_apc", map[string]string{"ip": "a", "plug": "2", "switch": "3"}, "fence_apc://a:23/3:2"},
		{"fence_brocade", map[string]string{"ip": "a", "ipport": "22", "plug": "1/2"}, "fence_brocade://a:22/1%2F2"},
		{"fence_brocade", map[string]string{"plug": "1"}, "fence_brocade:///1"},
		{"fence_brocade", nil, ""},
	} {
		s, ok := schemas(t)[tt.agent]
		if !ok {
			s = schemas(t)["fence_ipmilan"]
		}
		a, err := s.agent(tt.agent)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.device(tt.values); got != tt.want {
			t.Errorf("device of %s with %v = %s; want %s", tt.agent, tt.values, got, tt.want)
		}
	}
}

// TestFenceAgentParameters: passwords and keys of all agents are secret, and what a method may not have is refused.
func TestFenceAgentParameters(t *testing.T) {
	for name, want := range map[string]string{
		"password": "secret", "passwd": "secret", "snmp_priv_passwd": "secret", "snmp-auth-passwd": "secret", "community": "secret",
		"apikey": "secret", "access_key": "secret", "secret_key": "secret", "token": "secret", "hexadecimal_kg": "secret", "proxy": "secret",
		"missing_as_off": "refused", "password_script": "refused", "snmp_priv_passwd_script": "refused", "ipmitool_path": "refused",
		"sudo-path": "refused", "logfile": "refused", "debug": "refused", "verbose_level": "refused", "help": "refused", "quiet": "refused",
		"ip": "plan", "plug": "plan", "ipport": "plan", "switch": "plan", "target": "plan",
		"username": "", "key": "", "api_path": "", "power_timeout": "", "lanplus": "",
		"action": "none", "timeout": "none", "identity": "none", "Action": "none", "name": "none", "template": "none",
	} {
		a := &agent{}
		a.add(Parameter{Name: name})
		got := ""
		switch p := a.parameter(name); {
		case p == nil:
			got = "none"
		case p.refuse != "" && !p.fromSecret:
			got = "refused"
		case p.secret && p.fromSecret:
			got = "secret"
		case !p.fromSecret:
			got = "plan"
		}
		if got != want {
			t.Errorf("parameter %s is %q; want %q", name, got, want)
		}
	}
}
