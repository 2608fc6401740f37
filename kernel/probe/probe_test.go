package probe

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

var self = strconv.Itoa(os.Getpid())

// names are the features that Run returns, in order.
var names = []string{
	"cgroup", "kubepods", "own cgroup", "cgroup.kill", "freezer", "host pids", "pidfd_open", "process_mrelease",
	"real time", "memcg thresholds", "memory.events", "psi", "psi triggers",
	"btf", "bpf ring buffer", "bpf tracing", "hugetlb", "swap", "memlock", "CAP_KILL", "CAP_IPC_LOCK", "CAP_SYS_RESOURCE", "CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_BPF", "CAP_PERFMON",
	"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH",
}

// node returns /proc, /sys and a v2 hierarchy of a host.
func node() map[string]string {
	return map[string]string{
		"proc/self@":                 self,
		"proc/" + self + "/status":   "Name:\tevictctl\nCapPrm:\t000001ffffffffff\nCapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n",
		"proc/" + self + "/ns/pid@":  "pid:[4026531836]",
		"proc/" + self + "/ns/user@": "user:[4026531837]",
		"proc/pressure/memory":       "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/swaps":                 "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/dm-1                               partition\t999420\t\t0\t\t-2\n",
		"proc/meminfo":               memory,
		"sys/kernel/btf/vmlinux":     "\x9f\xeb\x01\x00",
		"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0\n",

		"cgroup/cgroup.controllers":            "cpuset cpu io memory pids\n",
		"cgroup/cgroup.procs":                  "1\n2\n",
		"cgroup/kubepods.slice/cgroup.procs":   "",
		"cgroup/kubepods.slice/memory.stat":    "anon 0\nfile 0\nshmem 0\nfile_mapped 0\ninactive_file 0\nactive_file 0\n",
		"cgroup/kubepods.slice/memory.current": "0\n",
		"cgroup/kubepods.slice/memory.max":     "max\n",
		"cgroup/kubepods.slice/memory.events":  "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
		"cgroup/kubepods.slice/cgroup.kill":    "",
		"cgroup/kubepods.slice/cgroup.freeze":  "0\n",
		"cgroup/system.slice/cgroup.procs":     self + "\n",
	}
}

const memory = `MemTotal:       24669460 kB
MemFree:        20803920 kB
MemAvailable:   23470108 kB
Buffers:          148628 kB
Cached:          2523624 kB
SwapCached:            0 kB
Active:          1304400 kB
Inactive:        2092276 kB
Active(anon):     724972 kB
Inactive(anon):        0 kB
Active(file):     579428 kB
Inactive(file):  2092276 kB
Unevictable:           0 kB
Mlocked:               0 kB
SwapTotal:             0 kB
SwapFree:              0 kB
AnonPages:        724592 kB
Mapped:           327812 kB
Shmem:               480 kB
Slab:             270940 kB
SReclaimable:     218816 kB
SUnreclaim:        52124 kB
KernelStack:        3712 kB
PageTables:         6044 kB
HugePages_Total:       1
Hugepagesize:       2048 kB
Hugetlb:            2048 kB
`

// without returns a node without the files whose names have one of the prefixes.
func without(prefixes ...string) map[string]string { return drop(node(), prefixes...) }

func drop(files map[string]string, prefixes ...string) map[string]string {
	maps.DeleteFunc(files, func(name, _ string) bool {
		for _, p := range prefixes {
			if strings.HasPrefix(name, p) {
				return true
			}
		}
		return false
	})
	return files
}

func with(more map[string]string, files map[string]string) map[string]string {
	maps.Copy(files, more)
	return files
}

