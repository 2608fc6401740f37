package fencing

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Leftovers returns what there still is of a closed cluster: its directory, and processes that were started with a
// path in it.
func (c *Cluster) Leftovers() (left []string) {
	if _, err := os.Lstat(c.Dir); err == nil {
		left = append(left, "directory "+c.Dir)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return append(left, err.Error())
	}
	for _, file := range commands {
		content, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(content), c.Dir) {
			continue // it has ended
		}
		left = append(left, fmt.Sprintf("process %s: %s", filepath.Base(filepath.Dir(file)), strings.ReplaceAll(string(content), "\x00", " ")))
	}
	return left
}
