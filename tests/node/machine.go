package node

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// meminfo has the fields of /proc/meminfo from which the pods' limit is computed, in bytes.
type meminfo struct{ total, available int64 }

func readMeminfo() (meminfo, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return meminfo{}, fmt.Errorf("read meminfo: %w", err)
	}
	return parseMeminfo(string(b))
}

// parseMeminfo parses /proc/meminfo:
//
//	MemTotal:       24684084 kB
//	MemAvailable:   24387236 kB
func parseMeminfo(text string) (meminfo, error) {
	total, err := field(text, "MemTotal:", 10)
	if err != nil {
		return meminfo{}, fmt.Errorf("parse meminfo: %w", err)
	}
	available, err := field(text, "MemAvailable:", 10)
	if err != nil {
		return meminfo{}, fmt.Errorf("parse meminfo: %w", err)
	}
	return meminfo{int64(total) << 10, int64(available) << 10}, nil
}

// lacksSysResource reports whether this process lacks CAP_SYS_RESOURCE, which lowering oom_score_adj needs.
func lacksSysResource() (bool, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, fmt.Errorf("read capabilities: %w", err)
	}
	caps, err := field(string(b), "CapEff:", 16)
	if err != nil {
		return false, fmt.Errorf("parse capabilities: %w", err)
	}
	return caps&(1<<unix.CAP_SYS_RESOURCE) == 0, nil
}

// field returns the number after a key, in a file of lines like "key: number [unit]".
func field(text, key string, base int) (uint64, error) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			return strconv.ParseUint(f[1], base, 64)
		}
	}
	return 0, errors.New("no line " + key)
}
