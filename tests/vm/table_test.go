package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/tests/vm/machine"
	"github.com/evictd/evictd/tests/vm/protocol"
)

func plannedOf(suite, name string, goTest bool) planned {
	return planned{suite: suite, goTest: goTest, command: protocol.Command{Name: name}}
}

func TestByReason(t *testing.T) {
	got := byReason([]string{"TestA: needs BTF", "TestB: needs a disk: none", "TestC: needs BTF", "TestD: "})
	want := []string{"TestA, TestC: needs BTF", "TestB: needs a disk: none", "TestD: "}
	if !slices.Equal(got, want) {
		t.Errorf("byReason() = %q; want %q", got, want)
	}
}

func TestSkips(t *testing.T) {
	on := func(machine string, remarks ...string) entry { return entry{Machine: machine, Remarks: remarks} }
	got := results{
		on("a", "FAIL x: skipped: TestX: no", "skipped: TestA, TestB: needs a disk", "skipped: TestC: needs v1:  mkdir /sys/a-17: no such file"),
		on("b", "skipped: TestC: needs v1:  mkdir /sys/a-23: no such file", "skipped: TestA: needs a disk"),
		on("b", "skipped: TestB: needs a disk", "skipped: TestD: needs a disk"),
	}.skips()
	want := []skip{
		{reason: "needs a disk", tests: []string{"TestA", "TestB"}, machines: []string{"a", "b"}},
		{reason: "needs v1", tests: []string{"TestC"}, machines: []string{"a", "b"}},
		{reason: "needs a disk", tests: []string{"TestD"}, machines: []string{"b"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(skip{})); diff != "" {
		t.Errorf("skips() (-want +got):\n%s", diff)
	}
}

func TestTable(t *testing.T) {
	pass := []string{"=== RUN   TestA", "--- PASS: TestA (0.00s)"}
	skip := []string{"=== RUN   TestB", "    b_test.go:1: needs a disk", "--- SKIP: TestB (0.00s)"}
	good := record{
		variant: variant{name: "6.1-systemd"},
		planned: []planned{plannedOf("boot", "boot", false), plannedOf("kernel", "kernel/psi", true), plannedOf("kernel", "kernel/fs", true)},
		report: machine.Report{Release: "6.1.0-50", Results: []machine.Result{
			{Command: "boot", Duration: 2 * time.Second},
			{Command: "kernel/psi", Duration: 3 * time.Second, Output: pass},
			{Command: "kernel/fs", Duration: 4 * time.Second, Output: append(pass, skip...)},
		}},
		omitted: []string{"node (3m0s)"},
	}
	failed := good
	failed.report.Results = append([]machine.Result{{Command: "boot", Err: &machine.Error{Kind: machine.ErrKernelOOM, Text: "Out of memory: Killed process 7"}}}, good.report.Results[1:]...)
	lost := good
	lost.err = &machine.Error{Kind: machine.ErrHung, Text: "silent for 30s"}
	lost.report.Results = []machine.Result{{Command: "boot"}, {Command: "kernel/psi", Err: lost.err}}
	warned := good
	warned.report.Troubles = []protocol.Event{
		{Kind: protocol.Kernel, Trouble: protocol.CgroupOOM, Text: "Memory cgroup out of memory"},
		{Kind: protocol.Kernel, Trouble: protocol.Warning, Text: "WARNING: CPU: 0 PID: 1 at mm/x.c:7"},
	}
	empty := good
	empty.report.Results = append([]machine.Result{}, good.report.Results...)
	empty.report.Results[1].Output = []string{"testing: warning: no tests to run", "PASS"}
	unbooted := record{variant: variant{name: "6.12-systemd"}, planned: good.planned, err: errors.New("no such kernel")}

	for _, tt := range []struct {
		name   string
		record record
		passed bool
		want   []string
	}{
		{"all well", good, true, []string{
			"6.1-systemd  boot    ok      2 s   \n", "6.1-systemd  kernel  ok      7 s   2 passed, 1 skipped\n",
			"skipped on 6.1-systemd: TestB: needs a disk\n", "left to test-vm-full, because it exceeds the budget: 6.1-systemd node (3m0s)\n",
		}},
		{"a command that failed", failed, false, []string{"boot    FAIL", "kernel  ok", "6.1-systemd boot: FAIL boot: the kernel's OOM killer killed a process: Out of memory: Killed process 7\n"}},
		{"a machine that hung", lost, false, []string{
			"boot    FAIL", "kernel  FAIL", "6.1-systemd boot: LOST the machine hangs: silent for 30s\n", "6.1-systemd kernel: FAIL kernel/psi: the machine hangs",
			"6.1-systemd kernel: not run, because the machine ended: kernel/fs\n",
		}},
		{"a warning during the boot", warned, false, []string{"boot    FAIL", "6.1-systemd boot: LOST kernel warning between the commands: WARNING: CPU: 0 PID: 1 at mm/x.c:7\n"}},
		{"an expression that matches nothing", empty, false, []string{"6.1-systemd kernel: FAIL kernel/psi: no test matches the expression\n"}},
		{"a machine that never was", unbooted, false, []string{"6.12-systemd boot: LOST no such kernel\n", "boot    FAIL", "kernel  not run"}},
	} {
		table := newTable([]record{tt.record})
		var out strings.Builder
		table.print(&out)
		if table.passed() != tt.passed {
			t.Errorf("%s: passed = %v; want %v", tt.name, table.passed(), tt.passed)
		}
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: table is\n%s\nwant %q in it", tt.name, out.String(), want)
			}
		}
	}
	if newTable(nil).passed() {
		t.Error("no machine at all passes; want it to fail")
	}
}
