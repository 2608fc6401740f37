package evictions

import (
	"os"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// limitFile replaces the pod's limits by one in a file, which a test can spoil. The returned functions
// write the file, and report whether it is 0: each write of a fence is appended to the file, where it
// would replace the content of the kernel's.
func (n *node) limitFile() (write func(content string), zero func() bool) {
	n.t.Helper()
	n.Evictions.Close()
	root := kernel.FS(n.t.TempDir())
	write = func(content string) {
		n.t.Helper()
		kerneltest.Write(n.t, root.Path(n.path), map[string]string{"pids.max": content})
	}
	write("9") // of one digit, as the 0 of a fence
	n.Evictions = New(n.o)
	h := &cgroup.Hierarchy{Version: cgroup.V2, Memory: root, Unified: root}
	if err := n.Open(podfence.Options{File: n.marks(), BootID: testBoot, Hierarchy: h}); err != nil {
		n.t.Fatal(err)
	}
	return write, func() bool {
		n.t.Helper()
		content, err := os.ReadFile(root.Path(n.path, "pids.max"))
		if err != nil {
			n.t.Fatal(err)
		}
		return strings.Trim(string(content), "0") == ""
	}
}

// A fence that can't be lifted is lifted by a later check, unless it was set again by then for
// another eviction of the pod.
func TestLiftLater(t *testing.T) {
	for _, again := range []bool{false, true} {
		n := newNode(t)
		write, zero := n.limitFile()
		if err := n.Fence(n.job()); err != nil || !zero() {
			t.Fatalf("Fence = %v; want the limit set to 0", err)
		}
		write("x")
		n.orders.Refused(testUID, "a test")
		n.checkNow()
		if s := n.Status(); s.Unlifted != 1 || s.Lifted != 0 {
			t.Errorf("again=%t: status while the limit can't be read = %+v; want a fence that is not lifted\n%s", again, s, n.log)
		}
		write("0")
		lifted := uint64(1)
		if again {
			lifted = 0
			if err := n.Fence(n.job()); err != nil {
				t.Error(err)
			}
		}
		n.checkNow()
		if s := n.Status(); zero() != again || s.Unlifted != 0 || s.Lifted != lifted {
			t.Errorf("again=%t: limit is 0: %t, status %+v; want %t, and %d fences lifted\n%s", again, zero(), s, again, lifted, n.log)
		}
	}
}
