package protocol

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var events = []Event{
	{Kind: Hello, Text: "6.1.0-50-cloud-amd64", Uptime: 15 * time.Second},
	{Kind: Begin, Command: "kernel/psi"},
	{Kind: Line, Command: "kernel/psi", Text: "--- PASS: TestArm (0.01s)"},
	{Kind: Line, Command: "kernel/psi"},
	{Kind: Line, Command: "native", Text: "a \"quoted\" line\twith \u2028 and \x00"},
	{Kind: Kernel, Trouble: CgroupOOM, Text: "Memory cgroup out of memory: Killed process 530 (hog)"},
	{Kind: Beat, Uptime: time.Minute, DiskFree: 3 << 30, LoadAverage: 1.25},
	{Kind: End, Command: "kernel/psi", ExitCode: 1, Duration: 3 * time.Second},
	{Kind: End, Command: "native", ExitCode: -1, TimedOut: true, Trouble: KernelOOM, Text: "Out of memory: Killed process 1 (x)"},
	{Kind: Done, Uptime: 2 * time.Minute},
}

func TestEncodeDecode(t *testing.T) {
	for _, e := range events {
		line := string(e.Encode())
		if n := strings.Count(line, "\n"); n != 1 || !strings.HasSuffix(line, "\n") {
			t.Errorf("Encode(%+v) = %q; want one line", e, line)
		}
		got, err := Decode([]byte(strings.TrimSuffix(line, "\n")))
		if diff := cmp.Diff(e, got); err != nil || diff != "" {
			t.Errorf("Decode(%q) = %v, differs (-want +got):\n%s", line, err, diff)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, line := range []string{
		"", "{}", "null", "[]", `"beat"`, `{"kind":"nap"}`, `{"kind":"beat"`, `{"kind":"beat"}{"kind":"beat"}`, `{"kind":"beat","colour":"red"}`,
		`{"kind":"line","text":"no command"}`, `{"kind":"end"}`, `{"kind":"begin","command":""}`, `{"kind":"kernel","text":"of no trouble"}`,
		`{"kind":"kernel","trouble":"a bad mood"}`, `{"kind":"beat","diskFree":-1}`, "[    1.0] Linux version 6.1",
	} {
		if e, err := Decode([]byte(line)); err == nil {
			t.Errorf("Decode(%q) = %+v; want an error", line, e)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range events {
		f.Add(e.Encode())
	}
	f.Add([]byte(`{"kind":"line","command":"x","text":"\ud800"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := Decode(line)
		if err != nil {
			return
		}
		again, err := Decode(e.Encode())
		if diff := cmp.Diff(e, again); err != nil || diff != "" {
			t.Errorf("of %q: %v, differs when encoded again (-first +second):\n%s", line, err, diff)
		}
	})
}

func TestPlan(t *testing.T) {
	p := Plan{
		Writes: []Write{{File: "/sys/kernel/mm/lru_gen/enabled", Text: "y"}},
		Hide:   []string{"/sys/kernel/btf"},
		Commands: []Command{
			{Name: "boot", Argv: []string{"/bin/sh", "-c", "true"}, Timeout: time.Minute},
			{Name: "kernel/psi", Argv: []string{"./psi.test"}, Env: []string{"A=b"}, Dir: "/payload/src/kernel/psi", Timeout: 2 * time.Minute, Expect: []Trouble{KernelOOM}},
		},
	}
	text, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodePlan(text)
	if diff := cmp.Diff(p, got); err != nil || diff != "" {
		t.Errorf("DecodePlan = %v, differs (-want +got):\n%s", err, diff)
	}
	if got, want := p.Budget(), 3*time.Minute; got != want {
		t.Errorf("Budget = %v; want %v", got, want)
	}
}

func TestPlanIsRefused(t *testing.T) {
	ok := Command{Name: "a", Argv: []string{"true"}, Timeout: time.Second}
	with := func(change func(*Command)) []Command {
		c := ok
		change(&c)
		return []Command{c}
	}
	for want, commands := range map[string][]Command{
		"no name":                  with(func(c *Command) { c.Name = "" }),
		`two commands`:             {ok, ok},
		"no program":               with(func(c *Command) { c.Argv = nil }),
		"a: timeout":               with(func(c *Command) { c.Timeout = 0 }),
		`"src" is not`:             with(func(c *Command) { c.Dir = "src" }),
		`unknown trouble "nerves"`: with(func(c *Command) { c.Expect = []Trouble{"nerves"} }),
	} {
		if _, err := (Plan{Commands: commands}).Encode(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Encode of a plan with %+v = %v; want an error with %q", commands, err, want)
		}
	}
	if _, err := DecodePlan([]byte("commands: []")); err == nil {
		t.Error("DecodePlan of YAML succeeds; want an error")
	}
}
