package clusterlabs

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/plan"
	"github.com/evictd/evictd/tests/bmc"
)

// TestFenceAgent runs the agent of ClusterLabs against a simulated BMC.
func TestFenceAgent(t *testing.T) {
	for _, program := range []string{"fence_ipmilan", "ipmitool", "ipmi_sim"} {
		if _, err := bmc.Program(program); err != nil {
			t.Skip(err)
		}
	}
	t.Run("Power", testPower)
	t.Run("Failures", testFailures)
	t.Run("Stuck", testStuck)
}

// ipmilan starts ipmi_sim, and returns the directory of fence_ipmilan and its parameters.
func ipmilan(t *testing.T) (s *bmc.Simulator, directory string, parameters map[string]string) {
	t.Helper()
	agent, err := bmc.Program("fence_ipmilan")
	if err != nil {
		t.Fatal(err)
	}
	tool, err := bmc.Program("ipmitool")
	if err != nil {
		t.Fatal(err)
	}
	s, err = bmc.Start(t.Context(), bmc.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	parameters = s.Parameters()
	maps.Copy(parameters, map[string]string{"lanplus": "1", "cipher": "3", "ipmitool_path": tool})
	return s, filepath.Dir(agent), parameters
}

func newIPMILAN(t *testing.T, directory string, parameters, others map[string]string) *Device {
	t.Helper()
	parameters = maps.Clone(parameters)
	maps.Copy(parameters, others)
	d, err := New(Options{directory, "fence_ipmilan", parameters, []string{"password"}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// wantPower compares the agent's reading with that of ipmitool and the machine's own.
func wantPower(t *testing.T, s *bmc.Simulator, d *Device, want fence.Power) {
	t.Helper()
	if got, err := d.Status(t.Context()); got != want || err != nil {
		t.Errorf("Status = %s, %v; want %s", got, err, want)
	}
	text := map[fence.Power]string{fence.PowerOn: "on", fence.PowerOff: "off"}[want]
	if got, err := s.Ipmitool(t.Context(), "chassis", "power", "status"); got != "Chassis Power is "+text || err != nil {
		t.Errorf("ipmitool: %q, %v; want %s", got, err, want)
	}
	if on, err := s.Power(); on != (want == fence.PowerOn) || err != nil {
		t.Errorf("the machine is on: %t, %v; want %s", on, err, want)
	}
}

// testPower switches a simulated machine with the agent of ClusterLabs, and checks the agent's metadata.
func testPower(t *testing.T) {
	s, directory, parameters := ipmilan(t)
	text, err := Metadata(t.Context(), directory, "fence_ipmilan")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := plan.ParseMetadata(text)
	if err != nil || schema.Name != "fence_ipmilan" || len(schema.Parameters) < 20 {
		t.Errorf("metadata: %+v, %v", schema, err)
	}
	d := newIPMILAN(t, directory, parameters, nil)
	wantPower(t, s, d, fence.PowerOn)
	for range 2 { // the second time it is off already
		if err := d.Off(t.Context()); err != nil {
			t.Errorf("Off = %v", err)
		}
		wantPower(t, s, d, fence.PowerOff)
	}
	if err := d.On(t.Context()); err != nil {
		t.Errorf("On = %v", err)
	}
	wantPower(t, s, d, fence.PowerOn)
	log, err := s.Log()
	if err != nil || len(log) != 2 || log[0].Action != "power 0" || log[1].Action != "power 1" {
		t.Errorf("the machine was given %v, %v; want power 0, power 1", log, err)
	}
}

// testFailures: what the agent can't do is neither off nor refused, and no error has the password.
func testFailures(t *testing.T) {
	s, directory, parameters := ipmilan(t)
	fails := func(name string, d *Device, ctx context.Context) {
		t.Helper()
		err := d.Off(ctx)
		if err == nil || errors.Is(err, device.ErrRefused) || strings.Contains(err.Error(), parameters["password"]) {
			t.Errorf("%s: Off = %v; want an unknown outcome, without the password", name, err)
		}
	}
	wrong := newIPMILAN(t, directory, parameters, map[string]string{"password": "wrong"})
	fails("wrong password", wrong, t.Context())
	if power, err := wrong.Status(t.Context()); power != fence.PowerUnknown || err == nil || strings.Contains(err.Error(), "password=wrong") {
		t.Errorf("wrong password: Status = %s, %v; want unknown", power, err)
	}

	d := newIPMILAN(t, directory, parameters, map[string]string{"power_timeout": "3"})
	if err := s.Ignore(true); err != nil {
		t.Fatal(err)
	}
	fails("BMC ignores commands", d, t.Context())
	wantPower(t, s, d, fence.PowerOn)
	if err := errors.Join(s.Ignore(false), s.Refuse(true)); err != nil {
		t.Fatal(err)
	}
	fails("BMC refuses commands", d, t.Context())
	wantPower(t, s, d, fence.PowerOn)
	if err := s.Refuse(false); err != nil {
		t.Fatal(err)
	}
}

// testStuck: a BMC that does not answer. At the deadline the agent is killed with its ipmitool.
func testStuck(t *testing.T) {
	s, directory, parameters := ipmilan(t)
	d := newIPMILAN(t, directory, parameters, nil)
	if err := s.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Off(ctx) }()
	var running []string
	await(t, "start of ipmitool", func() bool { running = users(t, parameters["ipport"]); return len(running) > 0 })
	cancel()
	begun := time.Now()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Off = %v; want the end of its context", err)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("Off returned %s after the deadline", took)
	}
	await(t, "end of ipmitool", func() bool { running = users(t, parameters["ipport"]); return len(running) == 0 })
	if err := s.Thaw(); err != nil {
		t.Fatal(err)
	}
	wantPower(t, s, d, fence.PowerOn)
}

// users returns the command lines of ipmitool that have the port.
func users(t *testing.T, port string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		b, _ := os.ReadFile(file)
		if strings.Contains(string(b), "ipmitool") && strings.Contains(string(b), "\x00"+port+"\x00") {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}
