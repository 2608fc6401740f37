package podfence

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
)

// A fence of SetForking leaves pids.max alone, also in the next evictd, until Set completes it.
func TestSetForking(t *testing.T) {
	test := func(t *testing.T, p *testPod) {
		h, file := p.hierarchy, marksFile(t)
		table, _ := openTable(t, h, file)
		f := p.prepare(table)
		before := p.limits()
		err := f.SetForking("1", "")
		if !slices.Contains(p.files, cgroup.MaxDescendants) {
			if !errors.Is(err, kernel.ErrUnavailable) || p.limits() != before || table.Len() != 0 {
				t.Errorf("SetForking() on v1 = %v, limits %s; want no fence", err, p.limits())
			}
			return
		}
		forking, full := p.all("0"), p.all("0")
		if len(p.files) > 1 {
			forking = strings.Fields(before)[0] + " 0"
		}
		check := func(when, want string) {
			t.Helper()
			r, err := table.Check()
			if err != nil || len(r.Set) != 1 || len(r.Changed) != 0 || p.limits() != want {
				t.Errorf("%s: Check() = %+v, %v, limits %s; want %s", when, r, err, p.limits(), want)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		check("set", forking)
		f.Close()
		table.Close()
		table, left := openTable(t, h, file)
		check("after a restart", forking)
		f = left[0].Fence
		if err := f.Set("2", ""); err != nil || p.limits() != full {
			t.Errorf("Set() = %v, limits %s; want %s", err, p.limits(), full)
		}
		check("completed", full)
		if err := f.SetForking("3", ""); err != nil || p.limits() != full {
			t.Errorf("SetForking() of a complete fence = %v, limits %s; want %s", err, p.limits(), full)
		}
		table.Close()
		table, left = openTable(t, h, file)
		check("completed, after a restart", full)
		if err := left[0].Lift(); err != nil || p.limits() != before {
			t.Errorf("Lift() = %v, limits %s; want %s", err, p.limits(), before)
		}
	}
	eachHierarchy(t, func(t *testing.T, h *cgroup.Hierarchy) { test(t, newPod(t, h)) })
	t.Run("files", func(t *testing.T) { test(t, newPodOfFiles(t)) })
}

// newPodOfFiles returns a pod of v2 with both limits, which are files with one digit: a hybrid
// node has no v2 hierarchy with the pids controller.
func newPodOfFiles(t *testing.T) *testPod {
	root := t.TempDir()
	p := &testPod{
		t: t, hierarchy: &cgroup.Hierarchy{Version: cgroup.V2, Memory: kernel.FS(root), Unified: kernel.FS(root)}, root: kernel.FS(root),
		uid: testUID, path: "/kubepods/burstable/pod" + testUID, files: []cgroup.LimitFile{cgroup.PIDsMax, cgroup.MaxDescendants},
	}
	p.containers = []string{p.path + "/ctr"}
	if err := os.MkdirAll(p.root.Path(p.containers[0]), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range p.files {
		p.write(f, "9")
	}
	return p
}

// Lift restores a fence of SetForking, and not a pids.max that others set to 0.
func TestLiftForking(t *testing.T) {
	p := newPodOfFiles(t)
	table, _ := openTable(t, p.hierarchy, marksFile(t))
	f := p.prepare(table)
	if err := f.SetForking("1", ""); err != nil || p.limits() != "9 0" {
		t.Fatalf("SetForking() = %v, limits %s; want 9 0", err, p.limits())
	}
	p.write(cgroup.PIDsMax, "0")
	if err := f.Lift(); err != nil || !strings.HasPrefix(p.limits(), "0 ") {
		t.Errorf("Lift() = %v, limits %s; want pids.max left at 0", err, p.limits())
	}
}
