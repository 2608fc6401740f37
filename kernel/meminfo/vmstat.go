package meminfo

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/text"
)

// DirectScanned returns the number of pages scanned by direct reclaim since boot, from
// /proc/vmstat:
//
//	pgscan_direct 0
//
// Reclaim for the limit of a cgroup does not count (mm/vmscan.c: shrink_inactive_list
// adds to it only if !cgroup_reclaim), so it grows only if the node itself is short of
// memory. A missing line is an error.
func DirectScanned(fs kernel.FS) (pages uint64, err error) {
	b, err := os.ReadFile(fs.Path("vmstat"))
	if err != nil {
		return 0, fmt.Errorf("read vmstat: %w", err)
	}
	if pages, err = parseDirectScanned(b); err != nil {
		return 0, fmt.Errorf("parse vmstat: %w", err)
	}
	return pages, nil
}

var errNoScanned = errors.New("no line for \"pgscan_direct\"")

func parseDirectScanned(b []byte) (pages uint64, err error) {
	for len(b) > 0 {
		var line []byte
		if line, b, err = text.Line(b); err != nil {
			return 0, err
		}
		name, value, _ := bytes.Cut(line, []byte{' '})
		if string(name) != "pgscan_direct" {
			continue
		}
		if pages, err = text.Uint(value); err != nil {
			return 0, fmt.Errorf("pgscan_direct: %w", err)
		}
		return pages, nil
	}
	return 0, errNoScanned
}
