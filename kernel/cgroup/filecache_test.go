package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/kernel/kerneltest"
)

func statWith(t *testing.T, inactive, active int) string {
	t.Helper()
	stat := testdata(t, "v2.memory.stat")
	for key, bytes := range map[string]int{"inactive_file": inactive, "active_file": active} {
		at := strings.Index(stat, "\n"+key+" ") + 1
		end := at + strings.IndexByte(stat[at:], '\n')
		stat = stat[:at] + fmt.Sprintf("%s %d", key, bytes) + stat[end:]
	}
	return stat
}

func TestSumFileCache(t *testing.T) {
	const top = "/kubepods.slice"
	type own map[string][2]int // inactive and active by cgroup, below top
	for _, tt := range []struct {
		name string
		tree own
		want FileCache
	}{
		{"no children", own{"": {7, 8}}, FileCache{7, 8}},
		{"consistent", own{"": {70, 8}, "a": {30, 8}, "b": {40, 0}, "b/c": {40, 0}}, FileCache{70, 8}},
		{"the top lags", own{"": {5, 0}, "a": {30, 8}, "b": {40, 0}}, FileCache{70, 8}},
		{"the middle lags", own{"": {35, 8}, "a": {30, 8}, "b": {5, 0}, "b/c": {40, 1}, "b/d": {2, 1}}, FileCache{72, 10}},
		{"cache of removed cgroups", own{"": {100, 8}, "a": {30, 8}, "b": {60, 0}, "b/c": {40, 0}}, FileCache{100, 8}},
		{"active only in the child", own{"": {70, 0}, "a": {30, 40}}, FileCache{30, 40}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := treeV2(t)
			for name := range files {
				if strings.HasPrefix(path.Join("/", name), top+"/") {
					delete(files, name)
				}
			}
			for name, cache := range tt.tree {
				cgroupV2(t, files, path.Join(top, name), "629145600\n", "max\n", "")
				files[path.Join(top, name, "memory.stat")] = statWith(t, cache[0], cache[1])
			}
			h, root := findTree(t, files)
			c := open(t, h, top)
			if got, err := c.SumFileCache(); err != nil || got != tt.want {
				t.Errorf("SumFileCache() = %+v, %v; want %+v", got, err, tt.want)
			}
			kerneltest.Write(t, filepath.Join(root, top), map[string]string{"memory.stat": "inactive_file many\n"})
			if got, err := c.SumFileCache(); err == nil {
				t.Errorf("SumFileCache() of a broken file = %+v; want an error", got)
			}
		})
	}
}

// TestCache is the body of a process that other tests start. It writes a file, so
// that its cgroup is charged for the page cache.
func TestCache(t *testing.T) {
	name := os.Getenv("EVICTD_TEST_CACHE")
	if name == "" {
		return // not started by another test
	}
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil { // wait to be moved into the cgroup
		return
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 1<<20)
	for range cached / len(block) {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("cached")
	_, _ = in.ReadString('\n')
}

const cached = 64 << 20

// SumFileCache includes the file cache of a container at once, even if memory.stat
// of its ancestors lags.
func TestNativeSumFileCache(t *testing.T) {
	h := native(t)
	name := kerneltest.Cgroup(t, h.Memory)
	enable := func(cgroup string) {
		if h.Version == V2 {
			if err := os.WriteFile(h.Memory.Path(cgroup, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	enable(name)
	pod := path.Join(name, "pod")
	kerneltest.MakeCgroup(t, h.Memory.Path(pod))
	enable(pod)
	container := path.Join(pod, "container")
	kerneltest.MakeCgroup(t, h.Memory.Path(container))
	top, bottom := open(t, h, name), open(t, h, container)
	lagging, round := 0, 0
	// The kernel flushes the statistics every two seconds, and may lag after that.
	for start := time.Now(); lagging == 0 && time.Since(start) < 5*time.Second; round++ {
		file := filepath.Join(t.TempDir(), "cache")
		writer := exec.Command(os.Args[0], "-test.run=^TestCache$")
		writer.Env = append(os.Environ(), "EVICTD_TEST_CACHE="+file)
		in, out := kerneltest.Start(t, writer, h.Memory.Path(container))
		if _, err := io.WriteString(in, "\n"); err != nil {
			t.Fatal(err)
		}
		done := make(chan string, 1)
		go func() {
			line, _ := out.ReadString('\n')
			done <- line
		}()
		var line string
		var m Memory
		for line == "" { // read both as often as evictd reads pods
			for _, c := range []*Cgroup{bottom, top} {
				if err := c.ReadMemory(&m); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case line = <-done:
			case <-time.After(time.Millisecond):
			}
		}
		if line != "cached\n" {
			t.Fatalf("round %d: the process printed %q; want cached", round, line)
		}
		if err := top.ReadMemory(&m); err != nil {
			t.Fatal(err)
		}
		const slack = 4 << 20 // per-CPU counters that are not flushed
		if m.InactiveFile+m.ActiveFile+slack < cached {
			lagging++
		}
		got, err := top.SumFileCache()
		if err != nil || got.Inactive+got.Active+slack < cached || got.Inactive+got.Active > m.Usage+slack {
			t.Errorf("round %d: SumFileCache() = %+v, %v; want at least %d MiB, and at most the usage of %d", round, got, err, cached>>20, m.Usage)
		}
		_ = writer.Process.Kill()
		_ = writer.Wait()
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("memory.stat of the topmost cgroup lagged in %d of %d rounds", lagging, round)
}
