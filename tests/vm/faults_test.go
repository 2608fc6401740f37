package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/tests/vm/machine"
	"github.com/evictd/evictd/tests/vm/protocol"
)

// The tests of this file boot virtual machines with a fault and check that the fault is reported correctly and soon.

// bootsMachines prepares a test that boots machines. It skips the test unless EVICTD_VM_TESTS is set.
func bootsMachines(t *testing.T) *runner {
	t.Helper()
	if os.Getenv("EVICTD_VM_TESTS") == "" {
		t.Skip("needs EVICTD_VM_TESTS=1 (boots virtual machines)")
	}
	t.Chdir("../..") // the module's root, from which the guest is built
	b := &runner{options: options{kernels: []string{"6.1"}, driver: "systemd"}, out: newPrinter(io.Discard)}
	done, err := b.prepare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := done(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// bootPlan boots a machine with the commands. change may modify its configuration.
func bootPlan(t *testing.T, b *runner, change func(*machine.Config), commands ...protocol.Command) (machine.Report, error) {
	t.Helper()
	for i := range commands {
		commands[i].Timeout = 5 * time.Minute
	}
	plan := protocol.Plan{Commands: commands}
	c, err := b.config(t.Context(), plain(b.kernels, b.driver)[0], &plan)
	if err != nil {
		t.Fatal(err)
	}
	c.Dir, c.Budget = t.TempDir(), plan.Budget()
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	return machine.Run(ctx, c, nil)
}

func shell(name, script string, expect ...protocol.Trouble) protocol.Command {
	return protocol.Command{Name: name, Argv: []string{"/bin/sh", "-c", script}, Expect: expect}
}

// lostMachine returns the error of the machine. It must be of a kind and have the console.
func lostMachine(t *testing.T, err, kind error) *machine.Error {
	t.Helper()
	var lost *machine.Error
	if !errors.As(err, &lost) || lost.Kind != kind {
		t.Fatalf("the machine ended by %v; want %v", err, kind)
	}
	if len(lost.Console) == 0 {
		t.Errorf("the error has no console: %s", lost.Detail())
	}
	return lost
}

// TestReportsKernelOOM: when the kernel's OOM killer acts, the running command fails immediately with the kernel's
// message, and the next commands are run. A command that expects the kill goes on.
func TestReportsKernelOOM(t *testing.T) {
	b := bootsMachines(t)
	const fill = "tail /dev/zero; sleep %d; echo slept"
	report, err := bootPlan(t, b, func(c *machine.Config) { c.Memory = 1024 },
		shell("unexpected", strings.ReplaceAll(fill, "%d", "200")),
		shell("expected", strings.ReplaceAll(fill, "%d", "2"), protocol.KernelOOM),
		shell("in a cgroup", "systemd-run --quiet --pipe --wait -p MemoryMax=64M tail /dev/zero; echo went on"),
		shell("after", "echo alive"),
	)
	if err != nil {
		t.Fatalf("the machine ended by %v; want it to survive", err)
	}
	if len(report.Results) != 4 {
		t.Fatalf("results = %+v; want four", report.Results)
	}
	first := report.Results[0]
	if !errors.Is(first.Err, machine.ErrKernelOOM) || !strings.Contains(first.Err.Error(), "Out of memory: Killed process ") || !strings.Contains(first.Err.Error(), "(tail)") {
		t.Errorf("unexpected: %v; want the kernel's kill of tail", first.Err)
	}
	if first.Duration > 150*time.Second {
		t.Errorf("unexpected: took %v; want it to be ended by the kill", first.Duration)
	}
	for i, want := range []string{"slept", "went on", "alive"} {
		r := report.Results[i+1]
		if diff := cmp.Diff(want, lastOf(r.Output)); r.Err != nil || diff != "" {
			t.Errorf("%s: %v, output differs (-want +got):\n%s", r.Command, r.Err, diff)
		}
	}
	var troubles []protocol.Trouble
	for _, e := range report.Troubles {
		troubles = append(troubles, e.Trouble)
	}
	if want := []protocol.Trouble{protocol.KernelOOM, protocol.KernelOOM, protocol.CgroupOOM}; !cmp.Equal(troubles, want) {
		t.Errorf("the kernel's troubles = %v; want %v", troubles, want)
	}
}

func lastOf(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return lines[len(lines)-1]
}

func TestReportsPanic(t *testing.T) {
	b := bootsMachines(t)
	report, err := bootPlan(t, b, nil, shell("crash", "echo c >/proc/sysrq-trigger"), shell("after", "true"))
	lost := lostMachine(t, err, machine.ErrPanicked)
	if !strings.Contains(lost.Text, "sysrq triggered crash") {
		t.Errorf("the panic is %q; want its reason", lost.Text)
	}
	if len(report.Results) != 1 || !errors.Is(report.Results[0].Err, machine.ErrPanicked) {
		t.Errorf("results = %+v; want the panic for the command that ran, and nothing of the one after", report.Results)
	}
}

func TestReportsHungBoot(t *testing.T) {
	b := bootsMachines(t)
	start := time.Now()
	report, err := bootPlan(t, b, func(c *machine.Config) {
		c.Append = []string{"init=/bin/cat"} // waits for input for ever
		c.Limits.Boot = 40 * time.Second
	}, shell("never", "true"))
	lost := lostMachine(t, err, machine.ErrHung)
	if want := "not booted after 40s"; lost.Text != want {
		t.Errorf("the error says %q; want %q", lost.Text, want)
	}
	if took := time.Since(start); took > 60*time.Second {
		t.Errorf("reported after %v; want soon after 40s", took)
	}
	if !strings.Contains(lost.Detail(), "virtio_blk") {
		t.Errorf("the error is %s; want the kernel's last messages in it", lost.Detail())
	}
	if len(report.Results) != 0 {
		t.Errorf("results = %+v; want none", report.Results)
	}
}

// TestReportsHungMachine: a machine that stops after its boot sends no more events.
func TestReportsHungMachine(t *testing.T) {
	b := bootsMachines(t)
	_, err := bootPlan(t, b, func(c *machine.Config) { c.Limits.Silence = 15 * time.Second },
		shell("stop", "kill -STOP $(pidof guest); sleep 1000"))
	lost := lostMachine(t, err, machine.ErrHung)
	if want := "silent for 15s"; lost.Text != want {
		t.Errorf("the error says %q; want %q", lost.Text, want)
	}
}

// TestReportsDeadRunner: a machine whose runner has exited powers itself off.
func TestReportsDeadRunner(t *testing.T) {
	b := bootsMachines(t)
	_, err := bootPlan(t, b, nil, shell("kill", "kill -KILL $(pidof guest); sleep 1000"))
	if lost := lostMachine(t, err, machine.ErrDied); !strings.Contains(lost.Text, "before it was done") {
		t.Errorf("the error says %q; want that the machine ended too early", lost.Text)
	}
}

func TestReportsFullDisk(t *testing.T) {
	b := bootsMachines(t)
	report, err := bootPlan(t, b, nil,
		shell("fill", "trap 'rm /t/fill; exit 1' QUIT; fallocate -l $(($(df --output=avail -B1 / | tail -n 1) - (8<<20))) /t/fill; sleep 200 & wait"),
		shell("after", "echo again >/t/file"))
	if err != nil {
		t.Fatalf("the machine ended by %v; want it to survive", err)
	}
	if len(report.Results) != 2 {
		t.Fatalf("results = %+v; want two", report.Results)
	}
	first := report.Results[0]
	if !errors.Is(first.Err, machine.ErrDiskFull) || !strings.Contains(first.Err.Error(), "bytes of") || first.Duration > 150*time.Second {
		t.Errorf("fill: %v after %v; want it to be ended by the full disk", first.Err, first.Duration)
	}
	if report.Results[1].Err != nil {
		t.Errorf("after: %v; want room again", report.Results[1].Err)
	}
}

// TestReportsTimeout: a command that exceeds its timeout is stopped with SIGQUIT, and its processes are killed before the
// next command.
func TestReportsTimeout(t *testing.T) {
	b := bootsMachines(t)
	long := shell("long", "trap 'echo quitting; exit 5' QUIT; sleep 900 & echo started; while :; do sleep 0.2; done")
	plan := protocol.Plan{Commands: []protocol.Command{long, shell("after", "pgrep -x sleep && exit 1; echo no sleep runs")}}
	plan.Commands[0].Timeout, plan.Commands[1].Timeout = 5*time.Second, time.Minute
	c, err := b.config(t.Context(), plain(b.kernels, b.driver)[0], &plan)
	if err != nil {
		t.Fatal(err)
	}
	c.Dir = t.TempDir()
	report, err := machine.Run(t.Context(), c, nil)
	if err != nil || len(report.Results) != 2 {
		t.Fatalf("the machine ended by %v with %+v; want two results", err, report.Results)
	}
	if first := report.Results[0]; !errors.Is(first.Err, machine.ErrTimeout) || !strings.Contains(strings.Join(first.Output, "\n"), "quitting") {
		t.Errorf("long: %v, %q; want a timeout and the output after SIGQUIT", first.Err, first.Output)
	}
	if after := report.Results[1]; after.Err != nil || lastOf(after.Output) != "no sleep runs" {
		t.Errorf("after: %v, %q; want no process of the first left", after.Err, after.Output)
	}
}
