package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// minFree is the free space of the root disk in bytes below which it counts as full.
const minFree = 16 << 20

// beat sends a Beat each second, and reports a full disk.
func (r *runner) beat() {
	for range time.Tick(time.Second) {
		var disk unix.Statfs_t
		if err := unix.Statfs("/", &disk); err != nil {
			r.port.send(protocol.Event{Kind: protocol.Kernel, Trouble: protocol.DiskFull, Text: fmt.Sprintf("statfs /: %v", err)})
			continue
		}
		free := disk.Bavail * uint64(disk.Bsize)
		r.port.send(protocol.Event{Kind: protocol.Beat, Uptime: uptime(), DiskFree: free, LoadAverage: loadAverage()})
		if free < minFree {
			r.trouble(protocol.DiskFull, fmt.Sprintf("the root disk is full: %d bytes of %d are free", free, disk.Blocks*uint64(disk.Bsize)))
		}
	}
}

// loadAverage returns the first number of /proc/loadavg, zero on error.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	var load float64
	if n, _ := fmt.Sscan(string(b), &load); n != 1 {
		return 0
	}
	return load
}
