package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Ring is the BPF ring buffer into which all programs but [Forks] write their records.
type Ring struct {
	events    *ebpf.Map
	pressures *ebpf.Map
	pressure  mapped[samplerPressure]
	buffer    ringbuf
}

// OpenRing creates an empty ring. The error wraps [ErrUnavailable] if a retry can't help.
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

// FD returns the descriptor to wait on. It is readable (EPOLLIN) while there are records
// to read. The ring owns it.
func (r *Ring) FD() int { return r.events.FD() }

// Next takes the oldest record out of the ring, stores it in record and reports whether
// there was one. It skips records of unknown kinds, and returns an error for one that is
// too short, which it drops. It takes no system call and allocates only for the name in a
// [Victim]. It must not be called concurrently.
func (r *Ring) Next(record *Record) (bool, error) {
	if r.buffer.consumer == nil {
		return false, fmt.Errorf("read ring buffer: %w", os.ErrClosed)
	}
	known, err := false, error(nil)
	take := func(raw []byte) { known, err = record.decode(raw) }
	for !known && err == nil && r.buffer.next(take) {
	}
	if err != nil {
		return false, fmt.Errorf("read ring buffer: %w", err)
	}
	return known, nil
}

// Close frees the ring. The caller must close the programs that write into it first. It
// must not run concurrently with another method. Further calls do nothing.
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

// withMapsOf returns options that load an object with the ring's maps in place of the
// object's own.
func withMapsOf(r *Ring) *ebpf.CollectionOptions {
	return &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		samplerMapEvents:    r.events,
		samplerMapPressures: r.pressures,
	}}
}
