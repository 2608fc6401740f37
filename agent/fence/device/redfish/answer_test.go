package redfish

import (
	"encoding/json"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/fence"
)

// vendors returns the answers in testdata, which have the form of those of real BMCs.
func vendors(tb testing.TB) map[string][]byte {
	tb.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		tb.Fatalf("no answers in testdata: %v", err)
	}
	all := map[string][]byte{}
	for _, file := range files {
		if all[filepath.Base(file)], err = os.ReadFile(file); err != nil {
			tb.Fatal(err)
		}
	}
	return all
}

// TestVendors parses systems in the form of those of real BMCs.
func TestVendors(t *testing.T) {
	t.Parallel()
	all := vendors(t)
	for _, test := range []struct {
		file   string
		uri    string
		power  fence.Power
		uuid   string
		target string
		info   bool // the types of reset are in an ActionInfo
		off    bool // ForceOff is allowed inline
	}{
		{"idrac9-system.json", "/redfish/v1/Systems/System.Embedded.1", fence.PowerOn, "4c4c4544-0051-3510-8052-b4c04f4e3733",
			"/redfish/v1/Systems/System.Embedded.1/Actions/ComputerSystem.Reset", false, true},
		{"ilo5-system.json", "/redfish/v1/Systems/1/", fence.PowerOff, "30373237-3132-4D32-3239-343930354B51",
			"/redfish/v1/Systems/1/Actions/ComputerSystem.Reset/", false, true},
		{"supermicro-system.json", "/redfish/v1/Systems/1", fence.PowerOn, "00000000-0000-0000-0000-AC1F6B123456",
			"/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", true, false},
		{"openbmc-system.json", "/redfish/v1/Systems/system", fence.PowerUnknown, "1ac5d4f0-6a9e-4a35-a5c5-0ad4d3bb8ef1",
			"/redfish/v1/Systems/system/Actions/ComputerSystem.Reset", true, false},
	} {
		o, err := parseObject(all[test.file])
		if err != nil {
			t.Errorf("%s: %v", test.file, err)
			continue
		}
		s := system{test.uri, o}
		if power, _ := s.power(); power != test.power {
			t.Errorf("%s: power = %s; want %s", test.file, power, test.power)
		}
		if got, err := s.uuid(); got != test.uuid || err != nil {
			t.Errorf("%s: uuid = %q, %v; want %s", test.file, got, err, test.uuid)
		}
		action, target, err := s.resetAction()
		if err != nil || target != test.target {
			t.Errorf("%s: target = %q, %v; want %s", test.file, target, err, test.target)
			continue
		}
		if action.has("@Redfish.ActionInfo") != test.info {
			t.Errorf("%s: has an ActionInfo: %v", test.file, !test.info)
		}
		if test.off {
			types, err := action.allowed("ResetType@Redfish.AllowableValues")
			if got, _ := choose([]string{"ForceOff"}, types); got != "ForceOff" {
				t.Errorf("%s: allowed = %q, %v; want ForceOff", test.file, types, err)
			}
		}
	}
	o, err := parseObject(all["openbmc-actioninfo.json"])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"ForceOff", "GracefulShutdown", "On", "ForceOn", "PowerCycle"}
	if got, err := o.allowedInfo(); err != nil || !cmp.Equal(got, want) {
		t.Errorf("allowedInfo = %q, %v; want %q", got, err, want)
	}
}

func TestParseError(t *testing.T) {
	t.Parallel()
	all := vendors(t)
	for _, test := range []struct {
		text string
		ids  []string
		ok   bool
	}{
		{string(all["idrac9-sessions-error.json"]), []string{"IDRAC.2.4.RAC0218", "Base.1.7.GeneralError"}, true},
		{string(all["ilo4-off-error.json"]), []string{"iLO.0.10.InvalidOperationForSystemState", "iLO.0.10.ExtendedInfo"}, true},
		{`{"error":{"code":"Base.1.0.Success"}}`, []string{"Base.1.0.Success"}, true},
		{`{"error":{"code":"two words\n"}}`, nil, true},
		{`{"error":{"code":"Base.` + strings.Repeat("x", 100) + `"}}`, nil, true},
		{`{"error":{"message":"x"}}`, nil, false},
		{`{"error":"x"}`, nil, false},
		{`{"Error":{"code":"Base.1.0.GeneralError"}}`, nil, false},
		{`<html>`, nil, false},
		{``, nil, false},
	} {
		ids, ok := parseError([]byte(test.text))
		if ok != test.ok || !cmp.Equal(ids, test.ids) {
			t.Errorf("parseError(%.80s) = %q, %v; want %q, %v", test.text, ids, ok, test.ids, test.ok)
		}
	}
}

