package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/systemd"
)

// testOptions returns the default options, with all that evictd writes in a directory of the test.
func testOptions(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	o := Defaults()
	o.ConfigPath, o.ConfigGiven = filepath.Join(dir, "config.yaml"), true
	o.StateDir, o.ControlSocket, o.KubeSocket, o.WebAddress = filepath.Join(dir, "state"), filepath.Join(dir, "s"), filepath.Join(dir, "k"), ""
	o.FenceFile = filepath.Join(dir, "run", "fences")
	for v, i := reflect.ValueOf(o), 0; i < v.NumField(); i++ {
		if path := v.Field(i).String(); strings.Contains(path, "/evictd") {
			t.Fatalf("the test would use the %s of this host: %s", v.Type().Field(i).Name, path)
		}
	}
	return o
}

// buildHere builds a daemon of this host without a runtime, in dry run.
func buildHere(t *testing.T) *daemon {
	t.Helper()
	o := testOptions(t)
	content := "apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: none\ndryRun: true\n" +
		fmt.Sprintf("kube: {uid: 61119, gid: %d}\n", max(os.Getegid(), 1))
	if err := os.WriteFile(o.ConfigPath, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	sink := systemd.NewLog(os.Stderr, systemd.Format{})
	d, err := build(o, &asyncLog{Logger: testLogger(t), dropped: sink.Dropped})
	if err != nil {
		t.Skip("needs this host's cgroups to be readable: ", err)
	}
	t.Cleanup(d.close)
	return d
}

// runLoop runs the loop of a daemon until the test ends. step makes it take a step.
func runLoop(t *testing.T, d *daemon) (step func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.loop.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return func() {
		t.Helper()
		if err := d.loop.Reload(ctx, d.config); err != nil {
			t.Fatal(err)
		}
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A hundred steps leave no descriptor open, and the live heap stays below 6 MiB.
func TestBudget(t *testing.T) {
	const steps, largestHeap = 100, 6 << 20
	d := buildHere(t)
	step := runLoop(t, d)
	step()
	before := descriptors(t)
	for range steps {
		step()
	}
	if after := descriptors(t); after != before {
		t.Errorf("descriptors went from %d to %d in %d steps; want no change", before, after, steps)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > largestHeap {
		t.Errorf("live heap = %d bytes; want at most %d", m.HeapAlloc, largestHeap)
	}
	if v := d.lastView.Load(); v == nil || !v.Mode.DryRun {
		t.Errorf("view = %+v; want one, in dry run", v)
	}
}
