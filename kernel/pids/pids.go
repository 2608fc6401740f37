// Package pids counts tasks and reads how many there may be: on the node, and in
// a cgroup of the pids controller.
//
// A task is a thread: each takes a pid, and each counts.
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

// Node is how many tasks there are and may be. A namespace may allow fewer.
type Node struct {
	Tasks uint64
	// Max is the lower of kernel.pid_max, from which pids are taken, and
	// kernel.threads-max, which bounds the tasks.
	Max uint64
}

// ReadNode reads the tasks of the whole node, whatever the pid namespace, and
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

// parseLoadavg returns nr_threads of
//
//	0.20 0.18 0.12 1/80 11206
//
// the number behind the slash (fs/proc/loadavg.c).
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

// Cgroup is how many tasks a cgroup's subtree holds and may hold.
type Cgroup struct {
	Tasks   uint64
	Limited bool
	Max     uint64 // where Limited
}

// ReadCgroup reads a cgroup in the tree that carries the pids controller. Where
// the cgroup is not there, or the controller is off in it, that is
// [kernel.ErrUnavailable].
func ReadCgroup(tree kernel.FS, path string) (Cgroup, error) {
	var c Cgroup
	current, err := readUint(tree.Path(path, "pids.current"))
	if err == nil {
		c.Tasks = current
		var limit []byte
		if limit, err = os.ReadFile(tree.Path(path, "pids.max")); err == nil {
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
