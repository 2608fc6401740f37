package cgroup

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestFind(t *testing.T) {
	hybrid := treeV1(t)
	hybrid["unified/cgroup.controllers"] = "\n"
	bare := map[string]string{}
	cgroupV1(t, bare, "/", "4096\n", unlimitedV1, "")
	noV1Memory := map[string]string{"freezer/cgroup.procs": ""}
	for name, content := range treeV2(t) {
		noV1Memory["unified/"+name] = content
	}
	namedMemory := treeV2(t)
	namedMemory["memory/memory.stat"] = testdata(t, "v2.memory.stat")

	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Hierarchy // paths relative to the test's directory
	}{
		{"v1", treeV1(t), Hierarchy{Version: V1, Memory: "memory", Freezer: "freezer", Pids: "pids"}},
		{"v1, memory alone", bare, Hierarchy{Version: V1, Memory: "memory"}},
		{"v2", treeV2(t), Hierarchy{Version: V2, Memory: ".", Unified: "."}},
		{"v2 with a cgroup named memory", namedMemory, Hierarchy{Version: V2, Memory: ".", Unified: "."}},
		{"hybrid", hybrid, Hierarchy{Version: Hybrid, Memory: "memory", Freezer: "freezer", Pids: "pids", Unified: "unified"}},
		{"hybrid with memory on v2", noV1Memory, Hierarchy{Version: V2, Memory: "unified", Unified: "unified"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, root := findTree(t, tt.files)
			for _, fs := range []*kernel.FS{&tt.want.Memory, &tt.want.Freezer, &tt.want.Pids, &tt.want.Unified} {
				if *fs != "" {
					*fs = kernel.FS(filepath.Join(root, string(*fs)))
				}
			}
			if diff := cmp.Diff(&tt.want, got, cmpopts.IgnoreUnexported(Hierarchy{})); diff != "" {
				t.Errorf("Find() (-want +got):\n%s", diff)
			}
			if got.Nested() {
				t.Error("Nested() of a directory of regular files = true; want false")
			}
		})
	}
}

func TestFindNothing(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"empty":                 {"nothing/": ""},
		"no controllers":        {"cgroup.controllers": "cpu io pids\n"},
		"hybrid without memory": {"unified/cgroup.controllers": "\n", "freezer/cgroup.procs": ""},
		"a v1 root":             {"memory.usage_in_bytes": "4096\n", "cgroup.procs": ""},
	} {
		root := kerneltest.Tree(t, files)
		_, err := Find(kernel.FS(root))
		if !errors.Is(err, kernel.ErrUnavailable) {
			t.Errorf("%s: Find() = %v; want %v", name, err, kernel.ErrUnavailable)
			continue
		}
		for _, file := range []string{"cgroup.controllers", "unified/cgroup.controllers", "memory/memory.usage_in_bytes"} {
			if !strings.Contains(err.Error(), filepath.Join(root, file)) {
				t.Errorf("%s: Find() = %v; want it to name %s", name, err, file)
			}
		}
	}
}

func TestOpenPath(t *testing.T) {
	h, root := findTree(t, treeV1(t))
	for _, tt := range []struct {
		in, want string
		err      string
		is       error
	}{
		{in: "/", want: "/"},
		{in: "/kubepods", want: "/kubepods"},
		{in: "//kubepods/./burstable/pod1/ctr/", want: "/kubepods/burstable/pod1/ctr"},
		{in: "", err: "not absolute"},
		{in: "kubepods", err: "not absolute"},
		{in: "/..", is: ErrOutsideNamespace},
		{in: "/kubepods/../../freezer", is: ErrOutsideNamespace},
		{in: "/kubepods/../kubepods", is: ErrOutsideNamespace},
		{in: "/kube\x00pods", err: "NUL"},
		{in: "/none", is: ErrGone},
		{in: "/kubepods/none/deeper", is: ErrGone},
		{in: "/kubepods/memory.stat", err: "not a directory"},
	} {
		c, err := h.Open(tt.in)
		if tt.err != "" || tt.is != nil {
			if err == nil || !strings.Contains(err.Error(), tt.err) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("Open(%q) = %v; want an error with %q%v", tt.in, err, tt.err, tt.is)
			}
			continue
		}
		if err != nil {
			t.Errorf("Open(%q) = %v; want nil", tt.in, err)
			continue
		}
		if got := c.Path(); got != tt.want {
			t.Errorf("Open(%q).Path() = %q; want %q", tt.in, got, tt.want)
		}
		st, err := os.Stat(filepath.Join(root, "memory", tt.want))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := c.ID(), inode(st); got != want {
			t.Errorf("Open(%q).ID() = %d; want %d", tt.in, got, want)
		}
		c.Close()
	}
}

