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
	"syscall"
	"time"

	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
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
// one in them. They only select which processes are looked at.
var kubeletExecutables = []string{"kubelet", "kubelite", "k3s"}

// kubeletsEvery is how often the kubelets that must live are looked for. No
// container's cgroup holds one, unless somebody put it there by hand.
const kubeletsEvery = time.Minute

// scanKubelets looks for the kubelets that must live, where that is due, and
// otherwise drops those that are none any more: a process that was found before
// its container was listed among them. containers are the paths of the
// containers' cgroups that the sources have just listed.
func (i *Inventory) scanKubelets(now time.Time, containers []string) {
	if !i.scanned.IsZero() && now.Sub(i.scanned) < kubeletsEvery {
		i.kubelets = slices.DeleteFunc(i.kubelets, func(k Process) bool { return i.kubelet(k.PID, containers) == "" })
		return
	}
	i.scanned = now
	found, err := i.findKubelets(containers)
	if err != nil {
		i.log.Warn("can't look for a kubelet's process", "error", err)
		i.kubeletsUnknown = true
		return
	}
	i.kubelets, i.kubeletsUnknown = found, false
}

// KubeletProcesses returns the kubelets that run on this node, by pid: see
// [Inventory.IsKubelet]. It reads /proc as a whole.
func (i *Inventory) KubeletProcesses() ([]Process, error) {
	return i.findKubelets(i.world.Load().containers())
}

// IsKubelet reports whether a process is a kubelet of this node. Its name shows
// nothing, since every user can run a program of any name. A kubelet runs as
// root of the first user namespace and in the first pid namespace, outside the
// cgroups of pods, and only root can write its executable.
func (i *Inventory) IsKubelet(pid int) bool {
	return i.kubelet(pid, i.world.Load().containers()) != ""
}

func (i *Inventory) findKubelets(containers []string) ([]Process, error) {
	dir, err := os.Open(string(i.procfs))
	if err != nil {
		return nil, fmt.Errorf("look for a kubelet: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look for a kubelet: %w", err)
	}
	var found []Process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if exe := i.kubelet(pid, containers); exe != "" {
			found = append(found, Process{PID: pid, Executable: exe})
		}
	}
	slices.SortFunc(found, func(a, b Process) int { return a.PID - b.PID })
	return found, nil
}

// kubelet returns what a process runs if it is a kubelet, else "". A process
// that has ended is none.
func (i *Inventory) kubelet(pid int, containers []string) string {
	exe := i.kubeletExecutable(pid)
	if exe == "" || !i.rootsOwn(pid) || !i.onNode(pid, containers) {
		return ""
	}
	return exe
}

// kubeletExecutable returns what a process runs if that is called like a
// kubelet, else "".
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
	// The executable may have another name (hyperkube), or evictd may not be
	// allowed to read the link. comm alone is set with prctl(2), so the command
	// line has to agree.
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

// rootsOwn reports whether a process has no other user than root of the first
// user namespace, and an executable that only root can write. All user IDs
// count: a set-user-id program keeps the real one of the user who runs it.
// A link that evictd may not read (without CAP_SYS_PTRACE) speaks neither for
// nor against: the user IDs alone already keep other users out.
func (i *Inventory) rootsOwn(pid int) bool {
	if uids, err := process.ReadUIDs(i.procfs, pid); err != nil || uids != (process.UIDs{}) {
		return false
	}
	if !i.inNamespace(pid, "user", process.FirstUserNamespace) {
		return false
	}
	// Through the link the kernel opens the inode that runs, whatever has its
	// name by now (fs/proc/base.c: proc_exe_link).
	owner, mode, err := i.stat(i.procfs.Path(strconv.Itoa(pid), "exe"))
	if errors.Is(err, fs.ErrPermission) {
		return true
	}
	return err == nil && owner == 0 && mode&0o022 == 0
}

// statFile returns the owner and the mode of a file.
func statFile(path string) (owner uint32, mode fs.FileMode, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, fmt.Errorf("no owner is known of %s", path)
	}
	return st.Uid, info.Mode(), nil
}

// inNamespace reports whether a process is in a namespace of this link, or
// evictd may not see in which one it is.
func (i *Inventory) inNamespace(pid int, kind, link string) bool {
	own, err := os.Readlink(i.procfs.Path(strconv.Itoa(pid), "ns", kind))
	return err != nil || own == link
}

// onNode reports whether a process is the node's own: neither in another pid
// namespace nor in the cgroup of a pod or one of these containers. One whose
// cgroup can't be read counts as the node's.
func (i *Inventory) onNode(pid int, containers []string) bool {
	if !i.inNamespace(pid, "pid", process.FirstPIDNamespace) {
		return false
	}
	m, err := cgroup.Of(i.procfs, pid)
	if err != nil {
		return true
	}
	at, err := m.Memory(i.hierarchy)
	if err != nil {
		return true
	}
	// A container that has just started may not be listed yet.
	if kubepods, ok, err := i.hierarchy.Kubepods(i.cgroupRoot); err == nil && ok && below(at, kubepods.Path) {
		return false
	}
	return !slices.ContainsFunc(containers, func(c string) bool { return below(at, c) })
}

// containers returns the paths of the cgroups of all containers.
func (w *world) containers() (paths []string) {
	for _, p := range w.pods {
		for _, m := range p.members {
			if m.place.path != "" {
				paths = append(paths, m.place.path)
			}
		}
	}
	return paths
}

// containers returns the paths of the cgroups that the runtime names for the
// containers, and of those that were found for them before.
func (i *Inventory) containers(listings []*listing) (paths []string) {
	for _, l := range listings {
		for n := range l.Containers {
			c := &l.Containers[n]
			if before := i.places[c.ID]; before != nil && before.path != "" {
				paths = append(paths, before.path)
			} else if told, _, err := cri.CgroupPath(c.CgroupsPath); err == nil {
				paths = append(paths, told)
			}
		}
	}
	return paths
}

// below reports whether a path is at or below another.
func below(at, top string) bool {
	rest, ok := strings.CutPrefix(at, top)
	return ok && top != "" && (rest == "" || rest[0] == '/')
}
