package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Ring is the queue of records that all programs share: a BPF ring buffer, read
// through its memory.
type Ring struct {
	events    *ebpf.Map
	pressures *ebpf.Map
	pressure  mapped[samplerPressure]
	buffer    ringbuf
}

// OpenRing makes an empty ring. An error wraps [ErrUnavailable].
func OpenRing() (_ *Ring, err error) {
	spec, err := loadSampler()
	if err != nil {
		return nil, err
	}
	r := &Ring{}
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	if r.events, err = ebpf.NewMap(spec.Maps[samplerMapEvents]); err != nil {
		return nil, unavailable("make ring buffer", err)
	}
	if r.pressures, err = ebpf.NewMap(spec.Maps[samplerMapPressures]); err != nil {
		return nil, unavailable("make ring buffer", err)
	}
	if r.pressure, err = mapArray[samplerPressure](r.pressures, unix.PROT_READ); err != nil {
		return nil, fmt.Errorf("make ring buffer: %w", err)
	}
	if r.buffer, err = mapRingbuf(r.events); err != nil {
		return nil, err
	}
	return r, nil
}

// FD returns the descriptor to wait on. It is readable (EPOLLIN) while there are
// records to read, and stays the ring's.
func (r *Ring) FD() int { return r.events.FD() }

// Next reads the oldest record into record and reports whether there was one. It
// takes no system call, and allocates for the name in a [Victim] alone. One
// goroutine at a time may call it. After an error the record that was not
// understood is left behind.
func (r *Ring) Next(record *Record) (bool, error) {
	if r.buffer.consumer == nil {
		return false, fmt.Errorf("read ring buffer: %w", os.ErrClosed)
	}
	known, err := false, error(nil)
	take := func(raw []byte) { known, err = record.decode(raw) }
	for !known && err == nil && r.buffer.next(take) { // a kind that is not known is left out
	}
	if err != nil {
		return false, fmt.Errorf("read ring buffer: %w", err)
	}
	return known, nil
}

// Close gives the memory back. The programs that write into the ring are to be
// closed first, and no other method may run at the same time. Further calls do
// nothing.
func (r *Ring) Close() error {
	errs := []error{r.buffer.unmap(), r.pressure.unmap()}
	for _, m := range []*ebpf.Map{r.events, r.pressures} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close ring buffer: %w", err)
	}
	return nil
}

// replacing loads an object with the ring's maps in place of its own.
func replacing(r *Ring) *ebpf.CollectionOptions {
	return &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		samplerMapEvents:    r.events,
		samplerMapPressures: r.pressures,
	}}
}
