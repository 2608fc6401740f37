//go:build !race

package cgroup

import "testing"

// The race detector moves every buffer that the kernel fills to the heap.
func TestReadMemoryAllocates(t *testing.T) {
	for version, tree := range map[Version]map[string]string{V1: treeV1(t), V2: treeV2(t)} {
		h, _ := findTree(t, tree)
		c := open(t, h, "/")
		var m Memory
		if n := testing.AllocsPerRun(100, func() {
			if err := c.ReadMemory(&m); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: ReadMemory allocates %v times; want 0", version, n)
		}
	}
}
