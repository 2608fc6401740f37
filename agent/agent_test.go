package agent

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestMisplaced(t *testing.T) {
	pid := os.Getpid()
	foreign := kerneltest.Tree(t, map[string]string{
		"memory/memory.usage_in_bytes": "1\n", "memory/memory.limit_in_bytes": "1\n", "memory/memory.stat": "\n", "memory/cgroup.procs": "1\n",
	})
	h, err := cgroup.Find(kernel.FS(foreign))
	if err != nil {
		t.Fatal(err)
	}
	if why := misplaced("/proc", h); !strings.Contains(why, "0 cgroups") {
		t.Errorf("misplaced() in a tree without us = %q; want it to say so", why)
	}
	elsewhere := t.TempDir()
	if err := os.Symlink("1", elsewhere+"/self"); err != nil {
		t.Fatal(err)
	}
	if why := misplaced(kernel.FS(elsewhere), h); pid != 1 && !strings.Contains(why, "hostPID") {
		t.Errorf("misplaced() with a procfs of another pid namespace = %q; want it to name hostPID", why)
	}
	here, err := cgroup.Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs cgroups: ", err)
	}
	if why := misplaced("/proc", here); why != "" {
		t.Errorf("misplaced() here = %q; want nothing", why)
	}
}

func TestNeedRestart(t *testing.T) {
	before := &config.Config{RuntimeEndpoint: "/a", CgroupRoot: "/", MemoryAccounting: config.AccountingKubelet}
	after := *before
	after.MaxVictims = 7
	if got := needRestart(before, &after); got != nil {
		t.Errorf("needRestart() = %v; want none", got)
	}
	after.RuntimeEndpoint, after.CgroupRoot, after.MemoryAccounting = "/b", "/c", config.AccountingAvailable
	if got, want := needRestart(before, &after), []string{"runtimeEndpoint", "cgroupRoot", "memoryAccounting"}; !slices.Equal(got, want) {
		t.Errorf("needRestart() = %v; want %v", got, want)
	}
}
