package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// limitsHierarchy returns the hierarchy of this machine and the root of the tree in which
// the limits of a cgroup are.
func limitsHierarchy(t *testing.T) (h *Hierarchy, root kernel.FS) {
	t.Helper()
	h, err := Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs a mounted cgroup filesystem: ", err)
	}
	if !h.v1() {
		return h, h.Memory
	}
	if h.Pids == "" {
		t.Skip("needs the pids controller")
	}
	return h, h.Pids
}

func openLimits(t *testing.T, h *Hierarchy, name string) *Limits {
	t.Helper()
	l, err := h.OpenLimits(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestNativeLimits(t *testing.T) {
	h, root := limitsHierarchy(t)
	name := kerneltest.Cgroup(t, root)
	l := openLimits(t, h, name)
	if l.Has(MaxDescendants) == h.v1() {
		t.Errorf("Has(%s) on %s = %t", MaxDescendants, h.Version, h.v1())
	}
	var st unix.Stat_t
	if err := unix.Stat(root.Path(name), &st); err != nil || st.Ino != l.ID() || l.Path() != name {
		t.Errorf("Path() = %s, ID() = %d; want %s, %d (%v)", l.Path(), l.ID(), name, st.Ino, err)
	}
	for f := range LimitFiles {
		if !l.Has(f) {
			continue
		}
		for _, want := range []Limit{Unlimited, 0, 4711, Unlimited} {
			if err := l.Write(f, want); err != nil {
				t.Fatal(err)
			}
			content, err := os.ReadFile(root.Path(name, f.String()))
			if err != nil || string(content) != want.String()+"\n" {
				t.Errorf("content of %s = %q, %v; want %s", f, content, err, want)
			}
			if got, err := l.Read(f); err != nil || got != want {
				t.Errorf("Read(%s) = %s, %v; want %s", f, got, err, want)
			}
		}
	}
}

// The descriptors are those of a removed cgroup, not of its successor.
func TestNativeLimitsGone(t *testing.T) {
	h, root := limitsHierarchy(t)
	name := kerneltest.Cgroup(t, root)
	l := openLimits(t, h, name)
	dir := root.Path(name)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := h.OpenLimits(name); !errors.Is(err, ErrGone) {
		t.Errorf("OpenLimits of a removed cgroup: %v; want %v", err, ErrGone)
	}
	if err := os.Mkdir(dir, 0o755); err != nil { // removed by kerneltest
		t.Fatal(err)
	}
	if again := openLimits(t, h, name); again.ID() == l.ID() {
		t.Errorf("both cgroups of the path have ID %d", l.ID())
	}
	for f := range LimitFiles {
		if !l.Has(f) {
			continue
		}
		if _, err := l.Read(f); !errors.Is(err, ErrGone) {
			t.Errorf("Read(%s) of a removed cgroup: %v; want %v", f, err, ErrGone)
		}
		if err := l.Write(f, 0); !errors.Is(err, ErrGone) {
			t.Errorf("Write(%s) to a removed cgroup: %v; want %v", f, err, ErrGone)
		}
	}
	l.Close()
	if _, err := l.Read(PIDsMax); l.Has(PIDsMax) && !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read after Close: %v; want %v", err, os.ErrClosed)
	}
}

// A v2 hierarchy without the pids controller, as that of a hybrid node, has
// cgroup.max.descendants alone.
func TestNativeMaxDescendants(t *testing.T) {
	h, err := Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs a mounted cgroup filesystem: ", err)
	}
	if h.Unified == "" {
		t.Skip("needs a v2 hierarchy")
	}
	v2 := &Hierarchy{Version: V2, Memory: h.Unified, Unified: h.Unified}
	name := kerneltest.Cgroup(t, h.Unified)
	l := openLimits(t, v2, name)
	if _, err := os.Stat(h.Unified.Path(name, "pids.max")); l.Has(PIDsMax) != (err == nil) {
		t.Errorf("Has(%s) = %t; the file: %v", PIDsMax, l.Has(PIDsMax), err)
	}
	if err := l.Write(MaxDescendants, 0); err != nil {
		t.Fatal(err)
	}
	child := h.Unified.Path(name, "child")
	if err := os.Mkdir(child, 0o755); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("mkdir below %s 0: %v; want %v", MaxDescendants, err, unix.EAGAIN)
		os.Remove(child)
	}
	if err := l.Write(MaxDescendants, Unlimited); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Error(err)
	}
	os.Remove(child)
}

func TestOpenLimitsRefuses(t *testing.T) {
	root := kernel.FS(kerneltest.Tree(t, map[string]string{"pids/a/pids.max": "max\n", "v2/a/pids.max": "max\n"}))
	v1 := &Hierarchy{Version: V1, Memory: root, Pids: kernel.FS(root.Path("pids"))}
	for _, tt := range []struct {
		name string
		h    *Hierarchy
		path string
		want error
	}{
		{"root", v1, "/", errRoot},
		{"root, unclean", v1, "/.", errRoot},
		{"outside", v1, "/../a", ErrOutsideNamespace},
		{"unclean", v1, "/a/.", nil},
		{"absent", v1, "/b", ErrGone},
		{"no pids controller", &Hierarchy{Version: V1, Memory: root}, "/a", kernel.ErrUnavailable},
		{"v2 by pids.max alone", &Hierarchy{Version: V2, Memory: kernel.FS(root.Path("v2"))}, "/a", nil},
	} {
		l, err := tt.h.OpenLimits(tt.path)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: OpenLimits(%s) = %v; want %v", tt.name, tt.path, err, tt.want)
		}
		if err == nil {
			l.Close()
		}
	}
	for _, content := range []string{"", "-1\n", "max x\n", "99999999999999999999\n"} {
		if err := os.WriteFile(filepath.Join(string(v1.Pids), "a", "pids.max"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := openLimits(t, v1, "/a").Read(PIDsMax); err == nil {
			t.Errorf("Read of %q = %s; want an error", content, got)
		}
	}
}
