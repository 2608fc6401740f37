//go:build !race

package sys

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The race detector moves every buffer that the kernel fills to the heap, so this
// test does not run under it.
func TestReadAllocates(t *testing.T) {
	f, err := Open(write(t, "4096\n"), unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := testing.AllocsPerRun(100, func() {
		var buf [64]byte
		if _, err := f.Read(buf[:]); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Read allocates %v times; want 0", n)
	}
}
