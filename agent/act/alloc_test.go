//go:build !race

package act

import (
	"testing"

	"github.com/evictd/evictd/agent/evict"
)

// Not under the race detector, which moves every buffer that the kernel fills to the heap.
// The reaper's threads start after the measurement: Go allocates for threads that wake up,
// and AllocsPerRun counts the whole process.
func TestFastKillAllocatesNothing(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		below        int
	}{
		{"preopened", "exec sleep 1000", 0},
		{"not all preopened", twelveSleeps, 0},
		{"in cgroups of its own", twelveSleeps, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const runs = 3 // and one that AllocsPerRun does first
			var handles []*KillHandle
			for range runs + 1 {
				p := newTestCgroup(t)
				cmd := p.run(tc.script)
				p.waitFor("all run", func() bool { return len(p.pids()) == 1 || len(p.pids()) == 13 })
				c := p.containerOf("c1", cmd.Process.Pid)
				p.spread(tc.below)
				handles = append(handles, p.prepare(c))
			}
			guard := &evict.Guard{Protected: map[int]string{1: "pid 1"}, Inits: map[int]string{1 << 21: "c9"}}
			r, err := NewReaper()
			if err != nil {
				t.Fatal(err)
			}
			killer, at := NewFastKiller(r), 0
			if n := testing.AllocsPerRun(runs, func() {
				_, _ = handles[at].Usage()
				_, _, _ = handles[at].Memory()
				if result := killer.Kill(handles[at], guard); result.Err != nil || result.Processes < 1 {
					t.Errorf("fast kill = %+v; want processes", result)
				}
				at++
			}); n != 0 {
				t.Errorf("a fast kill allocates %v times; want 0", n)
			}
			if len(r.processes.tasks) == 0 {
				t.Error("no process was queued for the reaper")
			}
			runReaper(t, r)
		})
	}
}
