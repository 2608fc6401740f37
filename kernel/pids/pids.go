// Package pids reads the number of tasks and its limit, of the node and of a
// cgroup of the pids controller.
//
// A task is a thread; each uses a pid.
package pids

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/text"
)

// Node is the number of tasks on the node and their limit. A pid namespace can have
// a lower limit.
type Node struct {
	Tasks uint64
	// Max is the lower of kernel.pid_max, which bounds the pids, and
	// kernel.threads-max, which bounds the tasks.
	Max uint64
}

// ReadNode reads the number of tasks on the whole node, in any pid namespace, and
// their limit.
func ReadNode(proc kernel.FS) (Node, error) {
	pidMax, err1 := readUint(proc.Path("sys/kernel/pid_max"))
	threadsMax, err2 := readUint(proc.Path("sys/kernel/threads-max"))
	loadavg, err3 := os.ReadFile(proc.Path("loadavg"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return Node{}, fmt.Errorf("count tasks: %w", err)
	}
	tasks, err := parseLoadavg(loadavg)
	if err != nil {
		return Node{}, fmt.Errorf("count tasks: loadavg: %w", err)
	}
	return Node{Tasks: tasks, Max: min(pidMax, threadsMax)}, nil
}

var errMalformed = errors.New("malformed")

// parseLoadavg returns nr_threads, the number after the slash (fs/proc/loadavg.c):
//
//	0.20 0.18 0.12 1/80 11206
func parseLoadavg(content []byte) (uint64, error) {
	fields := bytes.Fields(content)
	if len(fields) != 5 {
		return 0, errMalformed
	}
	_, tasks, ok := bytes.Cut(fields[3], []byte{'/'})
	if !ok {
		return 0, errMalformed
	}
	return text.Uint(tasks)
}

// Cgroup is the number of tasks in a cgroup's subtree and their limit.
type Cgroup struct {
	Tasks   uint64
	Limited bool
	Max     uint64 // if Limited
}

// ReadCgroup reads the number of tasks in a cgroup of the pids controller's
// hierarchy and their limit. It fails with [kernel.ErrUnavailable] if the cgroup
// does not exist or the controller is off in it.
func ReadCgroup(hierarchy kernel.FS, path string) (Cgroup, error) {
	var c Cgroup
	current, err := readUint(hierarchy.Path(path, "pids.current"))
	if err == nil {
		c.Tasks = current
		var limit []byte
		if limit, err = os.ReadFile(hierarchy.Path(path, "pids.max")); err == nil {
			if limit = bytes.TrimSpace(limit); string(limit) == "max" {
				return c, nil
			}
			c.Limited = true
			c.Max, err = text.Uint(limit)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", kernel.ErrUnavailable, err)
	}
	if err != nil {
		return Cgroup{}, fmt.Errorf("count tasks of cgroup %s: %w", path, err)
	}
	return c, nil
}

func readUint(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := text.Uint(bytes.TrimSpace(b))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}
