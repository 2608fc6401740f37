package self

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestLocationProblem(t *testing.T) {
	pid := os.Getpid()
	foreign := kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "1\n", "memory/memory.stat": "\n", "memory/cgroup.procs": "1\n",
	})
	h, err := cgroup.Find(kernel.FS(foreign))
	if err != nil {
		t.Fatal(err)
	}
	if why := LocationProblem("/proc", h); !strings.Contains(why, "0 cgroups") {
		t.Errorf("LocationProblem() in a tree without evictd = %q; want the number of cgroups", why)
	}
	elsewhere := t.TempDir()
	if err := os.Symlink("1", elsewhere+"/self"); err != nil {
		t.Fatal(err)
	}
	if why := LocationProblem(kernel.FS(elsewhere), h); pid != 1 && !strings.Contains(why, "hostPID") {
		t.Errorf("LocationProblem() with a procfs of another pid namespace = %q; want it to name hostPID", why)
	}
	here, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	if why := LocationProblem("/proc", here); why != "" {
		t.Errorf("LocationProblem() on this host = %q; want \"\"", why)
	}
}

// A root directory that is not that of pid 1 is reported, unless the directory of nodefs is
// mounted from the host.
func TestRootProblem(t *testing.T) {
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	host := t.TempDir()
	kerneltest.Write(t, host, map[string]string{"1/mountinfo": string(own), "self/mountinfo": string(own)})
	if err := os.Symlink("/proc/self/fdinfo", filepath.Join(host, "self", "fdinfo")); err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	kerneltest.Write(t, other, map[string]string{
		"1/mountinfo": "27 1 7:99 / / rw,relatime - ext4 /dev/loop99 rw\n",
		"self/mountinfo": string(own) + "90001 1 7:99 /var/lib/kubelet /host/var/lib/kubelet ro - ext4 /dev/loop99 rw\n" +
			"90002 1 7:98 / /host/other rw - ext4 /dev/loop98 rw\n",
	})
	if err := os.Symlink("/proc/self/fdinfo", filepath.Join(other, "self", "fdinfo")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, proc, root, node, want string }{
		{"the host's", host, "/", "/", ""},
		{"another", other, "/", "/", "the root of the host is on 7:99"},
		{"another, with the kubelet's directory", other, "/", "/host/var/lib/kubelet", ""},
		{"another, with a directory above", other, "/", "/host/var/lib/kubelet/x", ""},
		{"another, with a name that begins alike", other, "/", "/host/var/lib/kubelet-2", "/host/var/lib/kubelet-2 is not mounted from the host"},
		{"another, with a filesystem that the host does not have", other, "/", "/host/other", "/host/other is not mounted from the host"},
		{"none", host, "/nowhere", "/nowhere", "no such file"},
		{"pid 1 is not shown", t.TempDir(), "/", "/", ""},
	} {
		if got := RootProblem(kernel.FS(tt.proc), tt.root, tt.node); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: RootProblem() = %q; want %q", tt.name, got, tt.want)
		}
	}
}
