package cri

import (
	"testing"

	"google.golang.org/grpc/mem"
)

// A buffer for an answer has at most twice its size, up to that of a thousand containers.
func TestBufferSizes(t *testing.T) {
	pool := mem.NewTieredBufferPool(bufferSizes...)
	for size := 4 << 10; size <= 1<<20; size += 4 << 10 {
		buffer := pool.Get(size)
		// The pool rounds up to the next of its sizes, which are four times apart below 16 KiB.
		if got := cap(*buffer); got > max(2*size, 16<<10) {
			t.Errorf("buffer for %d bytes has %d; want at most twice as many", size, got)
		}
		pool.Put(buffer)
	}
}
