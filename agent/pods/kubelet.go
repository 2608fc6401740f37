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

// kubeletExecutables are the names of programs that are or include a kubelet. A name only
// selects a process for the checks of [Inventory.IsKubelet].
var kubeletExecutables = []string{"kubelet", "kubelite", "k3s"}

const (
	// guardScanMaxAge is how old the scan may be that guards kubelets: a kubelet is in a
	// container's cgroup only if it was moved there. It is also the age from which a kubelet
	// is trusted (trustKubelets).
	guardScanMaxAge = time.Minute
	// actionScanMaxAge is how old the scan may be before evictd does what it must not do while
	// a kubelet runs. It is short, as a kubelet may be started at any time; scanPauseFactor
	// bounds the cost.
	actionScanMaxAge = 10 * time.Second
	// scanPauseFactor is how many times as long as a scan takes the pause before the next is:
	// any user can start processes, and each costs time.
	scanPauseFactor = 50
	// processBatch is how many names of /proc are read at once.
	processBatch = 512
)

// kubeletScan is the result of a scan for kubelets.
type kubeletScan struct {
	found []evict.KubeletProcess // by pid
	err   error
	at    time.Time
}

// updateKubelets takes over the kubelets of the last scan. A process that is not outside
// the containers any more is dropped: it may have been found before its container was
// listed. containers are the cgroup paths of the containers in the last list, and requested is
// when that list was requested.
func (inv *Inventory) updateKubelets(containers []string, requested, now time.Time) {
	s := inv.recentKubeletScan(guardScanMaxAge)
	if s.err != nil {
		if s.at != inv.kubeletsScanned {
			inv.log.Warn("could not look for a kubelet process", "error", s.err)
		}
		inv.kubeletsScanned, inv.kubeletsErr = s.at, s.err
		return
	}
	inv.kubelets = slices.DeleteFunc(slices.Clone(s.found), func(k evict.KubeletProcess) bool { return inv.kubelet(k.PID, containers) == "" })
	inv.kubeletsScanned, inv.kubeletsErr = s.at, nil
	inv.trustKubelets(requested, now)
}

// kubeletProcess describes a running kubelet: see [evict.Kubelet].
func (inv *Inventory) kubeletProcess() string {
	switch {
	case inv.kubeletsErr != nil:
		return fmt.Sprintf("not known whether a kubelet runs: %v", inv.kubeletsErr)
	case len(inv.kubelets) > 0:
		return inv.kubelets[0].String()
	}
	return ""
}

// Kubelet returns what is known of a kubelet on this node. If the last scan is older than
// actionScanMaxAge, it requests another from [Inventory.WatchKubelets].
func (inv *Inventory) Kubelet() evict.Kubelet {
	inv.recentKubeletScan(actionScanMaxAge)
	return inv.current.Load().kubelet
}

// kubeletOfSnapshot is Kubelet for a measurement of snap. Where no kubelet is declared to run,
// each measurement requests a recent scan: evictd does not act while one runs.
func (inv *Inventory) kubeletOfSnapshot(snap *listSnapshot) evict.Kubelet {
	if snap.kubelet.Absent {
		inv.recentKubeletScan(actionScanMaxAge)
	}
	return snap.kubelet
}

// recentKubeletScan returns the last scan for kubelets, and requests another from
// [Inventory.WatchKubelets] if it is older than maxAge. The first call scans itself.
func (inv *Inventory) recentKubeletScan(maxAge time.Duration) *kubeletScan {
	s := inv.kubeletScan.Load()
	if s == nil {
		s, _ = inv.scanKubelets()
	} else if time.Since(s.at) >= maxAge {
		notify(inv.scanRequests)
	}
	return s
}

// WatchKubelets scans for kubelets on request until ctx ends, and returns nil. It runs on a
// thread of its own, whose priority the function thread sets.
func (inv *Inventory) WatchKubelets(ctx context.Context, thread func() error) error {
	runtime.LockOSThread() // until the goroutine ends, and the thread with it
	if err := thread(); err != nil {
		inv.log.Debug("could not lower the priority of the kubelet scan; it runs at evictd's priority", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-inv.scanRequests:
		}
		began := time.Now()
		if _, changed := inv.scanKubelets(); changed {
			inv.Refresh()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(scanPauseFactor * time.Since(began)):
		}
	}
}

// scanKubelets scans for kubelets, and reports whether they differ from the last scan.
func (inv *Inventory) scanKubelets() (s *kubeletScan, changed bool) {
	s = &kubeletScan{at: time.Now()}
	s.found, s.err = inv.KubeletProcesses()
	before := inv.kubeletScan.Swap(s)
	return s, before == nil || !slices.Equal(before.found, s.found)
}

// KubeletProcesses returns the kubelets that run on this node. It reads all of /proc, which
// takes a second for some ten thousand processes.
func (inv *Inventory) KubeletProcesses() ([]evict.KubeletProcess, error) {
	containers := inv.current.Load().containers()
	dir, err := os.Open(string(inv.procfs))
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
			if exe := inv.kubelet(pid, containers); exe != "" {
				found = append(found, evict.KubeletProcess{PID: pid, Executable: exe, Start: inv.startOf(pid)})
			}
		}
	}
	slices.SortFunc(found, func(a, b evict.KubeletProcess) int { return a.PID - b.PID })
	return found, nil
}

