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
	controllers []string // of v1: "memory", "cpu", "name=systemd"; nil on v2, whose files tell
	v2          bool
}

// A tree is a set of hierarchies seen as one: a path in it is the same path in each of them. Every change is
// made below one private root, and nothing outside of it is written.
type tree []hierarchy

// mountedTree finds every cgroup hierarchy of this machine, each once.
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
			// Beside the controllers stand flags like rw, which are no controller's name and do no harm.
			h.controllers = strings.Split(m.options, ",")
		}
		t = append(t, h)
	}
	if len(t) == 0 {
		return nil, errors.New("find cgroup hierarchies: none is mounted")
	}
	return t, nil
}

// having returns the hierarchy that holds a controller.
func (t tree) having(controller string) (hierarchy, error) {
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

// make creates a cgroup in every hierarchy, parents included, ready for processes.
func (t tree) make(cgroup string) error {
	for _, h := range t {
		at := "/"
		for name := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
			parent := at
			at = filepath.Join(at, name)
			if err := h.makeOne(parent, at); err != nil {
				return fmt.Errorf("make cgroup: %w", err)
			}
		}
	}
	return nil
}

func (h hierarchy) makeOne(parent, cgroup string) error {
	if h.v2 && parent != "/" {
		// A child has the controllers that its parent hands down. The root's list is the machine's business.
		if err := h.handDown(parent); err != nil {
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
		// A new v1 cpuset is empty and refuses processes.
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

func (h hierarchy) handDown(cgroup string) error {
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

// set writes a controller's limit: v1File or v2File, by what is mounted.
func (t tree) set(controller, cgroup, v1File, v2File string, value int64) error {
	h, err := t.having(controller)
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

// procsFiles are the files that take a process into the cgroup, one per hierarchy.
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
		// A directory may vanish under the walk; what counts is what is still there.
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
			// 0 is a process of a pid namespace that we can't see.
			if pid, err := strconv.Atoi(string(line)); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// kill ends every process in cgroup and its descendants, and returns when none is left.
func (t tree) kill(cgroup string, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		pids := t.processes(cgroup)
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("kill cgroup %s: after %v %d processes live: %v", cgroup, patience, len(pids), pids)
		}
		for _, dir := range t.dirs(cgroup) {
			// Nobody forks any more, and nobody is frozen, who could then not die. Not every hierarchy has every file.
			for file, value := range map[string]string{"pids.max": "0", "freezer.state": "THAWED", "cgroup.freeze": "0"} {
				if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
					_ = os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
				}
			}
		}
		for _, pid := range pids {
			if err := killOne(pid, cgroup); err != nil {
				return err
			}
		}
	}
}

// killOne kills a process, if it is (still) in the cgroup once it is held by a pidfd.
func killOne(pid int, cgroup string) error {
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
		return nil // gone, or another one by now
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return nil
}

// memberOf says whether the text of /proc/PID/cgroup names cgroup or a descendant in any hierarchy:
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

// remove removes cgroup and its descendants, which must hold no process. The kernel lets go of a cgroup a
// moment after its last process, so that it is tried for a while.
func (t tree) remove(cgroup string, patience time.Duration) error {
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
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
