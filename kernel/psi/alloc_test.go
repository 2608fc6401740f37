//go:build !race

package psi

import (
	"testing"
	"time"
)

// The race detector moves every buffer that the kernel fills to the heap.
func TestTotalAllocates(t *testing.T) {
	trigger := armHere(t, ForMemory, Condition{Some, time.Second, 2 * time.Second})
	g := NewGrowth(trigger.Armed(), 0, time.Now())
	if n := testing.AllocsPerRun(100, func() {
		total, err := trigger.Total()
		if err != nil {
			t.Fatal(err)
		}
		g.Update(total, time.Now())
	}); n != 0 {
		t.Errorf("Total and Update allocate %v times; want 0", n)
	}
}
