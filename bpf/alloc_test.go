//go:build !race

package bpf

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The calls of the hot path do not allocate. The race detector moves variables that the
// kernel writes to the heap.
func TestHotPathCallsDoNotAllocate(t *testing.T) {
	ring, s := openSampler(t, Options{})
	top := makeCgroup(t)
	top.child(t, "pod")
	setPods(t, s, top)
	tickNow(t, s)
	const runs = 100
	for range runs + 1 {
		if err := s.Inject(Crossing{Key: 1}); err != nil {
			t.Fatal(err)
		}
	}
	var record Record
	var sample Sample
	rows := make([]Row, 0, 16)
	for _, test := range []struct {
		name string
		call func() error
	}{
		{"Next", func() error {
			if ok, err := ring.Next(&record); err != nil || !ok {
				t.Fatalf("Next() = %v, %v; want a record", ok, err)
			}
			return nil
		}},
		{"Sample", func() error { return s.Sample(&sample) }},
		{"Kick", s.Kick},
		{"Rearm", func() error { return s.Rearm(0) }},
		{"Walk", func() error { return s.Walk(time.Second) }},
		{"Rows", func() (err error) { rows, _, err = s.Rows(rows); return err }},
		{"Stats", func() error { _, err := s.Stats(); return err }},
	} {
		if n := testing.AllocsPerRun(runs, func() {
			if err := test.call(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times; want 0", test.name, n)
		}
	}
}

// The calls of the hot path do not allocate if they fail, either.
func TestFailedCallsDoNotAllocate(t *testing.T) {
	ring := openRing(t)
	_, late := openSampler(t, Options{}) // without a cgroup of pods
	var idle Sampler                     // has never ticked
	idle.latest.entries, idle.table.entries = make([]samplerLatest, 1), make([]samplerTable, 1)
	closed, err := OpenSampler(ring, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	var sample Sample
	for _, test := range []struct {
		name string
		want error
		call func() error
	}{
		{"Walk after its limit", os.ErrDeadlineExceeded, func() error { return late.Walk(0) }},
		{"Walk when closed", os.ErrClosed, func() error { return closed.Walk(0) }},
		{"Kick when closed", os.ErrClosed, closed.Kick},
		{"Sample when closed", os.ErrClosed, func() error { return closed.Sample(&sample) }},
		{"Sample before the first tick", ErrNoTick, func() error { return idle.Sample(&sample) }},
		{"Rows when closed", os.ErrClosed, func() error { _, _, err := closed.Rows(nil); return err }},
		{"Rows before a walk", ErrNoTable, func() error { _, _, err := idle.Rows(nil); return err }},
		{"Stats before the first tick", ErrNoTick, func() error { _, err := idle.Stats(); return err }},
		{"Rearm when closed", os.ErrClosed, func() error { return closed.Rearm(0) }},
		{"run of no program", unix.EBADF, func() error { _, err := run(closed.programs.Kick, nil, 0); return err }},
	} {
		var err error
		n := testing.AllocsPerRun(10, func() { err = test.call() })
		if !errors.Is(err, test.want) {
			t.Errorf("%s = %v; want %v", test.name, err, test.want)
		}
		if n != 0 {
			t.Errorf("%s allocates %v times; want 0", test.name, n)
		}
	}
}
