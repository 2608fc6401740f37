package bpf

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// mapped is the memory of an array map whose entries are Ts, shared with the
// programs. T consists of 64-bit words, and so is read and written one word at a
// time, in order.
type mapped[T any] struct {
	mem     []byte
	entries []T
}

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

// first returns the entry of a map that has one.
func (m *mapped[T]) first() *T { return &m.entries[0] }

func (m *mapped[T]) unmap() error {
	mem := m.mem
	m.mem, m.entries = nil, nil
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

// loadWords and storeWords copy from and to memory that is shared. Atomic loads and
// stores keep their order on every architecture, which plain ones don't.
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
