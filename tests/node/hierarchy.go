package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A hierarchy is one mounted cgroup tree.
type hierarchy struct {
	mount       string   // "/sys/fs/cgroup/memory"
	controllers []string // of v1: "memory", "cpu", "name=systemd"; nil on v2, which has them in cgroup.controllers
	v2          bool
}

// A tree is a set of hierarchies: a path in it is the same path in each of them. Callers change only cgroups below
// the node's private root.
type tree []hierarchy

// mountedTree returns each cgroup hierarchy of this machine once. It fails if none is mounted.
func mountedTree() (tree, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	var t tree
	seen := map[string]bool{}
	for _, m := range all {
		if m.fstype != "cgroup" && m.fstype != "cgroup2" || seen[m.device] {
			continue
		}
		seen[m.device] = true
		h := hierarchy{mount: m.point, v2: m.fstype == "cgroup2"}
		if !h.v2 {
			// The options also have flags like rw, which never equal the name of a controller.
			h.controllers = strings.Split(m.options, ",")
		}
		t = append(t, h)
	}
	if len(t) == 0 {
		return nil, errors.New("find cgroup hierarchies: none is mounted")
	}
	return t, nil
}

// withController returns the hierarchy that has a controller, or an error.
func (t tree) withController(controller string) (hierarchy, error) {
	for _, h := range t {
		if slices.Contains(h.controllers, controller) {
			return h, nil
		}
	}
	for _, h := range t {
		if !h.v2 {
			continue
		}
		b, err := os.ReadFile(h.path("/", "cgroup.subtree_control"))
		if err == nil && slices.Contains(strings.Fields(string(b)), controller) {
			return h, nil
		}
	}
	return hierarchy{}, fmt.Errorf("find the %s controller: no hierarchy has it for children of its root", controller)
}

func (h hierarchy) path(cgroup string, file ...string) string {
	return filepath.Join(append([]string{h.mount, cgroup}, file...)...)
}

// make creates a cgroup and its parents in every hierarchy, so that processes can join it.
func (t tree) make(cgroup string) error {
	for _, h := range t {
		at := "/"
		for name := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
			parent := at
			at = filepath.Join(at, name)
			if err := h.makeDir(parent, at); err != nil {
				return fmt.Errorf("make cgroup: %w", err)
			}
		}
	}
	return nil
}

func (h hierarchy) makeDir(parent, cgroup string) error {
	if h.v2 && parent != "/" {
		// A child has the controllers in its parent's cgroup.subtree_control. The root's is not changed.
		if err := h.enableControllers(parent); err != nil {
			return err
		}
	}
	err := os.Mkdir(h.path(cgroup), 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if slices.Contains(h.controllers, "cpuset") {
		// A new v1 cpuset is empty, and no process can join it.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			b, err := os.ReadFile(h.path(parent, file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(h.path(cgroup, file), b, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h hierarchy) enableControllers(cgroup string) error {
	b, err := os.ReadFile(h.path(cgroup, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(b)) {
		if err := os.WriteFile(h.path(cgroup, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
			return err
		}
	}
	return nil
}

// set writes a controller's limit to v1File or v2File, whichever the mounted hierarchy has.
func (t tree) set(controller, cgroup, v1File, v2File string, value int64) error {
	h, err := t.withController(controller)
	if err != nil {
		return err
	}
	file := v1File
	if h.v2 {
		file = v2File
	}
	if err := os.WriteFile(h.path(cgroup, file), strconv.AppendInt(nil, value, 10), 0); err != nil {
		return fmt.Errorf("limit cgroup: %w", err)
	}
	return nil
}

// procsFiles returns the cgroup.procs files of a cgroup, one per hierarchy.
func (t tree) procsFiles(cgroup string) []string {
	var files []string
	for _, h := range t {
		files = append(files, h.path(cgroup, "cgroup.procs"))
	}
	return files
}

// dirs lists the directories of cgroup and its descendants in every hierarchy, children after their parents.
func (t tree) dirs(cgroup string) []string {
	var dirs []string
	for _, h := range t {
		// A directory that is removed during the walk is skipped.
		_ = filepath.WalkDir(h.path(cgroup), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return fs.SkipDir
			}
			if d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	return dirs
}

// processes lists the pids in cgroup and its descendants, in any hierarchy, each once.
func (t tree) processes(cgroup string) []int {
	var pids []int
	for _, dir := range t.dirs(cgroup) {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for line := range bytes.FieldsSeq(b) {
			// 0 is a process outside of this process's PID namespace.
			if pid, err := strconv.Atoi(string(line)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// kill sends SIGKILL to every process in cgroup and its descendants, and returns when none is left. It fails after
// the timeout.
func (t tree) kill(cgroup string, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(2 * time.Millisecond) {
		pids := t.processes(cgroup)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("kill cgroup %s: after %v %d processes live: %v", cgroup, timeout, len(pids), pids)
		}
		for _, dir := range t.dirs(cgroup) {
			// Prevent forks, and thaw: on v1 a frozen process does not die. Not every hierarchy has all files.
			for file, value := range map[string]string{"pids.max": "0", "freezer.state": "THAWED", "cgroup.freeze": "0"} {
				if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
					_ = os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
				}
			}
		}
		for _, pid := range pids {
			if err := killProcess(pid, cgroup); err != nil {
				return err
			}
		}
	}
}

// killProcess kills a process if it is in the cgroup. It opens a pidfd before it checks that, so that a reused PID is
// never killed.
func killProcess(pid int, cgroup string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd)
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil || !memberOf(string(b), cgroup) {
		return nil // exited, or the PID was reused
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}

// memberOf reports whether the text of /proc/PID/cgroup names cgroup or a descendant in any hierarchy:
//
//	4:memory:/kubepods/besteffort/pod1
//	0::/system
func memberOf(text, cgroup string) bool {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 && (f[2] == cgroup || below(f[2], cgroup)) {
			return true
		}
	}
	return false
}

// remove removes cgroup and its descendants, which must have no processes. It retries until the timeout, because the
// kernel returns EBUSY for a moment after the last process has exited.
func (t tree) remove(cgroup string, timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(2 * time.Millisecond) {
		var left error
		for _, dir := range slices.Backward(t.dirs(cgroup)) {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				left = fmt.Errorf("remove cgroup %s: %w", dir, err)
			}
		}
		if left == nil || time.Now().After(end) {
			return left
		}
	}
}
