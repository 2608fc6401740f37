//go:build !race

package meminfo_test

import (
	"testing"

	"github.com/evictd/evictd/kernel/meminfo"
)

// The race detector moves every buffer that the kernel fills to the heap.
func TestFileReadAllocates(t *testing.T) {
	f, err := meminfo.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var info meminfo.Info
	if n := testing.AllocsPerRun(100, func() {
		if err := f.Read(&info); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Read allocates %v times; want 0", n)
	}
}