func TestCheckLink(t *testing.T) {
	t.Parallel()
	for uri, ok := range map[string]bool{
		"/redfish/v1/Systems":                     true,
		"/redfish/v1/Systems/":                    true,
		"/redfish/v1/Systems/System.Embedded.1":   true,
		"/redfish/v1/Systems(1)":                  true,
		"/redfish/v1":                             false,
		"/redfish/v1//Systems":                    false,
		"/redfish/v1/Systems//":                   false,
		"/redfish/v1/./Systems":                   false,
		"/redfish/v1/Systems/..":                  false,
		"/redfish/v1/%2e%2e/x":                    false,
		"/redfish/v2/Systems":                     false,
		"/redfish/v1/Systems?x":                   false,
		"/redfish/v1/Systems#x":                   false,
		"/redfish/v1/Systems\\1":                  false,
		"/redfish/v1/Systems/a b":                 false,
		"/redfish/v1/Systems/1\r\nX: y":           false,
		"//192.0.2.1/redfish/v1/Systems":          false,
		"https://192.0.2.1/redfish/v1/Systems":    false,
		"redfish/v1/Systems":                      false,
		"":                                        false,
		"/redfish/v1/" + strings.Repeat("a", 600): false,
	} {
		if err := checkLink(uri); (err == nil) != ok {
			t.Errorf("checkLink(%q) = %v; want valid: %v", uri, err, ok)
		}
	}
}

// FuzzAnswer checks that an answer is off only if it says so once, and that every link is one of this BMC.
func FuzzAnswer(f *testing.F) {
	for _, b := range vendors(f) {
		f.Add(b)
	}
	for _, text := range []string{
		`{"PowerState":"Off"}`, `{"powerstate":"Off"}`, `{"PowerState":"On","PowerState":"Off"}`, `{"PowerState":["Off"]}`, `[]`, `{`,
		`{"Members":[{"@odata.id":"//192.0.2.1/redfish/v1/Systems/1"}]}`, `{"Systems":{"@odata.id":"/redfish/v1/../x"}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		ids, _ := parseError(b)
		for _, id := range ids {
			if !messageID.MatchString(id) {
				t.Errorf("parseError returned %q", id)
			}
		}
		o, err := parseObject(b)
		if err != nil {
			return
		}
		s := system{"/redfish/v1/Systems/1", o}
		checkPower(t, s, b)
		_, _ = s.uuid()
		_, _ = o.allowedInfo()
		if action, target, err := s.resetAction(); err == nil {
			checkPath(t, target, s.uri+"/Actions/")
			_, _ = action.allowed("ResetType@Redfish.AllowableValues")
		}
		if uri, err := o.member(""); err == nil {
			checkPath(t, uri, serviceRoot)
		}
		if uri, err := o.reference("Systems"); err == nil {
			checkPath(t, uri, serviceRoot)
		}
		if uri := (&reply{body: b}).session(); uri != "" {
			checkPath(t, uri, serviceRoot)
		}
	})
}

// checkPower compares the state of the power with what encoding/json makes of the answer.
func checkPower(t *testing.T, s system, b []byte) {
	t.Helper()
	power, err := s.power()
	if power == fence.PowerUnknown {
		return
	}
	var all map[string]any
	if json.Unmarshal(b, &all) != nil || all["PowerState"] != string(power) || err != nil {
		t.Errorf("power of %q = %s, %v", b, power, err)
	}
	if !strings.Contains(string(b), `"PowerState"`) && !strings.Contains(string(b), `\u`) {
		t.Errorf("power of %q = %s without a PowerState", b, power)
	}
}

// checkPath checks that a link does not lead out of a path.
func checkPath(t *testing.T, uri, within string) {
	t.Helper()
	if u, err := url.Parse(uri); err != nil || u.Path != uri || u.Host != "" || !strings.HasPrefix(path.Clean(uri)+"/", within) {
		t.Errorf("link %q leads out of %s", uri, within)
	}
}
