package pods

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// node imitates the kernel filesystems of a node, with the runtime of a critest server.
type node struct {
	t       *testing.T
	v2      bool
	cgroups string // root of the cgroup filesystems
	proc    string
	runtime *critest.Server
	files   map[string]file // by path; others belong to root with mode 0755
}

// file has the owner and mode of an executable.
type file struct {
	owner uint32
	mode  fs.FileMode
}

// stat implements Inventory.stat.
func (n *node) stat(path string) (uint32, fs.FileMode, error) {
	target, err := os.Readlink(path)
	if err != nil {
		return 0, 0, err
	}
	if f, ok := n.files[target]; ok {
		return f.owner, f.mode, nil
	}
	return 0, 0o755, nil
}

// memTotal is the node's memory: 10 GiB.
const memTotal = 10 << 30

func newNode(t *testing.T, v2 bool) *node {
	t.Helper()
	n := &node{t: t, v2: v2, proc: t.TempDir(), cgroups: t.TempDir(), runtime: critest.Start(t)}
	n.build()
	return n
}

// build creates the files that each node has.
func (n *node) build() {
	n.t.Helper()
	kerneltest.Write(n.t, n.proc, map[string]string{"meminfo": meminfoText})
	if n.v2 {
		kerneltest.Write(n.t, n.cgroups, map[string]string{"cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n"})
	}
	n.cgroup("/", 8<<30, 6<<30)
	n.process(1, 0, "systemd")
}

const meminfoText = `MemTotal:       10485760 kB
MemFree:         4194304 kB
MemAvailable:    8388608 kB
Buffers:           16384 kB
Cached:          2097152 kB
SwapCached:            0 kB
Active:          1048576 kB
Inactive:        1048576 kB
Active(anon):     524288 kB
Inactive(anon):        0 kB
Active(file):     524288 kB
Inactive(file):  1048576 kB
Unevictable:           0 kB
Mlocked:               0 kB
SwapTotal:             0 kB
SwapFree:              0 kB
Dirty:               100 kB
Writeback:             0 kB
AnonPages:       2097152 kB
Mapped:           262144 kB
Shmem:             65536 kB
KReclaimable:     131072 kB
Slab:             262144 kB
SReclaimable:     131072 kB
SUnreclaim:       131072 kB
KernelStack:       16384 kB
PageTables:        16384 kB
HugePages_Total:       0
HugePages_Free:        0
HugePages_Rsvd:        0
HugePages_Surp:        0
Hugepagesize:       2048 kB
Hugetlb:               0 kB
`

// memory is the root of the memory cgroup tree.
func (n *node) memory() string {
	if n.v2 {
		return n.cgroups
	}
	return filepath.Join(n.cgroups, "memory")
}

// cgroup creates a cgroup, or changes its usage and processes. Of its usage, anon is
// anonymous and the rest is half active, half inactive file cache.
func (n *node) cgroup(at string, usage, anon int64, pids ...int) {
	n.t.Helper()
	file := usage - anon
	procs := ""
	for _, pid := range pids {
		procs += fmt.Sprintf("%d\n", pid)
	}
	files := map[string]string{"cgroup.procs": procs}
	tasks := fmt.Sprintf("%d\n", 2*len(pids))
	if n.v2 {
		files["pids.current"] = tasks
		files["memory.stat"] = fmt.Sprintf("anon %d\nfile %d\nfile_mapped 0\nshmem 0\ninactive_file %d\nactive_file %d\n", anon, file, file/2, file-file/2)
		if at != "/" {
			files["memory.current"], files["memory.max"] = fmt.Sprintf("%d\n", usage), "max\n"
			files["cgroup.events"] = "populated 1\nfrozen 0\n"
		}
	} else {
		kerneltest.Write(n.t, filepath.Join(n.cgroups, "pids", at), map[string]string{"cgroup.procs": procs, "pids.current": tasks})
		files["memory.stat"] = fmt.Sprintf("cache 0\nrss 0\ntotal_cache %d\ntotal_rss %d\ntotal_shmem 0\ntotal_mapped_file 0\ntotal_inactive_file %d\ntotal_active_file %d\n", file, anon, file/2, file-file/2)
		files["memory.usage_in_bytes"], files["memory.limit_in_bytes"] = fmt.Sprintf("%d\n", usage), "9223372036854771712\n"
	}
	kerneltest.Write(n.t, filepath.Join(n.memory(), at), files)
}

