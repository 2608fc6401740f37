package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/meminfo"
)

// These tests create real cgroups on this machine.

// native returns the memory controller's hierarchy of this machine.
func native(t *testing.T) *Hierarchy {
	t.Helper()
	h, err := Find("/sys/fs/cgroup")
	if err != nil {
		t.Skip("needs a mounted cgroup filesystem: ", err)
	}
	if h.v1() {
		return h
	}
	b, err := os.ReadFile(h.Memory.Path("cgroup.subtree_control"))
	if err != nil || !slices.Contains(strings.Fields(string(b)), "memory") {
		t.Skipf("needs memory enabled below the root of the v2 hierarchy: %q, %v", b, err)
	}
	return h
}

func TestNativeMemory(t *testing.T) {
	h := native(t)
	name := kerneltest.Cgroup(t, h.Memory)
	dir := h.Memory.Path(name)
	limit := "memory.max"
	if h.v1() {
		limit = "memory.limit_in_bytes"
	}
	if err := os.WriteFile(filepath.Join(dir, limit), []byte("134217728"), 0); err != nil {
		t.Fatal(err)
	}
	pid := startAllocator(t, dir)
	c := open(t, h, name)

	// The kernel flushes memory.stat every 2 s, or on a read if much is pending.
	var m Memory
	eventually(t, "anonymous memory in memory.stat", func() bool {
		if err := c.ReadMemory(&m); err != nil {
			t.Fatal(err)
		}
		return m.Anon >= allocated
	})
	if m.Usage < allocated || m.WorkingSet > m.Usage || m.Usage > 128<<20 || m.Limit != 128<<20 || !m.Limited {
		t.Errorf("Memory() = %+v; want a usage of %d or more and a limit of 128 MiB", m, allocated)
	}
	if got, err := c.Procs(nil); err != nil || !slices.Equal(got, []int{pid}) {
		t.Errorf("Procs() = %v, %v; want [%d]", got, err, pid)
	}
	if got, err := c.Tasks(); err != nil || got < 1 {
		t.Errorf("Tasks() = %d, %v; want the threads of a Go program", got, err)
	}
	membership, err := ReadMembership("/proc", pid)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := membership.MemoryPath(h); err != nil || got != name {
		t.Errorf("ReadMembership(%d).MemoryPath() = %q, %v; want %q", pid, got, err, name)
	}
	if got, err := h.FindPID(pid); err != nil || !slices.Equal(got, []string{name}) {
		t.Errorf("FindPID(%d) = %q, %v; want %q", pid, got, err, name)
	}
}

func TestNativeGone(t *testing.T) {
	h := native(t)
	name := kerneltest.Cgroup(t, h.Memory)
	c := open(t, h, name)
	if got, err := c.Populated(); err != nil || got {
		t.Errorf("Populated() of an empty cgroup = %v, %v; want false", got, err)
	}
	if err := c.Check(); err != nil {
		t.Errorf("Check() = %v; want nil", err)
	}
	if err := os.Remove(h.Memory.Path(name)); err != nil {
		t.Fatal(err)
	}
	gone := func(when string) {
		_, memory := c.Memory()
		_, procs := c.Procs(nil)
		_, populated := c.Populated()
		_, children := c.Children()
		for op, err := range map[string]error{"Check": c.Check(), "Memory": memory, "Procs": procs, "Populated": populated, "Children": children} {
			if !errors.Is(err, ErrGone) {
				t.Errorf("%s: %s() = %v; want %v", when, op, err, ErrGone)
			}
		}
	}
	gone("removed")
	if err := os.Mkdir(h.Memory.Path(name), 0o755); err != nil {
		t.Fatal(err)
	}
	gone("replaced")
}

