package cgroup

import (
	"maps"
	"os"
	"path"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func testdata(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(path.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const unlimitedV1 = "9223372036854771712\n"

// cgroupV1 adds a memory cgroup to the files of a v1 hierarchy.
func cgroupV1(t testing.TB, files map[string]string, name, usage, limit, procs string) {
	dir := path.Join("memory", name)
	files[path.Join(dir, "memory.usage_in_bytes")] = usage
	files[path.Join(dir, "memory.limit_in_bytes")] = limit
	files[path.Join(dir, "memory.stat")] = testdata(t, "v1.memory.stat")
	files[path.Join(dir, "cgroup.procs")] = procs
	files[path.Join(dir, "tasks")] = procs
}

// cgroupV2 adds a cgroup to the files of a v2 hierarchy.
func cgroupV2(t testing.TB, files map[string]string, name, current, max, procs string) {
	populated := "populated 1\nfrozen 0\n"
	if procs == "" {
		populated = "populated 0\nfrozen 0\n"
	}
	maps.Copy(files, map[string]string{
		path.Join(name, "cgroup.procs"):   procs,
		path.Join(name, "cgroup.threads"): procs,
		path.Join(name, "cgroup.events"):  populated,
		path.Join(name, "cgroup.freeze"):  "0\n",
		path.Join(name, "cgroup.kill"):    "",
		path.Join(name, "memory.current"): current,
		path.Join(name, "memory.max"):     max,
		path.Join(name, "memory.stat"):    testdata(t, "v2.memory.stat"),
	})
}

func treeV1(t testing.TB) map[string]string {
	files := map[string]string{"freezer/cgroup.procs": "", "pids/cgroup.procs": ""}
	cgroupV1(t, files, "/", "600670208\n", unlimitedV1, "1\n2\n")
	cgroupV1(t, files, "/kubepods", "629145600\n", "1073741824\n", "")
	cgroupV1(t, files, "/kubepods/burstable/pod1/ctr", "67108864\n", unlimitedV1, "30\n20\n30\n")
	files["freezer/kubepods/burstable/pod1/ctr/freezer.state"] = "THAWED\n"
	files["pids/kubepods/burstable/pod1/ctr/pids.current"] = "17\n"
	return files
}

func treeV2(t testing.TB) map[string]string {
	files := map[string]string{
		"cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
		"cgroup.procs":       "1\n2\n",
		"cgroup.threads":     "1\n2\n",
		"memory.stat":        testdata(t, "v2.memory.stat"),
	}
	cgroupV2(t, files, "/kubepods.slice", "629145600\n", "1073741824\n", "")
	cgroupV2(t, files, "/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope", "67108864\n", "max\n", "30\n20\n30\n")
	return files
}

func findTree(t testing.TB, files map[string]string) (*Hierarchy, string) {
	t.Helper()
	root := kerneltest.Tree(t, files)
	h, err := Find(kernel.FS(root))
	if err != nil {
		t.Fatal(err)
	}
	return h, root
}

func open(t testing.TB, h *Hierarchy, name string) *Cgroup {
	t.Helper()
	c, err := h.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