// IsKubelet reports whether a process is a kubelet of this node. Any user can run a program
// of any name, so the name proves nothing. A kubelet runs as root of the initial user
// namespace, in the initial pid namespace, outside the cgroups of pods, and only root can
// write its executable.
func (inv *Inventory) IsKubelet(pid int) bool {
	return inv.kubelet(pid, inv.current.Load().containers()) != ""
}

// kubelet returns the executable of a process if it is a kubelet, else "". It returns ""
// for a process that has ended.
func (inv *Inventory) kubelet(pid int, containers []string) string {
	exe := inv.kubeletExecutable(pid)
	if exe == "" || !inv.runsAsHostRoot(pid) || !inv.outsidePods(pid, containers) {
		return ""
	}
	return exe
}

// kubeletExecutable returns the executable of a process if that has the name of a kubelet,
// else "".
func (inv *Inventory) kubeletExecutable(pid int) string {
	name := strconv.Itoa(pid)
	exe, err := os.Readlink(inv.procfs.Path(name, "exe"))
	exe = strings.TrimSuffix(exe, " (deleted)")
	if err == nil && slices.Contains(kubeletExecutables, path.Base(exe)) {
		return exe
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "" // gone, or a kernel thread
	}
	// The executable may have another name (hyperkube), or evictd may not be allowed to read
	// the link. A process can set its comm with prctl(2), so the command line must match too.
	comm, err := os.ReadFile(inv.procfs.Path(name, "comm"))
	if err != nil || string(comm) != "kubelet\n" {
		return ""
	}
	args, err := os.ReadFile(inv.procfs.Path(name, "cmdline"))
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

// runsAsHostRoot reports whether all user IDs of a process are root of the initial user
// namespace, and only root can write its executable. All user IDs count: a set-user-ID
// program keeps the real one of its user. If evictd may not read the executable's link
// (without CAP_SYS_PTRACE), the user IDs decide.
func (inv *Inventory) runsAsHostRoot(pid int) bool {
	if uids, err := process.ReadUIDs(inv.procfs, pid); err != nil || uids != (process.UIDs{}) {
		return false
	}
	if !inv.inNamespace(pid, "user", process.InitUserNamespace) {
		return false
	}
	// The kernel resolves the link to the inode that runs, whatever file has its name now
	// (fs/proc/base.c: proc_exe_link).
	owner, mode, err := inv.stat(inv.procfs.Path(strconv.Itoa(pid), "exe"))
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
		return 0, 0, fmt.Errorf("owner of %s is not known", path)
	}
	return st.Uid, info.Mode(), nil
}

// inNamespace reports whether a process is in the namespace of this link, or evictd may not
// read its namespace.
func (inv *Inventory) inNamespace(pid int, kind, link string) bool {
	own, err := os.Readlink(inv.procfs.Path(strconv.Itoa(pid), "ns", kind))
	return err != nil || own == link
}

// outsidePods reports whether a process is in the initial pid namespace and in no cgroup of
// a pod or of these containers. It returns true if the cgroup can't be read.
func (inv *Inventory) outsidePods(pid int, containers []string) bool {
	if !inv.inNamespace(pid, "pid", process.InitPIDNamespace) {
		return false
	}
	m, err := cgroup.ReadMembership(inv.procfs, pid)
	if err != nil {
		return true
	}
	at, err := m.MemoryPath(inv.hierarchy)
	if err != nil {
		return true
	}
	// The list may not have a container that has just started.
	if kubepods, ok, err := inv.hierarchy.Kubepods(inv.cgroupRoot); err == nil && ok && below(at, kubepods.Path) {
		return false
	}
	return !slices.ContainsFunc(containers, func(c string) bool { return below(at, c) })
}

// containers returns the cgroup paths of all containers.
func (snap *listSnapshot) containers() (paths []string) {
	for _, p := range snap.pods {
		for _, c := range p.containers {
			if c.location.path != "" {
				paths = append(paths, c.location.path)
			}
		}
	}
	return paths
}

// containers returns the cgroup paths that the runtime names for the containers, or that
// were found for them before.
func (inv *Inventory) containers(listed []*listedPod) (paths []string) {
	for _, l := range listed {
		for i := range l.Containers {
			c := &l.Containers[i]
			if before := inv.locations[c.ID]; before != nil && before.path != "" {
				paths = append(paths, before.path)
			} else if cgroupPath, _, err := cri.CgroupPath(c.CgroupsPath); err == nil {
				paths = append(paths, cgroupPath)
			}
		}
	}
	return paths
}

// below reports whether a path is top or below it.
func below(at, top string) bool {
	rest, ok := strings.CutPrefix(at, top)
	return ok && top != "" && (rest == "" || rest[0] == '/')
}