// Opening a cgroup that is removed at the same time either succeeds or fails with
// ErrGone, whichever of its files the kernel refuses.
func TestNativeOpenedWhileRemoved(t *testing.T) {
	h := native(t)
	name := kerneltest.Cgroup(t, h.Memory)
	dir := h.Memory.Path(name)
	end := make(chan struct{})
	var removing sync.WaitGroup
	removing.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
			}
			if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o755)); err != nil {
				t.Errorf("create and remove a cgroup: %v", err)
				return
			}
		}
	})
	// The cgroup may be removed between the opening of its directory and of a file.
	var opened atomic.Int64
	var opening sync.WaitGroup
	for range 8 {
		opening.Go(func() {
			for range 2000 {
				c, err := h.Open(name)
				if err == nil {
					opened.Add(1)
					c.Close()
				} else if !errors.Is(err, ErrGone) {
					t.Errorf("Open() = %v; want nil or %v", err, ErrGone)
					return
				}
			}
		})
	}
	opening.Wait()
	close(end)
	removing.Wait()
	t.Logf("opened %d times of 16000", opened.Load())
}

// Procs lists a process that was started since the last read, and concurrent reads
// do not affect each other.
func TestNativeProcsFresh(t *testing.T) {
	h := native(t)
	name := kerneltest.Cgroup(t, h.Memory)
	c := open(t, h, name)
	var want []int
	for range 5 {
		want = append(want, start(t, h.Memory.Path(name)).Process.Pid)
		slices.Sort(want)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if got, err := c.Procs(nil); err != nil || !slices.Equal(got, want) {
					t.Errorf("Procs() = %v, %v; want %v", got, err, want)
				}
			})
		}
		wg.Wait()
	}
}

func TestNativeSubtree(t *testing.T) {
	h := native(t)
	name := kerneltest.Cgroup(t, h.Memory)
	deep := name
	var want []int
	for range 30 {
		deep = filepath.Join(deep, `sub\x2dgroup`)
		kerneltest.MakeCgroup(t, h.Memory.Path(deep))
	}
	for _, dir := range []string{name, deep} {
		want = append(want, start(t, h.Memory.Path(dir)).Process.Pid)
	}
	slices.Sort(want)
	c := open(t, h, name)
	if got, err := c.Procs(nil); err != nil || !slices.Equal(got, want) {
		t.Errorf("Procs() = %v, %v; want %v", got, err, want)
	}
	if got, err := c.Children(); err != nil || !slices.Equal(got, []string{`sub\x2dgroup`}) {
		t.Errorf("Children() = %q, %v; want one", got, err)
	}
}

func TestNativeFreezerV1(t *testing.T) {
	h := native(t)
	if h.Freezer == "" {
		t.Skip("needs the v1 freezer")
	}
	name := kerneltest.Cgroup(t, h.Memory, h.Freezer)
	kerneltest.MakeCgroup(t, h.Freezer.Path(name, "inner"))
	cmd := start(t, h.Memory.Path(name), h.Freezer.Path(name, "inner"))
	c := open(t, h, name)
	if all, err := c.AllFrozen(); err != nil || all {
		t.Errorf("AllFrozen() of a cgroup that runs = %v, %v; want false", all, err)
	}
	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Thaw() }) // otherwise its processes can't exit
	eventually(t, "freeze", func() bool {
		b, err := os.ReadFile(h.Freezer.Path(name, "freezer.state"))
		return err == nil && string(b) == "FROZEN\n"
	})
	if all, err := c.AllFrozen(); err != nil || !all {
		t.Errorf("AllFrozen() = %v, %v; want true", all, err)
	}
	if got, err := c.Frozen(); err != nil || !got {
		t.Errorf("Frozen() = %v, %v; want true", got, err)
	}
	// A process in a container may freeze a descendant of its cgroup.
	if err := os.WriteFile(h.Freezer.Path(name, "inner", "freezer.state"), []byte("FROZEN"), 0); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Populated(); err != nil || !got {
		t.Errorf("Populated() of a frozen cgroup after SIGKILL = %v, %v; want true", got, err)
	}
	if err := c.Thaw(); err != nil {
		t.Errorf("Thaw() = %v; want nil", err)
	}
	waitExit(t, cmd)
	if got, err := c.Frozen(); err != nil || got {
		t.Errorf("Frozen() after Thaw = %v, %v; want false", got, err)
	}
}

