package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// goodRedfish is the valid configuration of one node with a Redfish service.
func goodRedfish() files {
	return good().with(files{"fence-method-template-bmc": "agent_name=redfish\nlogin=admin"})
}

const redfishMethod = "template=fence-method-template-bmc\naction=off\nip=10.0.0.1\n"

func TestRedfishPlan(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	for _, tt := range []struct {
		name, lines string
		device      string
		parameters  map[string]string // in addition to ip, ipport and username
	}{
		{"defaults", "", "redfish://10.0.0.1:443/", nil},
		{"port", "ipport=08443", "redfish://10.0.0.1:8443/", map[string]string{"ipport": "8443"}},
		{"Id", "system=System.Embedded.1", "redfish://10.0.0.1:443/System.Embedded.1", map[string]string{"system": "System.Embedded.1"}},
		{"URI", "systems_uri=/redfish/v1/Systems/1/", "redfish://10.0.0.1:443/1", map[string]string{"system": "1"}},
		{"fingerprint", "ssl_fingerprint=SHA256:" + strings.ToUpper(strings.TrimSuffix(strings.Repeat("0a:", 32), ":")),
			"redfish://10.0.0.1:443/", map[string]string{"ssl_fingerprint": sum}},
		{"plain fingerprint", "ssl_fingerprint=" + sum, "redfish://10.0.0.1:443/", map[string]string{"ssl_fingerprint": sum}},
		{"not insecure", "ssl_insecure=no", "redfish://10.0.0.1:443/", map[string]string{"ssl_insecure": "0"}},
	} {
		c, problems := Parse(goodRedfish().with(files{"fence-method-bmc-off-host1": redfishMethod + tt.lines}).objects())
		if len(problems) > 0 || len(c.Plans) != 1 {
			t.Errorf("%s: problems:\n%s", tt.name, text(problems))
			continue
		}
		m := c.Plans["host1"].PowerManagement[0].Methods[0]
		want := map[string]string{"ip": "10.0.0.1", "ipport": "443", "username": "admin"}
		for key, value := range tt.parameters {
			want[key] = value
		}
		if m.Agent != "redfish" || m.Device != tt.device {
			t.Errorf("%s: agent, device = %s, %s; want redfish, %s", tt.name, m.Agent, m.Device, tt.device)
		}
		if diff := cmp.Diff(want, m.Parameters); diff != "" {
			t.Errorf("%s: parameters (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestRedfishProblems(t *testing.T) {
	other := func(lines string) files {
		return files{"fence-config-host2": "node_name=host2\npower_management=bmc-off",
			"fence-method-bmc-off-host2": redfishMethod + lines}
	}
	for _, tt := range []struct {
		name  string
		files files
		plans int
		want  string // the one problem in bmc-off
	}{
		{"insecure", files{"fence-method-bmc-off-host1": redfishMethod + "ssl_insecure=yes"}, 1,
			"line 4: ssl_insecure: the certificate of the BMC is not checked"},
		{"switch", files{"fence-method-bmc-off-host1": redfishMethod + "ssl_insecure=maybe"}, 0, "ssl_insecure: is neither yes nor no"},
		{"authority", files{"fence-method-bmc-off-host1": redfishMethod + "ssl_ca=-----BEGIN CERTIFICATE-----"}, 0,
			"ssl_ca: is a certificate in PEM, which has several lines: write it in a Secret, with the key ca.crt"},
		{"authority in a Secret", files{"secret:fence-method-template-bmc": "password ca.crt"}, 1, ""},
		{"fingerprint in a Secret", files{"secret:fence-method-template-bmc": "password ssl_fingerprint"}, 0,
			"the keys are username, password, ssl_ca"},
		{"short fingerprint", files{"fence-method-bmc-off-host1": redfishMethod + "ssl_fingerprint=0a:0b"}, 0, "ssl_fingerprint: is not a SHA-256"},
		{"mixed fingerprint", files{"fence-method-bmc-off-host1": redfishMethod + "ssl_fingerprint=0a:" + strings.Repeat("0a", 31)}, 0,
			"ssl_fingerprint: is not a SHA-256"},
		{"system of another kind", files{"fence-method-bmc-off-host1": redfishMethod + "system=/redfish/v1/Chassis/1"}, 0, "system: is neither the Id"},
		{"system above", files{"fence-method-bmc-off-host1": redfishMethod + "system=.."}, 0, "system: is neither the Id"},
		{"system with a query", files{"fence-method-bmc-off-host1": redfishMethod + "system=1?x"}, 0, "system: is neither the Id"},
		{"colon", files{"fence-method-bmc-off-host1": redfishMethod + "username=a:b"}, 0, "username: has a colon"},
		{"password", files{"fence-method-bmc-off-host1": redfishMethod + "secret=hunter2"}, 0, "secret: a ConfigMap is not for passwords"},
		{"same BMC", other(""), 0, "the device redfish://10.0.0.1:443/ is that of node host1 and of node host2"},
		{"same system", other("system=1").with(files{"fence-method-bmc-off-host1": redfishMethod + "systems_uri=/redfish/v1/Systems/1",
			"fence-method-bmc-on-host1": redfishMethod + "system=1"}), 0, "the device redfish://10.0.0.1:443/1 is that of node host1 and of node host2"},
		{"a system of the same BMC", other("system=1"), 0, "the device redfish://10.0.0.1:443/ is that of node host1 and of node host2"},
		{"two systems", other("system=2").with(files{"fence-method-bmc-off-host1": redfishMethod + "system=1",
			"fence-method-bmc-on-host1": "template=fence-method-template-bmc\naction=on\nip=10.0.0.1\nsystem=1"}), 2, ""},
	} {
		c, problems := Parse(goodRedfish().with(tt.files).objects())
		got := text(problems)
		if len(c.Plans) != tt.plans || !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: %d plans, problems:\n%swant %d and %q", tt.name, len(c.Plans), got, tt.plans, tt.want)
		}
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s: a password is in a problem", tt.name)
		}
	}
}

// TestRedfishResolve: a certificate in a Secret keeps its lines.
func TestRedfishResolve(t *testing.T) {
	c, problems := Parse(goodRedfish().with(files{"secret:fence-method-template-bmc": "password ca.crt"}).objects())
	if len(c.Plans) != 1 {
		t.Fatalf("no plan:\n%s", text(problems))
	}
	got, err := Resolve(c.Plans["host1"].PowerManagement[0].Methods[0], func(Source) (Data, error) {
		return Data{Values: map[string]string{"password": "one\n", "ca.crt": "a\nb\n"}}, nil
	})
	if err != nil || got["ssl_ca"] != "a\nb" || got["password"] != "one" {
		t.Errorf("Resolve = %q, %v; want ssl_ca in two lines", got, err)
	}
}
