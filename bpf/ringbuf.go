package bpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ringbuf is the mmapped memory of a BPF ring buffer (kernel/bpf/ringbuf.c, Linux 5.8).
// It must not be read concurrently.
type ringbuf struct {
	consumer []byte // one page with the consumer position
	producer []byte // one page with the producer position, then the data, mapped twice
	data     []byte
	mask     uint64
}

func mapRingbuf(m *ebpf.Map) (r ringbuf, err error) {
	page, size := os.Getpagesize(), int(m.MaxEntries())
	if r.consumer, err = unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return ringbuf{}, fmt.Errorf("mmap ring buffer's consumer page: %w", err)
	}
	if r.producer, err = unix.Mmap(m.FD(), int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		_ = r.unmap()
		return ringbuf{}, fmt.Errorf("mmap ring buffer: %w", err)
	}
	r.data, r.mask = r.producer[page:], uint64(size-1)
	return r, nil
}

// The header of a record has its length and two flags.
const (
	headerSize  = 8
	busyBit     = 1 << 31
	discardBit  = 1 << 30
	lengthField = discardBit - 1
)

// next calls take with the oldest record, drops the record and reports whether there was
// one. It takes no system call.
func (r *ringbuf) next(take func(record []byte)) bool {
	consumed := (*uint64)(unsafe.Pointer(&r.consumer[0]))
	produced := (*uint64)(unsafe.Pointer(&r.producer[0]))
	for {
		at := atomic.LoadUint64(consumed)
		if at >= atomic.LoadUint64(produced) {
			return false
		}
		// The data is mapped twice in a row, so a record that wraps around is contiguous.
		start := at & r.mask
		header := atomic.LoadUint32((*uint32)(unsafe.Pointer(&r.data[start])))
		if header&busyBit != 0 {
			return false // still being written; the kernel wakes the waiter when it is done
		}
		length := uint64(header & lengthField)
		written := header&discardBit == 0
		if written {
			take(r.data[start+headerSize : start+headerSize+length])
		}
		atomic.StoreUint64(consumed, at+(headerSize+length+7)/8*8)
		if written {
			return true
		}
	}
}

func (r *ringbuf) unmap() error {
	var errs []error
	for _, mem := range []*[]byte{&r.consumer, &r.producer} {
		if *mem != nil {
			errs = append(errs, unix.Munmap(*mem))
			*mem = nil
		}
	}
	return errors.Join(errs...)
}