// process creates a process of root that runs /usr/bin/COMM.
func (n *node) process(pid, parent int, comm string) {
	n.t.Helper()
	kerneltest.Write(n.t, n.proc, map[string]string{
		fmt.Sprintf("%d/stat", pid):    fmt.Sprintf("%d (%s) S %d 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 %d 1 1 18446744073709551615\n", pid, comm, parent, 1000+pid),
		fmt.Sprintf("%d/comm", pid):    comm + "\n",
		fmt.Sprintf("%d/status", pid):  fmt.Sprintf("Name:\t%s\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n", comm),
		fmt.Sprintf("%d/cmdline", pid): "/usr/bin/" + comm + "\x00--flag\x00",
	})
	n.link(pid, "exe", "/usr/bin/"+comm)
	n.link(pid, "ns/pid", "pid:[4026531836]")
	n.link(pid, "ns/user", "user:[4026531837]")
}

// link replaces a symbolic link of a process.
func (n *node) link(pid int, name, target string) {
	n.t.Helper()
	at := filepath.Join(n.proc, fmt.Sprint(pid), name)
	if err := os.Remove(at); err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	kerneltest.Write(n.t, n.proc, map[string]string{fmt.Sprintf("%d/%s@", pid, name): target})
}

// setCgroup sets the cgroup of a process.
func (n *node) setCgroup(pid int, at string) {
	n.t.Helper()
	text := fmt.Sprintf("0::%s\n", at)
	if !n.v2 {
		text = fmt.Sprintf("9:pids:%s\n4:memory:%s\n", at, at)
	}
	kerneltest.Write(n.t, n.proc, map[string]string{fmt.Sprintf("%d/cgroup", pid): text})
}

// shim is the parent of the first processes of all containers.
const shim = 50

// addPod adds a pod to the runtime. For each running container it creates the first process
// and its cgroup, with a usage of 100 MiB of which 60 MiB are anonymous.
func (n *node) addPod(p critest.Pod) critest.Pod {
	n.t.Helper()
	p = n.runtime.AddPod(p)
	n.process(shim, 1, "containerd-shim")
	for _, c := range p.Containers {
		if c.State == cri.StateRunning && c.PID != critest.UnusedPID {
			n.process(c.PID, shim, c.Name)
			at := n.path(p, c)
			n.cgroup(at, 100<<20, 60<<20, c.PID)
			n.setCgroup(c.PID, at)
		}
	}
	return p
}

// path is the cgroup path of a container, as containerd names it.
func (n *node) path(p critest.Pod, c critest.Container) string {
	n.t.Helper()
	cgroupsPath := c.CgroupsPath
	if cgroupsPath == "" {
		cgroupsPath = path.Join(p.CgroupParent, c.ID)
		if p.CgroupParent == "" {
			cgroupsPath = "/k8s.io/" + c.ID
		}
		if strings.HasSuffix(p.CgroupParent, ".slice") {
			cgroupsPath = path.Base(p.CgroupParent) + ":cri-containerd:" + c.ID
		}
	}
	at, _, err := cri.CgroupPath(cgroupsPath)
	if err != nil {
		n.t.Fatal(err)
	}
	return at
}

// inventory returns an Inventory of the node, with options modified by change.
func (n *node) inventory(change ...func(*Options)) *Inventory {
	n.t.Helper()
	h, err := cgroup.Find(kernel.FS(n.cgroups))
	if err != nil {
		n.t.Fatal(err)
	}
	o := Options{Hierarchy: h, Procfs: kernel.FS(n.proc)}
	if n.runtime != nil {
		o.Runtime = n.newCRI()
	}
	for _, c := range change {
		c(&o)
	}
	i := New(o)
	i.stat = n.stat
	n.t.Cleanup(func() { i.Close() })
	return i
}

func (n *node) newCRI() *CRI {
	n.t.Helper()
	client, err := cri.Connect(n.runtime.Endpoint())
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { client.Close() })
	return NewCRI(client, n.runtime.Endpoint())
}

// synced returns an inventory that has listed once.
func (n *node) synced(change ...func(*Options)) *Inventory {
	n.t.Helper()
	i := n.inventory(change...)
	if err := i.Sync(context.Background()); err != nil {
		n.t.Fatalf("Sync() = %v", err)
	}
	return i
}
