package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// processes returns the names of the processes in a cgroup and its descendants, in systemd's hierarchy: the unified one,
// or name=systemd of cgroup v1.
func processes(group string) string {
	if group == "" {
		return ""
	}
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err != nil {
		root = "/sys/fs/cgroup/systemd"
	}
	var names []string
	// A cgroup that is removed during the walk is skipped.
	_ = filepath.WalkDir(root+group, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		pids, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			if comm, err := os.ReadFile("/proc/" + pid + "/comm"); err == nil {
				names = append(names, strings.TrimSpace(string(comm))+" ("+pid+")")
			}
		}
		return nil
	})
	return strings.Join(names, ", ")
}