// The v2 hierarchy of a hybrid node has no memory controller, but the rest of v2.
func TestNativeControlV2(t *testing.T) {
	unified := kernel.FS("/sys/fs/cgroup/unified")
	if _, err := os.Stat(unified.Path("cgroup.controllers")); err != nil {
		unified = "/sys/fs/cgroup"
	}
	if _, err := os.Stat(unified.Path("cgroup.controllers")); err != nil {
		t.Skip("needs a v2 hierarchy: ", err)
	}
	name := kerneltest.Cgroup(t, unified)
	dir, err := sys.Open(unified.Path(name), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cgroup{h: &Hierarchy{Version: V2, Memory: unified, Unified: unified}, path: name, dir: dir}
	t.Cleanup(func() { c.Close() })
	if err := c.openCore(); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Populated(); err != nil || got {
		t.Errorf("Populated() of an empty cgroup = %v, %v; want false", got, err)
	}
	cmd := start(t, unified.Path(name))
	pid := cmd.Process.Pid
	if got, err := c.Procs(nil); err != nil || !slices.Equal(got, []int{pid}) {
		t.Errorf("Procs() = %v, %v; want [%d]", got, err, pid)
	}
	if got, err := c.Tasks(); err != nil || got != 1 {
		t.Errorf("Tasks() = %d, %v; want 1", got, err)
	}
	for _, frozen := range []bool{true, false, true} {
		set := map[bool]func() error{true: c.Freeze, false: c.Thaw}[frozen]
		if err := set(); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("frozen %v", frozen), func() bool {
			got, err := c.Frozen()
			return err == nil && got == frozen
		})
	}
	if err := c.Kill(); errors.Is(err, kernel.ErrUnavailable) {
		t.Skip("needs cgroup.kill: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	waitExit(t, cmd) // although it is frozen
	eventually(t, "empty", func() bool {
		populated, err := c.Populated()
		return err == nil && !populated
	})

	// The processes of a threaded cgroup are listed by its domain cgroup.
	kerneltest.MakeCgroup(t, unified.Path(name, "threaded"))
	if err := os.WriteFile(unified.Path(name, "threaded", "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Procs(nil); err != nil || len(got) != 0 {
		t.Errorf("Procs() with a threaded child = %v, %v; want none", got, err)
	}
}

// The node's working set is the same from all sources: three on v1, two on v2. Other
// processes allocate memory at the same time, so the reads are repeated until they
// agree.
func TestNativeRoot(t *testing.T) {
	h := native(t)
	if h.Nested() {
		t.Skip("needs the root of the node's cgroups")
	}
	root := open(t, h, "/")
	const near = 32 << 20
	eventually(t, "equal working sets", func() bool {
		m, err := root.Memory()
		if err != nil {
			t.Fatal(err)
		}
		usage := m.Usage // the v2 root has no usage file
		if h.v1() {
			raw, err := os.ReadFile(h.Memory.Path("memory.usage_in_bytes"))
			if err != nil {
				t.Fatal(err)
			}
			if usage, err = strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		info, err := meminfo.Read("/proc")
		if err != nil {
			t.Fatal(err)
		}
		if m.Limited || m.WorkingSet != m.Usage-m.InactiveFile {
			t.Fatalf("Memory() of the root = %+v; want usage minus inactive file, and no limit", m)
		}
		byFiles, byInfo := int64(usage-m.InactiveFile), int64(info.WorkingSet())
		t.Logf("working set: %d by Memory, %d by its usage, %d by meminfo", m.WorkingSet, byFiles, byInfo)
		return max(byFiles-int64(m.WorkingSet), int64(m.WorkingSet)-byFiles) < near &&
			max(byInfo-int64(m.WorkingSet), int64(m.WorkingSet)-byInfo) < near
	})
}

func TestNativeSelf(t *testing.T) {
	h := native(t)
	paths, err := h.FindPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	self, err := ReadMembership("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	want, err := self.MemoryPath(h)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(paths, []string{want}) {
		t.Errorf("FindPID(self) = %q; want [%q], as in /proc/self/cgroup", paths, want)
	}
}

func BenchmarkReadMemory(b *testing.B) {
	h, err := Find("/sys/fs/cgroup")
	if err != nil {
		b.Skip("needs a mounted cgroup filesystem: ", err)
	}
	c := open(b, h, "/")
	var m Memory
	b.ReportAllocs()
	for b.Loop() {
		if err := c.ReadMemory(&m); err != nil {
			b.Fatal(err)
		}
	}
}
