package bpf

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mapped is the mmapped memory of an array map with entries of type T, which user space
// shares with the programs. T consists of 64-bit words, so that entries can be read and
// written one word at a time, in order.
type mapped[T any] struct {
	mem     []byte
	entries []T
}

// mapArray maps an array map into memory. It fails if the map's entries have another
// size than T.
func mapArray[T any](m *ebpf.Map, prot int) (mapped[T], error) {
	var entry T
	if size := uint32(unsafe.Sizeof(entry)); size != m.ValueSize() || size%8 != 0 {
		return mapped[T]{}, fmt.Errorf("map %s: entries of %d bytes; want %d", m, m.ValueSize(), size)
	}
	page := os.Getpagesize()
	size := (int(m.ValueSize())*int(m.MaxEntries()) + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return mapped[T]{}, fmt.Errorf("mmap %s: %w", m, err)
	}
	return mapped[T]{mem, unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), m.MaxEntries())}, nil
}

// first returns the entry of a map that has only one.
func (m *mapped[T]) first() *T { return &m.entries[0] }

func (m *mapped[T]) unmap() error {
	mem := m.mem
	m.mem, m.entries = nil, nil
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

// loadWords and storeWords copy an entry from and to shared memory. They use atomic loads
// and stores, whose order is kept on every architecture; that of plain ones is not.
func loadWords[T any](to, shared *T) {
	source, target := words(shared), words(to)
	for i := range target {
		target[i] = atomic.LoadUint64(&source[i])
	}
}

func storeWords[T any](shared, from *T) {
	source, target := words(from), words(shared)
	for i := range target {
		atomic.StoreUint64(&target[i], source[i])
	}
}

func words[T any](t *T) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(t)), unsafe.Sizeof(*t)/8)
}