func run(t *testing.T, files map[string]string) map[string]Feature {
	t.Helper()
	root := kerneltest.Tree(t, files)
	features := Run(kernel.FS(filepath.Join(root, "proc")), kernel.FS(filepath.Join(root, "sys")), kernel.FS(filepath.Join(root, "cgroup")))
	got := make(map[string]Feature)
	var order []string
	for _, f := range features {
		order = append(order, f.Name)
		got[f.Name] = f
	}
	if diff := cmp.Diff(names, order); diff != "" {
		t.Errorf("Run() names (-want +got):\n%s", diff)
	}
	return got
}

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name    string
		files   map[string]string
		feature string
		want    State
		detail  string // a substring
		missing string // a substring; "" means that Missing must be empty
	}{
		{"v2", node(), "cgroup", Yes, "v2: memory is in ", ""},
		{"v2", node(), "kubepods", Yes, "/kubepods.slice, named by the systemd driver", ""},
		{"v2", node(), "own cgroup", Yes, "/system.slice", ""},
		{"v2", node(), "cgroup.kill", Yes, "kubepods.slice/cgroup.kill", ""},
		{"v2", node(), "freezer", Yes, "kubepods.slice/cgroup.freeze", ""},
		{"v2", node(), "memcg thresholds", No, "v2", ""},
		{"v2", node(), "memory.events", Yes, "kubepods.slice/memory.events", ""},
		{"v2", node(), "host pids", Yes, "", ""},
		{"v2", node(), "psi", Yes, "some and full", ""},
		{"v2", node(), "psi triggers", Yes, "500 ms", ""},
		{"v2", node(), "btf", Yes, "btf/vmlinux", ""},
		{"v2", node(), "hugetlb", Yes, "(2048kB) reserve 2097152 bytes", ""},
		{"v2", node(), "swap", Yes, "1 areas with a total of 999420 KiB", ""},
		{"v2", node(), "memlock", Yes, "", ""},
		{"v2", node(), "CAP_SYS_RESOURCE", Yes, "", ""},

		{"no cgroups", without("cgroup/"), "cgroup", No, "not available on this kernel", "memory controller"},
		{"no cgroups", without("cgroup/"), "cgroup.kill", Unknown, "no cgroup hierarchy", ""},
		{"no cgroups", without("cgroup/"), "freezer", Unknown, "no cgroup hierarchy", ""},
		{"no cgroups", without("cgroup/"), "own cgroup", Unknown, "no cgroup hierarchy", ""},
		{"no cgroups", without("cgroup/"), "kubepods", Unknown, "no cgroup hierarchy", ""},
		{"unreadable controllers", with(map[string]string{"cgroup/cgroup.controllers/": ""}, without("cgroup/cgroup.controllers")), "cgroup", Unknown, "is a directory", ""},
		{"empty v2 tree", without("cgroup/kubepods", "cgroup/system"), "cgroup.kill", Unknown, "no cgroup below", ""},
		{"before cgroup.kill", without("cgroup/kubepods.slice/cgroup.kill"), "cgroup.kill", No, "no cgroup has it", "Linux 5.14"},
		{"before cgroup.freeze", without("cgroup/kubepods.slice/cgroup.freeze"), "freezer", No, "no cgroup has it", "Linux 5.2"},
		{"no cgroups", without("cgroup/"), "memcg thresholds", Unknown, "no cgroup hierarchy", ""},
		{"no cgroups", without("cgroup/"), "memory.events", Unknown, "no cgroup hierarchy", ""},
		{"empty v2 tree", without("cgroup/kubepods", "cgroup/system"), "memory.events", Unknown, "no cgroup below", ""},
		{"no memory below the root", without("cgroup/kubepods.slice/memory"), "memory.events", No, "memory.stat", "subtree_control"},
		{"broken events", with(map[string]string{"cgroup/kubepods.slice/memory.events": "low x\n"}, without("cgroup/system")), "memory.events", Unknown, "low", ""},
		{"no kubelet", without("cgroup/kubepods"), "kubepods", No, "does not apply", ""},
		{"another namespace's hierarchy", without("cgroup/system"), "own cgroup", No, "lists pid " + self, "hostPID"},
		{"listed twice", with(map[string]string{"cgroup/x/cgroup.procs": self + "\n"}, node()), "own cgroup", No, "/system.slice, /x", "hostPID"},

		{"v1", nodeV1(), "cgroup", Yes, "v1: memory is in ", ""},
		{"v1", nodeV1(), "kubepods", Yes, "/kubepods, named by the cgroupfs driver", ""},
		{"v1", nodeV1(), "cgroup.kill", No, "one by one", "cgroup v2"},
		{"v1", nodeV1(), "memcg thresholds", Yes, "", ""},
		{"v1 without thresholds", drop(nodeV1(), "cgroup/memory/cgroup.event_control"), "memcg thresholds", No, "cgroup.event_control", "PREEMPT_RT"},
		{"v1", nodeV1(), "memory.events", No, "v1", "cgroup v2"},
		{"v1", nodeV1(), "freezer", Yes, "freezer/cgroup.procs", ""},
		{"v1 without freezer", with(map[string]string{"cgroup/memory/memory.usage_in_bytes": "1\n"}, without("cgroup/")), "freezer", No, "not mounted", "a mount"},
		{"hybrid", with(map[string]string{"cgroup/unified/cgroup.controllers": "\n"}, nodeV1()), "cgroup", Yes, "a v2 hierarchy in ", ""},

		{"no procfs", without("proc/"), "host pids", Unknown, "self", ""},
		{"procfs of another namespace", with(map[string]string{"proc/self@": "1" + self}, without("proc/self")), "host pids", No, "1" + self, "hostPID"},
		{"container", with(map[string]string{"proc/" + self + "/ns/pid@": "pid:[4026532281]"}, without("proc/"+self+"/ns/pid")), "host pids", No, "pid:[4026532281]", "hostPID"},
		{"no namespaces", without("proc/" + self + "/ns"), "host pids", Unknown, "ns/pid", ""},
		{"no psi", without("proc/pressure"), "psi", No, "", "psi=1"},
		{"no psi", without("proc/pressure"), "psi triggers", No, "", "psi=1"},
		{"broken psi", with(map[string]string{"proc/pressure/memory": "some\n"}, node()), "psi", Unknown, "total", ""},
		{"psi is a directory", with(map[string]string{"proc/pressure/memory/": ""}, without("proc/pressure")), "psi triggers", Unknown, "is a directory", ""},
		{"no btf", without("sys/kernel/btf"), "btf", No, "does not exist", "CONFIG_DEBUG_INFO_BTF"},
		{"empty btf", with(map[string]string{"sys/kernel/btf/vmlinux": ""}, node()), "btf", Unknown, "EOF", ""},
		{"not btf", with(map[string]string{"sys/kernel/btf/vmlinux": "\x7fELF"}, node()), "btf", Unknown, "7f 45", ""},
		{"lockdown in integrity mode", with(map[string]string{"sys/kernel/security/lockdown": "none [integrity] confidentiality\n"}, node()), "bpf tracing", Yes, "[integrity]", ""},
		{"lockdown in confidentiality mode", with(map[string]string{"sys/kernel/security/lockdown": "none integrity [confidentiality]\n", "proc/kallsyms": "0000000000000000 T bpf_rdonly_caster\n"}, node()), "bpf tracing", No, "[confidentiality]", "Linux 6.2"},
		{"lockdown in confidentiality mode with typed loads", with(map[string]string{"sys/kernel/security/lockdown": "none integrity [confidentiality]\n", "proc/kallsyms": "0000000000000000 T _text\n0000000000000000 T bpf_rdonly_cast\n"}, node()), "bpf tracing", Yes, "bpf_rdonly_cast", ""},
		{"lockdown in confidentiality mode with hidden symbols", with(map[string]string{"sys/kernel/security/lockdown": "none integrity [confidentiality]\n", "proc/kallsyms": ""}, node()), "bpf tracing", Unknown, "empty", ""},
		{"lockdown in confidentiality mode without kallsyms", with(map[string]string{"sys/kernel/security/lockdown": "none integrity [confidentiality]\n"}, node()), "bpf tracing", Unknown, "kallsyms", ""},
		{"no securityfs", node(), "bpf tracing", Unknown, "read lockdown", ""},
		{"no huge pages", without("sys/kernel/mm"), "hugetlb", No, "no huge page pools", ""},
		{"no meminfo", without("proc/meminfo"), "hugetlb", Unknown, "meminfo", ""},
		{"kernel without swap", without("proc/swaps"), "swap", No, "built without", ""},
		{"no swap in use", with(map[string]string{"proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"}, node()), "swap", No, "none", ""},
		{"broken swaps", with(map[string]string{"proc/swaps": "Filename\n/swap file 1 2\n"}, node()), "swap", Unknown, "five fields", ""},
		{"no status", without("proc/" + self + "/status"), "CAP_KILL", Unknown, "read own capabilities", ""},
		{"few capabilities", with(map[string]string{"proc/" + self + "/status": "CapEff:\t0000000000000020\n"}, node()), "CAP_KILL", Yes, "", ""},
		{"few capabilities", with(map[string]string{"proc/" + self + "/status": "CapEff:\t0000000000000020\n"}, node()), "CAP_BPF", No, "", "CAP_BPF: without it"},
		{"user namespace", with(map[string]string{"proc/" + self + "/ns/user@": "user:[4026532280]"}, without("proc/"+self+"/ns/user")), "CAP_KILL", No, "user namespace", "CAP_KILL"},
		{"kernel without user namespaces", without("proc/" + self + "/ns/user"), "CAP_KILL", Yes, "", ""},
		{"no namespaces", without("proc/" + self + "/ns"), "CAP_KILL", Unknown, "ns/user", ""},
	} {
		t.Run(tt.name+"/"+tt.feature, func(t *testing.T) {
			got := run(t, tt.files)[tt.feature]
			if got.Supported != tt.want || !strings.Contains(got.Detail, tt.detail) || !strings.Contains(got.Missing, tt.missing) || tt.missing == "" && got.Missing != "" {
				t.Errorf("feature %+v; want %v, detail with %q, missing with %q", got, tt.want, tt.detail, tt.missing)
			}
		})
	}
}

