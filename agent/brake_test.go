package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/memcg"
)

// braked is a node on which a daemon was killed that had lowered memory.high of the
// pods, from 9216 bytes to 4096.
func braked(t *testing.T) (o Options, high func() string) {
	t.Helper()
	tree := kerneltest.Tree(t, map[string]string{
		"cgroup.controllers":      "memory pids\n",
		"kubepods/memory.high":    "4096\n",
		"kubepods/memory.stat":    "anon 0\nfile 0\ninactive_file 0\nactive_file 0\n",
		"kubepods/memory.max":     "max\n",
		"kubepods/cgroup.procs":   "",
		"kubepods/cgroup.events":  "populated 0\nfrozen 0\n",
		"kubepods/cgroup.freeze":  "0\n",
		"kubepods/cgroup.kill":    "",
		"kubepods/memory.events":  "high 0\nmax 0\noom 0\noom_kill 0\n",
		"kubepods/memory.current": "0\n",
	})
	o = Defaults()
	o.Cgroupfs, o.StateDir = tree, t.TempDir()
	o.Stderr = t.Output()
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(tree, "kubepods"), &st); err != nil {
		t.Fatal(err)
	}
	store, err := state.Open(o.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	keep, err := keepBrake(o, store)
	if err != nil {
		t.Fatal(err)
	}
	if err := keep.SaveBrake(lanes.Braked{Cgroup: "/kubepods", ID: st.Ino, Was: 9216, From: 9216, To: 4096}); err != nil {
		t.Fatal(err)
	}
	return o, func() string {
		content, err := os.ReadFile(filepath.Join(tree, "kubepods/memory.high"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(content))
	}
}

// A start that fails gives back what an earlier run has left, whatever it fails at:
// the service manager starts it for ever, and pods would be slow for ever.
func TestFailedStartReleasesBrake(t *testing.T) {
	o, high := braked(t)
	o.ConfigPath, o.ConfigGiven = filepath.Join(t.TempDir(), "missing.yaml"), true
	if _, err := build(o, &droppingLog{Logger: testLogger(t)}); err == nil {
		t.Fatal("build() without its configuration = nil; want an error")
	}
	if got := high(); got != "9216" {
		t.Errorf("memory.high after a start that failed = %s; want 9216, as it was before the brake", got)
	}
}

// evictd --release-brake is what a service is stopped with.
func TestReleaseBrake(t *testing.T) {
	o, high := braked(t)
	store, err := state.Open(o.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := ReleaseBrake(o); !errors.Is(err, state.ErrLocked) || high() != "4096" {
		t.Errorf("ReleaseBrake() while evictd runs = %v, memory.high %s; want %v and 4096", err, high(), state.ErrLocked)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing
		if err := ReleaseBrake(o); err != nil || high() != "9216" {
			t.Errorf("ReleaseBrake() = %v, memory.high %s; want nil and 9216", err, high())
		}
	}
	o.StateDir = filepath.Join(o.StateDir, "none")
	if err := ReleaseBrake(o); err != nil {
		t.Errorf("ReleaseBrake() without a state directory = %v; want nil", err)
	}
	if _, err := os.Stat(o.StateDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReleaseBrake() has made %s", o.StateDir)
	}
}

// What can't be read any more leaves it to somebody else, who has to be told which
// file to look at.
func TestReleaseBrakeCorrupt(t *testing.T) {
	o, high := braked(t)
	if err := os.WriteFile(filepath.Join(o.StateDir, "brake.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "memory.high of /kubepods is 4096"
	if err := ReleaseBrake(o); err == nil || !strings.Contains(err.Error(), want) || high() != "4096" {
		t.Errorf("ReleaseBrake() of a brake that can't be read = %v, memory.high %s; want 4096 and an error with %q", err, high(), want)
	}
}

// What a brake has moved is kept by boot and in all its bits.
func TestBrakeKept(t *testing.T) {
	store, err := state.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	keep, err := keepBrake(Defaults(), store)
	if err != nil {
		t.Fatal(err)
	}
	want := lanes.Braked{Cgroup: "/kubepods", ID: 4711, Was: memcg.Unlimited, From: 1 << 40, To: 1<<40 - 4096}
	if err := keep.SaveBrake(want); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := keep.LoadBrake(); got != want || !ok || err != nil {
		t.Errorf("LoadBrake() = %+v, %t, %v; want %+v", got, ok, err, want)
	}
	if _, ok, err := (brakeKeeper{store, "another boot"}).LoadBrake(); ok || err != nil {
		t.Errorf("LoadBrake() in another boot = %t, %v; want none", ok, err)
	}
	// The cgroup may be gone.
	o, _ := braked(t)
	h, err := cgroup.Find(kernel.FS(o.Cgroupfs))
	if err != nil {
		t.Fatal(err)
	}
	if err := keep.SaveBrake(lanes.Braked{Cgroup: "/kubepods/none", ID: 1, Was: 1, From: 1, To: 1}); err != nil {
		t.Fatal(err)
	}
	if err := releaseBrake(h, keep, &droppingLog{Logger: testLogger(t)}); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := keep.LoadBrake(); ok || err != nil {
		t.Errorf("LoadBrake() = %+v, %v; want none, as the cgroup is gone", got, err)
	}
}
