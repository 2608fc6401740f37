//go:build !race

package extender

import "testing"

// TestAllocations: a pod without the annotation allocates nothing but the server's buffers, however many nodes there are.
func TestAllocations(t *testing.T) {
	names, nodes := many(5000, func(int) string { return "valid" })
	h := newHandler(nodes)
	a := newAsker(marshal(t, args(newPod(""), names...)))
	if got := testing.AllocsPerRun(20, func() { a.ask(h) }); got != 0 {
		t.Errorf("allocations of a request = %v; want 0", got)
	}
}