// The error path of Open closes the descriptors that it opened.
func TestOpenLeaksNothing(t *testing.T) {
	files := treeV2(t)
	cgroupV2(t, files, "/a", "4096\n", "max\n", "")
	delete(files, "/a/memory.max")
	h, _ := findTree(t, files)
	before := descriptors(t)
	for range 10 {
		if _, err := h.Open("/a"); !errors.Is(err, kernel.ErrUnavailable) {
			t.Fatalf("Open() without memory.max = %v; want %v", err, kernel.ErrUnavailable)
		}
		c, err := h.Open("/kubepods.slice")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := c.Close(); err != nil {
				t.Errorf("Close() = %v; want nil", err)
			}
		}
		if _, err := c.Memory(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Memory() after Close = %v; want %v", err, os.ErrClosed)
		}
		if _, err := c.Procs(nil); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Procs() after Close = %v; want %v", err, os.ErrClosed)
		}
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open; want %d as before", after, before)
	}
}

func TestCheck(t *testing.T) {
	h, root := findTree(t, treeV2(t))
	c := open(t, h, "/kubepods.slice")
	if err := c.Check(); err != nil {
		t.Errorf("Check() = %v; want nil", err)
	}
	dir := filepath.Join(root, "kubepods.slice")
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); !errors.Is(err, ErrGone) {
		t.Errorf("Check() of a removed cgroup = %v; want %v", err, ErrGone)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "another") {
		t.Errorf("Check() with another cgroup at its path = %v; want %v that says so", err, ErrGone)
	}
}

func TestOpenError(t *testing.T) {
	h, root := findTree(t, treeV2(t))
	missing := &os.PathError{Op: "open", Path: "memory.stat", Err: unix.ENOENT}
	removed := &os.PathError{Op: "open", Path: "memory.stat", Err: unix.ENODEV}
	denied := &os.PathError{Op: "open", Path: "memory.stat", Err: unix.EACCES}
	c := open(t, h, "/kubepods.slice")
	for _, tt := range []struct{ err, want error }{
		{missing, kernel.ErrUnavailable},
		{removed, ErrGone},
		{denied, unix.EACCES},
	} {
		if got := c.openError(tt.err); !errors.Is(got, tt.want) {
			t.Errorf("openError(%v) = %v; want %v", tt.err, got, tt.want)
		}
	}
	if err := os.RemoveAll(filepath.Join(root, "kubepods.slice")); err != nil {
		t.Fatal(err)
	}
	if got := c.openError(missing); !errors.Is(got, ErrGone) {
		t.Errorf("openError(%v) without the cgroup = %v; want %v", missing, got, ErrGone)
	}
}

