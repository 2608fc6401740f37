package meminfo

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Scanned returns how many pages kswapd and tasks that wait for memory have looked
// at to reclaim them, since the boot, from /proc/vmstat:
//
//	pgscan_kswapd 0
//	pgscan_direct 0
//
// Reclaim for the limit of a cgroup does not count (mm/vmscan.c: shrink_inactive_list
// adds to these for !cgroup_reclaim alone), so they grow only where the node itself is
// short of memory. A missing line is an error.
func Scanned(fs kernel.FS) (pages uint64, err error) {
	b, err := os.ReadFile(fs.Path("vmstat"))
	if err != nil {
		return 0, fmt.Errorf("read vmstat: %w", err)
	}
	if pages, err = parseScanned(b); err != nil {
		return 0, fmt.Errorf("parse vmstat: %w", err)
	}
	return pages, nil
}

var errNoScanned = errors.New("pgscan_kswapd or pgscan_direct is missing")

func parseScanned(b []byte) (pages uint64, err error) {
	found := 0
	for len(b) > 0 {
		var line []byte
		if line, b, err = text.Line(b); err != nil {
			return 0, err
		}
		name, value, _ := bytes.Cut(line, []byte{' '})
		if s := string(name); s != "pgscan_kswapd" && s != "pgscan_direct" {
			continue
		}
		n, err := text.Uint(value)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		pages += n // a counter that ran over differs by as much as it grew
		found++
	}
	if found != 2 {
		return 0, errNoScanned
	}
	return pages, nil
}
