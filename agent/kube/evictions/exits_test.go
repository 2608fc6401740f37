package evictions

import (
	"testing"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// A process whose last thread hangs in its exit is in no list of v2, but its cgroup is populated. It is
// taken from files, because no file system that hangs is at hand.
func TestProcessesLeftUnlisted(t *testing.T) {
	n := newNode(t)
	n.fence()
	f := n.Evictions.byUID[testUID].fence
	n.guard.Inits[7] = "sandbox"
	n.running.Sandboxes = []string{"sandbox"}
	for _, tt := range []struct {
		name      string
		sandbox   string
		container string // populated; "" if there is none
		want      bool
	}{
		{"the sandbox alone", "7\n", "", false},
		{"an empty container", "7\n", "0", false},
		{"a container that exits", "7\n", "1", true},
		{"a sandbox that exits", "", "0", true},
	} {
		root := kernel.FS(t.TempDir())
		group := func(name, procs, populated string) {
			kerneltest.Write(t, root.Path(f.Path(), name), map[string]string{
				"cgroup.procs": procs, "cgroup.events": "populated " + populated + "\n", "memory.stat": "", "memory.current": "0\n", "memory.events": "", "memory.max": "max\n",
			})
		}
		group("", "", "1")
		group("sandbox", tt.sandbox, "1")
		if tt.container != "" {
			group("ctr", "", tt.container)
		}
		n.Evictions.o.Hierarchy = &cgroup.Hierarchy{Version: cgroup.V2, Memory: root, Unified: root}
		if left, err := n.processesLeft(f); err != nil || left != tt.want {
			t.Errorf("%s: processesLeft() = %t, %v; want %t", tt.name, left, err, tt.want)
		}
	}
	n.Evictions.o.Hierarchy = n.hierarchy
}
