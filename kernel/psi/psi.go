// Package psi reads pressure stall information: for how long tasks have waited
// for a resource (Documentation/accounting/psi.rst, kernel/sched/psi.c).
//
// Kernels may be built without it, or need psi=1 on their command line: that
// is kernel.ErrUnavailable, never a pressure of 0.
package psi

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/evictd/evictd/kernel"
)

// Stall is the total time for which some, or all, of the tasks have stalled
// since boot. It grows with the event, where the averages beside it lag.
type Stall struct {
	Some, Full time.Duration
}

// Memory reads /proc/pressure/memory.
func Memory(proc kernel.FS) (Stall, error) {
	content, err := os.ReadFile(proc.Path("pressure", "memory"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) {
		return Stall{}, fmt.Errorf("read memory pressure: %w", kernel.ErrUnavailable)
	}
	if err != nil {
		return Stall{}, fmt.Errorf("read memory pressure: %w", err)
	}
	stall, err := parse(content)
	if err != nil {
		return Stall{}, fmt.Errorf("read memory pressure: %w", err)
	}
	return stall, nil
}

// parse reads
//
//	some avg10=0.00 avg60=0.00 avg300=0.00 total=0
//	full avg10=0.00 avg60=0.00 avg300=0.00 total=0
//
// with the totals in microseconds.
func parse(content []byte) (Stall, error) {
	var s Stall
	var some, full bool
	for line := range bytes.Lines(content) {
		fields := bytes.Fields(line)
		if len(fields) == 0 {
			continue
		}
		var into *time.Duration
		switch string(fields[0]) {
		case "some":
			into, some = &s.Some, true
		case "full":
			into, full = &s.Full, true
		default:
			continue
		}
		total, err := total(fields[1:])
		if err != nil {
			return Stall{}, fmt.Errorf("%q: %w", fields[0], err)
		}
		*into = total
	}
	if !some || !full {
		return Stall{}, errors.New("a line is missing")
	}
	return s, nil
}

func total(fields [][]byte) (time.Duration, error) {
	for _, field := range fields {
		if text, ok := bytes.CutPrefix(field, []byte("total=")); ok {
			us, err := strconv.ParseUint(string(text), 10, 63)
			if err != nil || us > uint64(1<<63-1)/1000 {
				return 0, fmt.Errorf("total %q is not a number of microseconds", text)
			}
			return time.Duration(us) * time.Microsecond, nil
		}
	}
	return 0, errors.New("no total")
}
