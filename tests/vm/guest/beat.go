package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// leastFree are the bytes of the root disk below which nothing works any more that writes files.
const leastFree = 16 << 20

// beat tells each second that the machine is alive, and looks after its disk.
func (r *runner) beat() {
	for range time.Tick(time.Second) {
		var disk unix.Statfs_t
		if err := unix.Statfs("/", &disk); err != nil {
			r.port.send(protocol.Event{Kind: protocol.Kernel, Trouble: protocol.DiskFull, Text: fmt.Sprintf("ask the root disk: %v", err)})
			continue
		}
		free := disk.Bavail * uint64(disk.Bsize)
		r.port.send(protocol.Event{Kind: protocol.Beat, Uptime: uptime(), DiskFree: free, LoadAverage: loadAverage()})
		if free < leastFree {
			r.trouble(protocol.DiskFull, fmt.Sprintf("the root disk is full: %d bytes of %d are free", free, disk.Blocks*uint64(disk.Bsize)))
		}
	}
}

// loadAverage is the first number of /proc/loadavg, zero if there is none.
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
