package pods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/kernel/cgroup"
)

// Process is a process of the node.
type Process struct {
	PID int
	// Executable is the file that it runs, or the name that it goes by where
	// that can't be read.
	Executable string
}

func (p Process) String() string { return fmt.Sprintf("kubelet %s (pid %d)", p.Executable, p.PID) }

// kubeletExecutables are the names of the programs that are a kubelet, or have
// one in them.
var kubeletExecutables = []string{"kubelet", "kubelite", "k3s"}

// kubeletsEvery is how often the kubelets that must live are looked for. No
// container's cgroup holds one, unless somebody put it there by hand.
const kubeletsEvery = time.Minute

// scanKubelets brings the kubelets that must live up to date, where that is due.
func (i *Inventory) scanKubelets(now time.Time) {
	if !i.scanned.IsZero() && now.Sub(i.scanned) < kubeletsEvery {
		return
	}
	i.scanned = now
	found, err := i.KubeletProcesses()
	if err != nil {
		i.log.Warn("can't look for a kubelet's process", "error", err)
		i.kubeletsUnknown = true
		return
	}
	i.kubelets, i.kubeletsUnknown = found, false
}

// KubeletProcesses returns the kubelets that run on this node, outside of its
// pods and of other pid namespaces, by pid. It reads /proc as a whole.
func (i *Inventory) KubeletProcesses() ([]Process, error) {
	dir, err := os.Open(string(i.procfs))
	if err != nil {
		return nil, fmt.Errorf("look for a kubelet: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look for a kubelet: %w", err)
	}
	w := i.world.Load()
	var found []Process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if exe := i.kubeletExecutable(pid); exe != "" && i.onNode(pid, w) {
			found = append(found, Process{PID: pid, Executable: exe})
		}
	}
	slices.SortFunc(found, func(a, b Process) int { return a.PID - b.PID })
	return found, nil
}

// kubeletExecutable returns what a process runs if that is a kubelet, else "".
// A process that has gone is none.
func (i *Inventory) kubeletExecutable(pid int) string {
	name := strconv.Itoa(pid)
	exe, err := os.Readlink(i.procfs.Path(name, "exe"))
	exe = strings.TrimSuffix(exe, " (deleted)")
	if err == nil && slices.Contains(kubeletExecutables, path.Base(exe)) {
		return exe
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "" // gone, or a kernel thread
	}
	// The executable may go by another name, or not be shown to us. A name alone
	// is quickly given: the command line has to agree.
	comm, err := os.ReadFile(i.procfs.Path(name, "comm"))
	if err != nil || string(comm) != "kubelet\n" {
		return ""
	}
	args, err := os.ReadFile(i.procfs.Path(name, "cmdline"))
	if err != nil {
		return ""
	}
	for n, arg := range strings.Split(string(args), "\x00") {
		if n < 2 && path.Base(arg) == "kubelet" {
			return path.Base(arg)
		}
	}
	return ""
}

// onNode reports whether a process is the node's own, and not that of a pod or
// of another pid namespace. What can't be told counts as the node's.
func (i *Inventory) onNode(pid int, w *world) bool {
	init, err := os.Readlink(i.procfs.Path("1", "ns", "pid"))
	own, ownErr := os.Readlink(i.procfs.Path(strconv.Itoa(pid), "ns", "pid"))
	if err == nil && ownErr == nil && init != own {
		return false
	}
	m, err := cgroup.Of(i.procfs, pid)
	if err != nil {
		return true
	}
	at, err := m.Memory(i.hierarchy)
	return err != nil || !w.holds(at)
}

// holds reports whether a path is at or below that of a container.
func (w *world) holds(at string) bool {
	for _, p := range w.pods {
		for _, m := range p.members {
			if below(at, m.place.path) {
				return true
			}
		}
	}
	return false
}

// below reports whether a path is at or below another.
func below(at, top string) bool {
	rest, ok := strings.CutPrefix(at, top)
	return ok && top != "" && (rest == "" || rest[0] == '/')
}
