package meminfo

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/text"
)

// DirectScanned returns how many pages tasks that wait for memory have looked at to
// reclaim them, since the boot, from /proc/vmstat:
//
//	pgscan_direct 0
//
// Reclaim for the limit of a cgroup does not count (mm/vmscan.c: shrink_inactive_list
// adds to it for !cgroup_reclaim alone), so it grows only where the node itself is
// short of memory. A missing line is an error.
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

var errNoScanned = errors.New("pgscan_direct is missing")

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
