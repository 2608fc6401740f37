package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/reclaim"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/state"
	"github.com/evictd/evictd/agent/status"
	"github.com/evictd/evictd/kernel/process"
)

// evictd starts with a broken state that can't be moved away, and reports it in the status
// and in /readyz.
func TestRestoreBrokenState(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".corrupt", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := state.OpenOrDegrade(dir, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	d := newSavingDaemon(t, store, dir)
	saved, err := d.load()
	if err != nil {
		t.Fatalf("load() = %v; want nil", err)
	}
	d.restore(&saved)
	if w := strings.Join(d.startWarnings, "; "); !strings.Contains(w, "could not be moved aside") {
		t.Errorf("warnings = %q; want the broken state", w)
	}
	for _, c := range status.New(status.Options{Store: store, StateDir: dir}).Checks() {
		if c.Name == "state" {
			if v, detail := c.Run(); v != metrics.Warn || !strings.Contains(detail, state.NotSavedMessage) {
				t.Errorf("check of the state = %v, %q; want a warning", v, detail)
			}
			return
		}
	}
	t.Error("readyz has no check of the state")
}

// newSavingDaemon returns a daemon that can save and restore.
func newSavingDaemon(t *testing.T, store *state.Store, dir string) *daemon {
	t.Helper()
	d := &daemon{
		options: Options{Procfs: "/proc", Sysfs: t.TempDir(), Rootfs: t.TempDir(), StateDir: dir}, log: &asyncLog{Logger: testLogger(t)},
		store: store, records: &execute.Records{}, lastView: &atomic.Pointer[loop.View]{}, reclaimer: reclaim.New(reclaim.Options{}, reclaim.Policy{}),
		metrics: metrics.New(metrics.Build{}, func() uint64 { return 0 }), inventory: pods.New(pods.Options{Procfs: "/proc"}), bootID: "b1",
	}
	d.shutdown = driver.New(driver.Options{Log: d.log.Logger})
	return d
}

// The guarded kubelets survive a restart of evictd, but not a reboot, also if only the copy of the state
// was written.
func TestKubeletsAreSaved(t *testing.T) {
	t.Run("state", func(t *testing.T) { testKubeletsAreSaved(t, (*daemon).save) })
	t.Run("copy", func(t *testing.T) { testKubeletsAreSaved(t, (*daemon).saveCopy) })
}

func testKubeletsAreSaved(t *testing.T, save func(*daemon) error) {
	t.Helper()
	dir, run := t.TempDir(), t.TempDir()
	found := ownKubelet(t)
	for _, tt := range []struct {
		boot        string
		found, want []evict.KubeletProcess
	}{{"b1", found, nil}, {"b1", nil, found}, {"b2", nil, nil}} {
		store, err := state.OpenOrDegrade(dir, run)
		if err != nil {
			t.Fatal(err)
		}
		d := newSavingDaemon(t, store, dir)
		d.bootID = tt.boot
		saved, err := d.load()
		d.restore(&saved)
		if got := d.inventory.TrustedKubelets(); !slices.Equal(got, tt.want) {
			t.Errorf("kubelets in boot %s = %v; want %v", tt.boot, got, tt.want)
		}
		d.inventory.RestoreKubelets(tt.found)
		d.lastView.Store(&loop.View{})
		if err := errors.Join(err, save(d), store.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// ownKubelet returns the test's own process as a kubelet that was found.
func ownKubelet(t *testing.T) []evict.KubeletProcess {
	t.Helper()
	stat, err := process.ReadStat("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return []evict.KubeletProcess{{PID: os.Getpid(), Executable: "/usr/bin/kubelet", Start: stat.StartTime}}
}

// A stop before the first decision loses nothing of an earlier run that was killed with only its copy written.
// A later one leaves no copy.
func TestCopyAtStop(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	kubelets := ownKubelet(t)
	for _, tt := range []struct {
		name    string
		decided bool
		stop    func(*daemon) error
		copies  int
	}{
		{"killed", true, (*daemon).saveCopy, 1},
		{"stopped before the first decision", false, (*daemon).saveLast, 1},
		{"stopped", true, (*daemon).saveLast, 0},
		{"stopped again", true, (*daemon).saveLast, 0},
	} {
		store, err := state.OpenOrDegrade(dir, run)
		if err != nil {
			t.Fatal(err)
		}
		d := newSavingDaemon(t, store, dir)
		saved, err := d.load()
		d.restore(&saved)
		if tt.name == "killed" {
			d.inventory.RestoreKubelets(kubelets)
		} else if got := d.inventory.TrustedKubelets(); !slices.Equal(got, kubelets) {
			t.Errorf("%s: restored %v; want %v", tt.name, got, kubelets)
		}
		if tt.decided {
			d.lastView.Store(&loop.View{})
		}
		if err := errors.Join(err, tt.stop(d), store.Close()); err != nil {
			t.Fatal(err)
		}
		if files, err := filepath.Glob(filepath.Join(run, "*.json")); err != nil || len(files) != tt.copies {
			t.Errorf("%s: copies %q, %v; want %d", tt.name, files, err, tt.copies)
		}
	}
}
