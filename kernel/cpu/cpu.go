// Package cpu tells of the node's processors, which are more than those that a
// process may run on: memory is filled, and counters are kept back, by all.
package cpu

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Online counts the CPUs that are online, from <sys>/devices/system/cpu/online. It
// may differ from one call to the next.
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

// mostCPUs is more than any kernel counts (NR_CPUS).
const mostCPUs = 1 << 20

// parseList counts the members of a list such as (lib/bitmap-str.c:
// bitmap_print_to_pagebuf)
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
		if err != nil || to < from || from < next || to >= mostCPUs {
			return 0, errList
		}
		count += to - from + 1
		next = to + 1
	}
	return int(count), nil
}
