package act

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// If the runtime times out while it stops a container, the sandbox is stopped as soon as the container's cgroup is
// empty, which frees the pod's shared memory.
func TestSoftStopRuntimeTimeout(t *testing.T) {
	const populated, empty = "populated 1\nfrozen 0\n", "populated 0\nfrozen 0\n"
	for _, tt := range []struct {
		name   string
		answer error
		events string        // of the container's cgroup; "" for none
		ends   time.Duration // when the cgroup is empty, after the answer; 0 for never, or at once
		want   []Stage
		asked  int // calls for the sandbox
		after  time.Duration
	}{
		{"ended", cri.ErrTimeout, empty, 0, []Stage{Signalled, LastGone, Finished}, 1, 0},
		{"gone", cri.ErrTimeout, "", 0, []Stage{Signalled, LastGone, Finished}, 1, 0},
		{"ended, and the runtime is away", cri.ErrUnreachable, empty, 0, []Stage{Signalled, LastGone, Finished}, 1, 0},
		{"ends late", cri.ErrTimeout, populated, 2 * time.Second, []Stage{Signalled, Refused}, 1, 4 * time.Second},
		{"lives", cri.ErrTimeout, populated, 0, []Stage{Signalled, Refused}, 0, drainTimeout},
		{"refused", cri.ErrMalformed, populated, 2 * time.Second, []Stage{Signalled, Refused}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"elsewhere/": ""}
			if tt.events != "" {
				files = map[string]string{
					"pod/c/memory.stat": "", "pod/c/memory.current": "0\n", "pod/c/memory.max": "max\n",
					"pod/c/cgroup.events": tt.events,
				}
			}
			root := kerneltest.Tree(t, files)
			h := &cgroup.Hierarchy{Version: cgroup.V2, Memory: kernel.FS(root), Unified: kernel.FS(root)}
			c := evict.RunningContainer{ID: "c", Cgroup: "/pod/c", CgroupID: 1}
			if tt.events != "" {
				group, err := h.Open(c.Cgroup)
				if err != nil {
					t.Fatal(err)
				}
				c.CgroupID = group.ID()
				group.Close()
			}
			synctest.Test(t, func(t *testing.T) {
				runtime, reports := &flakyRuntime{stopErr: tt.answer}, &progressLog{}
				k := NewKiller(h, "/proc", runtime, reports.record)
				began := time.Now()
				k.Evict(t.Context(), Job{
					Order: evict.Order{UID: "u", Grace: time.Second}, SandboxID: "s", Owned: true, Containers: []evict.RunningContainer{c},
				})
				if tt.ends > 0 {
					time.Sleep(tt.ends)
					kerneltest.Write(t, root, map[string]string{"pod/c/cgroup.events": empty})
				}
				k.Wait()
				if got := reports.stages(); !slices.Equal(got, tt.want) {
					t.Errorf("stages = %v; want %v", got, tt.want)
				}
				if runtime.sandboxCalls != tt.asked {
					t.Errorf("sandbox stopped %d times; want %d", runtime.sandboxCalls, tt.asked)
				}
				if took := time.Since(began); took > max(tt.after, tt.ends) {
					t.Errorf("waited for %v; want %v at most", took, max(tt.after, tt.ends))
				}
			})
		})
	}
}

// A pod that is gone was not refused, whatever the runtime answers: after a refusal another pod would be evicted.
func TestHardKillRuntimeTimeout(t *testing.T) {
	h := &cgroup.Hierarchy{Version: cgroup.V2, Memory: kernel.FS(t.TempDir())}
	synctest.Test(t, func(t *testing.T) {
		runtime, reports := &flakyRuntime{stopErr: cri.ErrTimeout}, &progressLog{}
		k := NewKiller(h, "/proc", runtime, reports.record)
		k.Evict(t.Context(), Job{
			Order: evict.Order{UID: "u", Hard: true}, SandboxID: "s", Owned: true,
			Containers: []evict.RunningContainer{{ID: "c", Cgroup: "/gone", CgroupID: 1}},
		})
		k.Wait()
		want := []Stage{Signalled, FirstGone, LastGone, Finished}
		if got := reports.stages(); !slices.Equal(got, want) || runtime.sandboxCalls != 1 {
			t.Errorf("stages = %v, sandbox stopped %d times; want %v, once", got, runtime.sandboxCalls, want)
		}
	})
}

// A cgroup that is gone or replaced is empty; one that is not proven or can't be read is not.
func TestCgroupEmpty(t *testing.T) {
	root := kerneltest.Tree(t, map[string]string{
		"c/memory.stat": "", "c/memory.current": "0\n", "c/memory.max": "max\n", "c/cgroup.events": "populated 1\nfrozen 0\n",
		"bad/memory.stat": "", "bad/memory.current": "0\n", "bad/memory.max": "max\n", "bad/cgroup.events": "populated 2\n",
	})
	k := NewKiller(&cgroup.Hierarchy{Version: cgroup.V2, Memory: kernel.FS(root)}, "/proc", nil, func(Progress) {})
	id := func(path string) uint64 {
		group, err := k.hierarchy.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer group.Close()
		return group.ID()
	}
	for _, tt := range []struct {
		name string
		c    evict.RunningContainer
		want bool
	}{
		{"populated", evict.RunningContainer{Cgroup: "/c", CgroupID: id("/c")}, false},
		{"not proven", evict.RunningContainer{Unproven: "for the test"}, false},
		{"gone", evict.RunningContainer{Cgroup: "/gone", CgroupID: 1}, true},
		{"replaced", evict.RunningContainer{Cgroup: "/c", CgroupID: id("/c") + 1}, true},
		{"unreadable", evict.RunningContainer{Cgroup: "/bad", CgroupID: id("/bad")}, false},
	} {
		if got := k.cgroupEmpty(tt.c); got != tt.want {
			t.Errorf("cgroupEmpty(%s) = %t; want %t", tt.name, got, tt.want)
		}
	}
}
