package bmc

import (
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// simulator starts a Simulator for a test, which is skipped if ipmi_sim is missing.
func simulator(t *testing.T, o Options) *Simulator {
	t.Helper()
	t.Parallel()
	o.Dir = t.TempDir()
	s, err := Start(t.Context(), o)
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// ipmitool calls Ipmitool. A missing program skips the test.
func ipmitool(t *testing.T, s *Simulator, args ...string) string {
	t.Helper()
	out, err := s.Ipmitool(t.Context(), args...)
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSimulator(t *testing.T) {
	s := simulator(t, Options{Off: true})
	if got, want := ipmitool(t, s, "chassis", "power", "status"), "Chassis Power is off"; got != want {
		t.Errorf("status at the beginning = %q; want %q", got, want)
	}
	ipmitool(t, s, "chassis", "power", "on")
	if on, err := s.Power(); err != nil || !on {
		t.Errorf("Power after on = %v, %v; want true", on, err)
	}
	if err := s.SetPower(false); err != nil {
		t.Fatal(err)
	}
	if got, want := ipmitool(t, s, "chassis", "power", "status"), "Chassis Power is off"; got != want {
		t.Errorf("status after the button = %q; want %q", got, want)
	}
	log, err := s.Log()
	if err != nil || len(log) != 1 || log[0].Action != "power 1" || log[0].Effect != "done" ||
		time.Since(log[0].At) > time.Minute {
		t.Errorf("Log = %v, %v; want power 1, done, now", log, err)
	}
}

func TestSimulatorFaults(t *testing.T) {
	s := simulator(t, Options{})
	if err := s.Ignore(true); err != nil {
		t.Fatal(err)
	}
	ipmitool(t, s, "chassis", "power", "off")
	if err := errors.Join(s.Ignore(false), s.Refuse(true)); err != nil {
		t.Fatal(err)
	}
	if out, err := s.Ipmitool(t.Context(), "chassis", "power", "off"); err == nil {
		t.Errorf("off while refused = %q; want an error", out)
	}
	if err := s.Refuse(false); err != nil {
		t.Fatal(err)
	}
	ipmitool(t, s, "chassis", "power", "off")
	log, err := s.Log()
	if err != nil || len(log) != 3 {
		t.Fatalf("Log = %v, %v; want 3 calls", log, err)
	}
	for i, want := range []string{"ignored", "refused", "done"} {
		if log[i].Effect != want || log[i].Action != "power 0" {
			t.Errorf("call %d = %v; want power 0, %s", i, log[i], want)
		}
	}
}

func TestSimulatorClose(t *testing.T) {
	s := simulator(t, Options{})
	pid := s.PID()
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("ipmi_sim after Close: kill(%d, 0) = %v; want ESRCH", pid, err)
	}
}

// TestFenceAgent: the fetched agent works with the simulator.
func TestFenceAgent(t *testing.T) {
	agent, err := Program("fence_ipmilan")
	if err != nil {
		t.Skip(err)
	}
	tool, err := Program("ipmitool")
	if err != nil {
		t.Skip(err)
	}
	s := simulator(t, Options{})
	stdin := "action=off\nlanplus=1\ncipher=3\nipmitool_path=" + tool + "\n"
	for key, value := range s.Parameters() {
		stdin += key + "=" + value + "\n"
	}
	cmd := exec.CommandContext(t.Context(), agent)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("fence_ipmilan: %v: %s", err, out)
	}
	if on, err := s.Power(); err != nil || on {
		t.Errorf("Power after the agent's off = %v, %v; want false", on, err)
	}
}

func TestStartRefuses(t *testing.T) {
	if _, err := Program("ipmi_sim"); err != nil {
		t.Skip(err)
	}
	for name, o := range map[string]Options{
		"relative directory":    {Dir: "state"},
		"blank in the password": {Dir: "/tmp", Password: "two words"},
		"quote in the name":     {Dir: "/tmp", Name: `a"b`},
		"long password":         {Dir: "/tmp", Password: strings.Repeat("a", 21)},
		"short GUID":            {Dir: "/tmp", GUID: "a1"},
	} {
		if s, err := Start(t.Context(), o); err == nil {
			s.Close()
			t.Errorf("Start with %s: no error", name)
		}
	}
}

func TestParseCall(t *testing.T) {
	for _, line := range []string{"", "1", "1 done", "x.5 done power 0", "1779555000. done power 0"} {
		if c, err := parseCall(line); err == nil {
			t.Errorf("parseCall(%s) = %v; want an error", strconv.Quote(line), c)
		}
	}
}
