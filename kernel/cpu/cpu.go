// Package cpu counts the node's CPUs. These can be more than the CPUs that evictd
// may run on, and all of them allocate memory and batch per-CPU counters.
package cpu

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Online returns the number of online CPUs, from <sys>/devices/system/cpu/online. It
// can change at run time.
func Online(sys kernel.FS) (int, error) {
	content, err := os.ReadFile(sys.Path("devices", "system", "cpu", "online"))
	if err != nil {
		return 0, fmt.Errorf("read online CPUs: %w", err)
	}
	n, err := parseList(content)
	if err != nil {
		return 0, fmt.Errorf("read online CPUs: %w: %q", err, content)
	}
	return n, nil
}

var errList = errors.New("not a list of CPUs")

// maxCPUs bounds a CPU number, above the NR_CPUS of any kernel.
const maxCPUs = 1 << 20

// parseList returns the number of CPUs in a list (lib/bitmap-str.c:
// bitmap_print_to_pagebuf):
//
//	0-3,6,8-11
func parseList(b []byte) (int, error) {
	line, rest, err := text.Line(b)
	if err != nil {
		return 0, err
	}
	if len(rest) > 0 {
		return 0, errList
	}
	count, next := uint64(0), uint64(0)
	for part := range bytes.SplitSeq(line, []byte{','}) {
		first, last, isRange := bytes.Cut(part, []byte{'-'})
		if !isRange {
			last = first
		}
		from, err := text.Uint(first)
		if err != nil {
			return 0, errList
		}
		to, err := text.Uint(last)
		if err != nil || to < from || from < next || to >= maxCPUs {
			return 0, errList
		}
		count += to - from + 1
		next = to + 1
	}
	return int(count), nil
}