func nodeV1() map[string]string {
	return with(map[string]string{
		"cgroup/memory/memory.usage_in_bytes": "4096\n",
		"cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		"cgroup/memory/memory.stat":           "",
		"cgroup/memory/cgroup.event_control":  "",
		"cgroup/memory/cgroup.procs":          self + "\n",
		"cgroup/memory/kubepods/cgroup.procs": "",
		"cgroup/freezer/cgroup.procs":         "1\n",
	}, without("cgroup/"))
}

func TestCalled(t *testing.T) {
	for _, tt := range []struct {
		err, want error
		state     State
	}{
		{nil, nil, Yes},
		{unix.EBADF, unix.EBADF, Yes},
		{unix.ENOSYS, nil, No},
		{unix.ENOSYS, unix.EBADF, No},
		{unix.EPERM, unix.EBADF, Unknown},
		{unix.EACCES, nil, Unknown},
		{unix.EMFILE, nil, Unknown},
		{unix.EBADF, nil, Unknown},
		{unix.Errno(0), unix.EBADF, Unknown},
	} {
		if got := called("call", tt.err, tt.want, "a newer kernel"); got.Supported != tt.state {
			t.Errorf("called(%v, want %v) = %+v; want %v", tt.err, tt.want, got, tt.state)
		}
	}
}

