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

// A root directory that is not that of pid 1 is reported.
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
		"1/mountinfo": "27 1 7:99 / / rw,relatime - ext4 /dev/loop99 rw\n", "self/mountinfo": string(own),
	})
	if err := os.Symlink("/proc/self/fdinfo", filepath.Join(other, "self", "fdinfo")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, proc, root, want string }{
		{"the host's", host, "/", ""},
		{"another", other, "/", "the root of the host is on 7:99"},
		{"none", host, "/nowhere", "no such file"},
		{"pid 1 is not shown", t.TempDir(), "/", ""},
	} {
		if got := RootProblem(kernel.FS(tt.proc), tt.root); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: RootProblem() = %q; want %q", tt.name, got, tt.want)
		}
	}
}
