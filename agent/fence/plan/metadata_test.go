package plan

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/properties"
)

// metadata returns the trimmed metadata of the fence agents in testdata.
func metadata(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/fence_*.xml")
	if err != nil || len(files) == 0 {
		t.Fatalf("metadata in testdata: %v, %v", files, err)
	}
	all := map[string][]byte{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".xml")] = text
	}
	return all
}

// schemas returns the schemas of the fence agents in testdata.
func schemas(t testing.TB) map[string]Schema {
	t.Helper()
	all := map[string]Schema{}
	for name, text := range metadata(t) {
		s, err := ParseMetadata(text)
		if err != nil || s.Name != name {
			t.Fatalf("ParseMetadata(%s) = %q, %v", name, s.Name, err)
		}
		all[name] = s
	}
	return all
}

func TestParseMetadata(t *testing.T) {
	s := schemas(t)["fence_ipmilan"]
	if want := []string{"on", "off", "reboot", "status", "monitor", "metadata", "manpage", "validate-all", "diag"}; !slices.Equal(s.Actions, want) {
		t.Errorf("actions = %q; want %q", s.Actions, want)
	}
	got := map[string]Parameter{}
	for _, p := range s.Parameters {
		got[p.Name] = p
	}
	for _, want := range []Parameter{
		{Name: "ip", Aliases: []string{"ipaddr"}, Type: "string"},
		{Name: "ipport", Type: "integer", Default: "623"},
		{Name: "username", Aliases: []string{"login"}, Type: "string"},
		{Name: "password", Aliases: []string{"passwd"}, Type: "string"},
		{Name: "plug", Aliases: []string{"port"}, Type: "string"},
		{Name: "lanplus", Type: "boolean", Default: "0"},
		{Name: "method", Type: "select", Default: "onoff", Options: []string{"onoff", "cycle"}},
	} {
		if diff := cmp.Diff(want, got[want.Name]); diff != "" {
			t.Errorf("parameter %s (-want +got):\n%s", want.Name, diff)
		}
		for _, alias := range want.Aliases {
			if _, ok := got[alias]; ok {
				t.Errorf("%s is a parameter; want an alias of %s", alias, want.Name)
			}
		}
	}
	brocade := schemas(t)["fence_brocade"]
	i := slices.IndexFunc(brocade.Parameters, func(p Parameter) bool { return p.Name == "username" })
	if i < 0 || !brocade.Parameters[i].Required || slices.Contains(brocade.Actions, "reboot") {
		t.Errorf("fence_brocade = %+v; want a required username, no reboot", brocade)
	}
}

func TestParseMetadataHostile(t *testing.T) {
	const head, tail = `<resource-agent name="fence_x"><parameters>`, `</parameters></resource-agent>`
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "it has no element resource-agent"},
		{"text", "Traceback (most recent call last):", "it has no element resource-agent"},
		{"another document", "<html/>", `it begins with the element "html", not resource-agent`},
		{"a path as name", `<resource-agent name="../fence_x"/>`, `the name of the agent is "../fence_x", not fence_NAME`},
		{"no name", `<resource-agent/>`, "the name of the agent is empty, not fence_NAME"},
		{"too long", head + strings.Repeat(" ", maxMetadata), "bytes, more than 1048576"},
		{"entities", `<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>` + head + `<parameter name="&b;"/>` + tail, "it has a document type"},
		{"undefined entity", head + `<parameter name="&b;"/>` + tail, "invalid character entity"},
		{"depth", head + strings.Repeat("<a>", 100000), "nested more than 16 deep"},
		{"parameters", head + strings.Repeat(`<parameter name="a"/>`, maxParameters+1) + tail, "more than 512 parameters"},
		{"options", head + `<parameter name="a"><content>` + strings.Repeat(`<option value="x"/>`, maxOptions+1), `parameter "a" has more than 256 options`},
		{"cut off", head + `<parameter name="a">`, "unexpected EOF"},
		{"another encoding", `<?xml version="1.0" encoding="utf-16"?>` + head + tail, "utf-16"},
	} {
		if s, err := ParseMetadata([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: ParseMetadata = %+v, %v; want %s", tt.name, s, err, tt.want)
		}
	}
	// Names that can't be keys, and names that are there twice, are left out.
	s, err := ParseMetadata([]byte(head + `<parameter/><parameter name="a=b"/><parameter name="` + strings.Repeat("x", 100000) + `"/>` +
		`<parameter name="a-b"/><parameter name="A_B"/><parameter name="c" obsoletes="a_b"/><parameter name="d" obsoletes="d"/>` + tail))
	if diff := cmp.Diff(Schema{Name: "fence_x", Parameters: []Parameter{{Name: "a-b"}, {Name: "c"}, {Name: "d"}}}, s); diff != "" || err != nil {
		t.Errorf("ParseMetadata: %v, (-want +got):\n%s", err, diff)
	}
}

func FuzzParseMetadata(f *testing.F) {
	for _, text := range metadata(f) {
		f.Add(text)
	}
	f.Add([]byte(`<resource-agent name="fence_x"><parameters><parameter name="a" obsoletes="A"/></parameters></resource-agent>`))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseMetadata(text)
		if err != nil {
			if diff := cmp.Diff(Schema{}, s); diff != "" {
				t.Errorf("ParseMetadata with an error returns a schema:\n%s", diff)
			}
			return
		}
		if !FenceAgent(s.Name) {
			t.Errorf("name %q", s.Name)
		}
		names := map[string]bool{}
		for _, p := range s.Parameters {
			for _, name := range append([]string{p.Name}, p.Aliases...) {
				if !properties.ValidKey(name) || names[fold(name)] {
					t.Errorf("name %q is invalid or there twice", name)
				}
				names[fold(name)] = true
			}
		}
		a, err := s.agent(s.Name)
		if err != nil {
			return
		}
		for i := range a.parameters {
			p := &a.parameters[i]
			if agentSecret(p.name) && !p.secret || strings.HasSuffix(p.name, "_script") && (p.refuse == "" || p.fromSecret) {
				t.Errorf("parameter %+v is accepted as a plain one", p)
			}
		}
	})
}