func TestKubepods(t *testing.T) {
	v1 := func(paths ...string) map[string]string {
		files := map[string]string{}
		cgroupV1(t, files, "/", "4096\n", unlimitedV1, "1\n")
		for _, p := range paths {
			name, procs, _ := strings.Cut(p, "=")
			cgroupV1(t, files, name, "4096\n", unlimitedV1, procs)
		}
		return files
	}
	for _, tt := range []struct {
		name, root string
		files      map[string]string
		want       Kubepods
		err        string
	}{
		{name: "none", root: "/", files: v1()},
		{name: "cgroupfs", root: "/", files: v1("/kubepods"), want: Kubepods{"/kubepods", Cgroupfs}},
		{name: "systemd", root: "", files: v1("/kubepods.slice"), want: Kubepods{"/kubepods.slice", Systemd}},
		{name: "v2", root: "/", files: treeV2(t), want: Kubepods{"/kubepods.slice", Systemd}},
		{name: "below a root", root: "/kubelet/", files: v1("/kubelet/kubepods", "/kubepods"), want: Kubepods{"/kubelet/kubepods", Cgroupfs}},
		{name: "below a systemd root", root: "/kubelet/a-b", files: v1("/kubelet.slice/kubelet-a_b.slice/kubelet-a_b-kubepods.slice"),
			want: Kubepods{"/kubelet.slice/kubelet-a_b.slice/kubelet-a_b-kubepods.slice", Systemd}},
		{name: "below a slice", root: "/foo.slice", files: v1("/foo.slice/kubepods.slice"), want: Kubepods{"/foo.slice/kubepods.slice", Systemd}},
		{name: "not below that root", root: "/other", files: v1("/kubepods")},
		{name: "left over from the other driver", root: "/", files: v1("/kubepods", "/kubepods.slice/pod=7\n"), want: Kubepods{"/kubepods.slice", Systemd}},
		{name: "both in use", root: "/", files: v1("/kubepods/pod=6\n", "/kubepods.slice/pod=7\n"), err: "2 of them have processes"},
		{name: "outside", root: "/../x", files: v1(), err: "outside"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "both in use" || tt.name == "left over from the other driver" {
				cgroupV1(t, tt.files, "/kubepods", "4096\n", unlimitedV1, "")
				cgroupV1(t, tt.files, "/kubepods.slice", "4096\n", unlimitedV1, "")
			}
			h, _ := findTree(t, tt.files)
			got, ok, err := h.Kubepods(tt.root)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("Kubepods(%q) = %v; want an error with %q", tt.root, err, tt.err)
				}
				return
			}
			if err != nil || got != tt.want || ok != (tt.want != Kubepods{}) {
				t.Errorf("Kubepods(%q) = %v, %v, %v; want %v", tt.root, got, ok, err, tt.want)
			}
		})
	}
}

func TestFindPID(t *testing.T) {
	files := treeV2(t)
	cgroupV2(t, files, "/moved", "4096\n", "max\n", "0\n2\n") // as read in another pid namespace
	h, _ := findTree(t, files)
	for _, tt := range []struct {
		pid  int
		want []string
	}{
		{1, []string{"/"}},
		{30, []string{"/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope"}},
		{2, []string{"/", "/moved"}},
		{3, nil},
	} {
		if got, err := h.FindPID(tt.pid); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("FindPID(%d) = %q, %v; want %q", tt.pid, got, err, tt.want)
		}
	}
	for _, pid := range []int{0, -1} {
		if got, err := h.FindPID(pid); err == nil {
			t.Errorf("FindPID(%d) = %q; want an error", pid, got)
		}
	}
}

func TestWideAndDeep(t *testing.T) {
	files := treeV2(t)
	cgroupV2(t, files, "/wide", "4096\n", "max\n", "")
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf(`system-foo\x2dbar-%04d.scope`, i)
		files[filepath.Join("wide", names[i], "cgroup.procs")] = fmt.Sprintln(10000 + i)
	}
	deep := "/deep"
	cgroupV2(t, files, deep, "4096\n", "max\n", "")
	for range 200 {
		deep += "/d"
		maps.Copy(files, map[string]string{deep[1:] + "/cgroup.procs": ""})
	}
	files[deep[1:]+"/cgroup.procs"] = "4242\n"
	h, _ := findTree(t, files)

	wide := open(t, h, "/wide")
	got, err := wide.Procs(nil)
	if err != nil || len(got) != 5000 || got[0] != 10000 || got[4999] != 14999 {
		t.Errorf("Procs() of 5000 cgroups = %d pids, %v; want 10000 to 14999", len(got), err)
	}
	children, err := wide.Children()
	if err != nil || !slices.Equal(children, names) {
		t.Errorf("Children() = %d names, %v; want the 5000 in order", len(children), err)
	}
	c := open(t, h, "/deep")
	if got, err := c.Procs(nil); err != nil || !slices.Equal(got, []int{4242}) {
		t.Errorf("Procs() of a tree 200 levels deep = %v, %v; want [4242]", got, err)
	}
	if got, err := h.FindPID(4242); err != nil || !slices.Equal(got, []string{deep}) {
		t.Errorf("FindPID(4242) = %q, %v; want the deepest", got, err)
	}
}
