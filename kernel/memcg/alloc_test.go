//go:build !race

package memcg

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// The race detector moves every buffer that the kernel fills to the heap.
func TestAllocates(t *testing.T) {
	h, c := fixture(t, map[string]string{"memory.events": counts[1].text})
	e, err := OpenEvents(h, c)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if n := testing.AllocsPerRun(100, func() {
		if _, err := e.Read(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Events.Read allocates %v times; want 0", n)
	}

	n := testNotifier(t)
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := unix.Write(n.FD(), one); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := n.Drain(); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("Drain allocates %v times; want 0", n)
	}
}
