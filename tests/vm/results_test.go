package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/tests/vm/machine"
)

func resultOf(machine, suite, command, result, date string) entry {
	return entry{Machine: machine, Suite: suite, Command: command, Result: result, Date: date, Commit: "c" + date[8:], Kernel: "6.1.0-50", Seconds: 40, Passed: 1}
}

func TestMerge(t *testing.T) {
	matrix := []place{{"a", "boot"}, {"a", "native"}, {"b", "native"}}
	of := resultOf
	before := results{
		of("b", "native", "native/each-class", ok, "2026-11-20"),
		of("a", "native", "native/victims", failed, "2026-11-20"),
		of("a", "native", "native/renamed", ok, "2026-11-20"),
		of("gone", "boot", "boot", ok, "2026-11-01"),
	}
	run := results{of("a", "native", "native/victims", ok, "2026-11-21"), of("a", "native", "native/each-class", ok, "2026-11-21"), of("a", "boot", "boot", ok, "2026-11-21")}
	want := results{
		of("a", "boot", "boot", ok, "2026-11-21"),
		of("a", "native", "native/each-class", ok, "2026-11-21"),
		of("a", "native", "native/victims", ok, "2026-11-21"),
		of("b", "native", "native/each-class", ok, "2026-11-20"),
	}
	if diff := cmp.Diff(want, before.merge(run, true, matrix)); diff != "" {
		t.Errorf("results after whole suites (-want +got):\n%s", diff)
	}
	want = slices.Insert(want, 1, of("a", "native", "native/renamed", ok, "2026-11-20"))
	if diff := cmp.Diff(want, before.merge(run, false, matrix)); diff != "" {
		t.Errorf("results after some classes (-want +got):\n%s", diff)
	}
	if got := results(nil).merge(nil, true, matrix); got != nil {
		t.Errorf("results of nothing = %+v; want none", got)
	}
}

func TestEntriesOf(t *testing.T) {
	tests := []string{
		"--- PASS: TestA (1.00s)", "=== RUN   TestB", "    b_test.go:1: needs a disk", "--- SKIP: TestB (0.00s)", "--- FAIL: TestC (1.00s)", "    --- FAIL: TestC/d (1.00s)",
	}
	r := record{
		variant: variant{name: "a"},
		planned: []planned{plannedOf("boot", "boot", false), plannedOf("native", "native/victims", true), plannedOf("native", "native/soft", true)},
		report: machine.Report{Release: "6.1.0-50", Results: []machine.Result{
			{Command: "boot", Duration: 2400 * time.Millisecond},
			{Command: "native/victims", Duration: 99 * time.Second, Output: tests, Err: errors.New("exit code 1")},
		}},
		err: errors.New("the machine hangs"),
	}
	of := func(suite, command, result string, remarks ...string) entry {
		return entry{Machine: "a", Suite: suite, Command: command, Kernel: "6.1.0-50", Date: "2026-11-21", Commit: "cafe", Result: result, Remarks: remarks}
	}
	boot, victims := of("boot", "boot", failed, "LOST the machine hangs"), of("native", "native/victims", failed, "FAIL native/victims: TestC/d: exit code 1", "skipped: TestB: needs a disk")
	boot.Seconds = 2
	victims.Seconds, victims.Passed, victims.Failed, victims.Skipped = 99, 1, 1, 1
	want := results{boot, victims, of("native", "native/soft", notRun, "not run, because the machine ended: native/soft")}
	if diff := cmp.Diff(want, entriesOf(r, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), "cafe")); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// TestDocument: results.md has results of earlier runs, and lists commands that were not run.
func TestDocument(t *testing.T) {
	dir := t.TempDir()
	var native results
	for _, c := range classesOf("native") {
		native = append(native, resultOf("6.1-systemd", "native", "native/"+c.name, ok, "2026-11-20"))
	}
	native[0].Remarks, native[0].Skipped = []string{"skipped: TestB: needs a disk"}, 1
	again := resultOf("6.1-systemd", "native", "native/rest", failed, "2026-11-21")
	again.Passed, again.Failed, again.Remarks = 0, 1, []string{"FAIL native/rest: TestX: exit code 1"}
	for _, run := range []results{native, {again}, {resultOf("6.1-cgroupfs", "native", "native/spare", ok, "2026-11-21")}} {
		before, err := readResults(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := before.merge(run, false, places()).write(dir); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "results.md"))
	if err != nil {
		t.Fatal(err)
	}
	n := len(native)
	rest := string(text)
	for _, want := range []string{ // in this order
		fmt.Sprintf("| 6.1-systemd | 6.1.0-50 | native | FAIL | %d s | %d passed, 1 failed, 1 skipped | 2026-11-20, 2026-11-21 | c20, c21 |\n", 40*n, n-1),
		"| 6.1-cgroupfs | 6.1.0-50 | native | ok in part | 40 s | 1 passed | 2026-11-21 | c21 |\n",
		"- 6.1-systemd native: FAIL native/rest: TestX: exit code 1\n",
		"- 6.1-systemd boot: not run yet\n",
		"- 6.1-cgroupfs native: not run yet: each-class, soft-eviction, ",
		"- v1 only on 6.1: Debian's 6.12 is built without CONFIG_MEMCG_V1\n",
		"| needs a disk | TestB | 6.1-systemd |\n",
	} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("results.md is\n%s\nwant %q in it, after what precedes it", text, want)
		}
		rest = after
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), []byte("[{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readResults(dir); err == nil || !strings.Contains(err.Error(), "results.json") {
		t.Errorf("read of broken results = %v; want an error that names the file", err)
	}
}

// TestPlaces: each suite on each machine of the full profile has a place in the results.
func TestPlaces(t *testing.T) {
	all := places()
	for _, want := range []place{{"6.1-systemd", "bench"}, {"6.12-cgroupfs", "service"}, {"6.1-cgroupfs-v1", "native"}, {"6.12-systemd-nomglru", "kernel"}} {
		if !slices.Contains(all, want) {
			t.Errorf("the matrix has no %v", want)
		}
	}
	for _, none := range []place{{"6.1-cgroupfs", "bench"}, {"6.1-cgroupfs", "kernel"}, {"6.12-systemd-nobtf", "service"}} {
		if slices.Contains(all, none) {
			t.Errorf("the matrix has %v; want no place without a command", none)
		}
	}
}

func TestTestdata(t *testing.T) {
	root := fstest.MapFS{
		"cri/critest/testdata/info.json": {}, "kernel/psi/testdata/a/testdata/x": {}, "kernel/psi/psi.go": {},
		".build/testdata/x": {}, "deploy/testdata/x": {},
	}
	got, err := testdata(root)
	if want := []string{"cri/critest/testdata", "kernel/psi/testdata"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("testdata = %q, %v; want %q", got, err, want)
	}
}
