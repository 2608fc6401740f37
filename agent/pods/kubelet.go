package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

// kubeletExecutables are the names of the programs that are a kubelet, or have
// one in them. They only select which processes are looked at.
var kubeletExecutables = []string{"kubelet", "kubelite", "k3s"}

const (
	// guardedKubeletAge is how old what is known of the kubelets may be that must
	// live: no container's cgroup has one in it, unless it was put there by hand. It
	// is also from which age on a process is trusted to be one.
	guardedKubeletAge = time.Minute
	// kubeletLookAge is how old that may be where evictd does what it must not do
	// beside a kubelet.
	kubeletLookAge = 10 * time.Second
	// kubeletLookShare is how many times as long as looking for kubelets takes the
	// next look waits: every user can start processes, and each is looked at.
	kubeletLookShare = 50
	// processBatch is how many names of /proc are read at once.
	processBatch = 512
)

// sighting is what was found when kubelets were looked for.
type sighting struct {
	found []evict.KubeletProcess // by pid
	err   error
	at    time.Time
}

// updateKubelets takes over which kubelets were found last. Those that are none
// any more are left out: a process can be found before its container is listed.
// containers are the paths of the containers' cgroups that the runtime listed when
// it was asked at that time.
func (i *Inventory) updateKubelets(containers []string, asked, now time.Time) {
	s := i.kubeletSighting(guardedKubeletAge)
	if s.err != nil {
		if s.at != i.scanned {
			i.log.Warn("can't look for a kubelet's process", "error", s.err)
		}
		i.scanned, i.kubeletsErr = s.at, s.err
		return
	}
	i.kubelets = slices.DeleteFunc(slices.Clone(s.found), func(k evict.KubeletProcess) bool { return i.kubelet(k.PID, containers) == "" })
	i.scanned, i.kubeletsErr = s.at, nil
	i.trustKubelets(asked, now)
}

// kubeletProcess describes a kubelet that runs here: see [evict.Kubelet].
func (i *Inventory) kubeletProcess() string {
	switch {
	case i.kubeletsErr != nil:
		return fmt.Sprintf("whether one does can't be told: %v", i.kubeletsErr)
	case len(i.kubelets) > 0:
		return i.kubelets[0].String()
	}
	return ""
}

// Kubelet returns what is known of a kubelet on this node. It has
// [Inventory.WatchKubelets] look for one again where the last look was more than
// kubeletLookAge ago.
func (i *Inventory) Kubelet() evict.Kubelet {
	i.kubeletSighting(kubeletLookAge)
	return i.world.Load().kubelet
}

// kubeletOf is Kubelet for a snapshot of w. Where it is declared that no kubelet runs
// here, each snapshot asks for a new look: evictd does not act beside one.
func (i *Inventory) kubeletOf(w *world) evict.Kubelet {
	if w.kubelet.Absent {
		i.kubeletSighting(kubeletLookAge)
	}
	return w.kubelet
}

// kubeletSighting returns which kubelets run on this node, by pid: see
// [Inventory.IsKubelet]. It answers from the last look, and asks
// [Inventory.WatchKubelets] for another where that is older than maxAge. The
// first call looks itself.
func (i *Inventory) kubeletSighting(maxAge time.Duration) *sighting {
	s := i.sighted.Load()
	if s == nil {
		s, _ = i.lookForKubelets()
	} else if time.Since(s.at) >= maxAge {
		poke(i.lookAgain)
	}
	return s
}

// WatchKubelets looks for kubelets when that is asked for, until ctx ends, and
// returns nil. It does so on a thread of its own, to which thread gives its
// priority.
func (i *Inventory) WatchKubelets(ctx context.Context, thread func() error) error {
	runtime.LockOSThread() // until the goroutine ends, and the thread with it
	if err := thread(); err != nil {
		i.log.Debug("kubelets are looked for at evictd's own priority", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-i.lookAgain:
		}
		began := time.Now()
		if _, changed := i.lookForKubelets(); changed {
			i.Refresh()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(kubeletLookShare * time.Since(began)):
		}
	}
}

// lookForKubelets looks for kubelets, and reports whether others are there than
// at the last time.
func (i *Inventory) lookForKubelets() (s *sighting, changed bool) {
	s = &sighting{at: time.Now()}
	s.found, s.err = i.KubeletProcesses()
	before := i.sighted.Swap(s)
	return s, before == nil || !slices.Equal(before.found, s.found)
}

// KubeletProcesses looks for the kubelets that run on this node: it reads /proc
// as a whole, which takes a second for some ten thousands of processes.
func (i *Inventory) KubeletProcesses() ([]evict.KubeletProcess, error) {
	containers := i.world.Load().containers()
	dir, err := os.Open(string(i.procfs))
	if err != nil {
		return nil, fmt.Errorf("look for a kubelet: %w", err)
	}
	defer dir.Close()
	var found []evict.KubeletProcess
	for {
		names, err := dir.Readdirnames(processBatch)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("look for a kubelet: %w", err)
		}
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil {
				continue
			}
			if exe := i.kubelet(pid, containers); exe != "" {
				found = append(found, evict.KubeletProcess{PID: pid, Executable: exe, Start: i.startOf(pid)})
			}
		}
	}
	slices.SortFunc(found, func(a, b evict.KubeletProcess) int { return a.PID - b.PID })
	return found, nil
}

// IsKubelet reports whether a process is a kubelet of this node. Its name shows
// nothing, since every user can run a program of any name. A kubelet runs as
// root of the first user namespace and in the first pid namespace, outside the
// cgroups of pods, and only root can write its executable.
func (i *Inventory) IsKubelet(pid int) bool {
	return i.kubelet(pid, i.world.Load().containers()) != ""
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