func TestMayLock(t *testing.T) {
	lock := capabilities{effective: 1 << unix.CAP_IPC_LOCK}
	namespaced := capabilities{effective: 1 << unix.CAP_IPC_LOCK, namespaced: true}
	for _, tt := range []struct {
		limit uint64
		caps  capabilities
		err   error
		want  State
	}{
		{unix.RLIM_INFINITY, capabilities{}, nil, Yes},
		{unix.RLIM_INFINITY, capabilities{}, fs.ErrNotExist, Yes},
		{8 << 20, lock, nil, Yes},
		{8 << 20, namespaced, nil, No},
		{8 << 20, capabilities{}, nil, No},
		{0, capabilities{}, fs.ErrNotExist, Unknown},
	} {
		if got := mayLock("memlock", tt.limit, tt.caps, tt.err); got.Supported != tt.want {
			t.Errorf("mayLock(%d, %+v, %v) = %+v; want %v", tt.limit, tt.caps, tt.err, got, tt.want)
		}
	}
}

// TestRunHere probes this machine.
func TestRunHere(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("needs procfs: ", err)
	}
	before := descriptors(t)
	got := make(map[string]Feature)
	for _, f := range Run("/proc", "/sys", "/sys/fs/cgroup") {
		got[f.Name] = f
		if f.Supported != Yes && f.Detail == "" && f.Missing == "" {
			t.Errorf("%s = %v without Detail and Missing", f.Name, f.Supported)
		}
	}
	if after := descriptors(t); after > before {
		t.Errorf("descriptors after Run() = %d; want %d as before", after, before)
	}

	// A feature that the kernel has by its version may be hidden, but is never No.
	for name, since := range map[string][2]int{"pidfd_open": {5, 3}, "process_mrelease": {5, 15}} {
		if major, minor := release(t); major > since[0] || major == since[0] && minor >= since[1] {
			if got[name].Supported == No {
				t.Errorf("%s on Linux %d.%d = %+v; want yes", name, major, minor, got[name])
			}
		}
	}

	// capget(2) returns the same set as /proc/self/status.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatal(err)
	}
	effective := uint64(sets[1].Effective)<<32 | uint64(sets[0].Effective)
	c, err := readCapabilities("/proc")
	if err != nil || c.effective != effective {
		t.Errorf("readCapabilities() = %x, %v; want %x", c.effective, err, effective)
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

func release(t *testing.T) (major, minor int) {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	text := unix.ByteSliceToString(u.Release[:])
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		t.Fatalf("release is %q", text)
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(strings.TrimRight(parts[1], "-abcdefghijklmnopqrstuvwxyz+"))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatalf("release %q: %v", text, err)
	}
	return major, minor
}

func TestFeatureJSON(t *testing.T) {
	got, err := json.Marshal([]Feature{yes("a", "found"), no("b", "", "a kernel"), unknown("c", fs.ErrPermission)})
	want := `[{"name":"a","supported":"yes","detail":"found"},{"name":"b","supported":"no","missing":"a kernel"},` +
		`{"name":"c","supported":"unknown","detail":"permission denied"}]`
	if err != nil || string(got) != want {
		t.Errorf("Marshal() = %s, %v; want %s", got, err, want)
	}
}
