package self

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/probe"
	"github.com/evictd/evictd/kernel/process"
)

// Misplaced says why evictd can't be sure that the processes and the cgroups
// that it sees are this host's; empty where it can.
func Misplaced(procfs kernel.FS, h *cgroup.Hierarchy) string {
	if pids := probe.HostPIDs(procfs); pids.Supported != probe.Yes {
		return fmt.Sprintf("evictd does not see the host's processes: %s; needed is %s", pids.Detail, pids.Missing)
	}
	paths, err := h.FindPID(os.Getpid())
	switch {
	case err != nil:
		return fmt.Sprintf("evictd does not find itself among the cgroups: %v", err)
	case len(paths) != 1:
		return fmt.Sprintf("evictd finds itself in %d cgroups of the tree that it reads instead of one (%s): is the host's tree mounted, and the pid namespace the host's?",
			len(paths), strings.Join(paths, ", "))
	}
	return ""
}

// ForeignRoot says that the root directory that evictd was given is not the
// host's, which is that of pid 1; empty where it is, and where that is not known.
// statfs and the files of pods are then those of evictd's own container. It
// compares mounts, since following /proc/1/root needs all capabilities of pid 1.
func ForeignRoot(procfs kernel.FS, rootfs string) string {
	mounts, err := disk.Mounts(procfs, "1")
	if err != nil {
		return ""
	}
	var host *disk.Mount
	for i := range mounts {
		if mounts[i].Point == "/" {
			host = &mounts[i] // the last is on top
		}
	}
	if host == nil {
		return ""
	}
	given, err := disk.Locate(procfs, rootfs)
	switch {
	case errors.Is(err, kernel.ErrUnavailable):
		return ""
	case err != nil:
		return fmt.Sprintf("the host's root is not at %s: %v (--path.rootfs says where it is mounted)", rootfs, err)
	}
	if given.Filesystem == host.Filesystem && given.Root == host.Root {
		return ""
	}
	return fmt.Sprintf("%s is on the filesystem %s, the root of the host is on %s: nodefs and the files of pods are those of evictd's own container "+
		"(--path.rootfs says where the host's root is mounted)", rootfs, given.Filesystem, host.Filesystem)
}

const (
	// ownOOMScoreAdj keeps the kernel's OOM killer from evictd, if it gets to act.
	ownOOMScoreAdj = -999
	// ownNice puts evictd's ordinary threads before those of others: while Go stops
	// the world the hot path waits for them, too.
	ownNice = -20
)

// Protect makes evictd a bad victim, and urgent, where it may. Where it may not,
// whoever starts it has to (OOMScoreAdjust=, Nice= of a unit).
func (p *Process) Protect() {
	if err := setOwnScore(p.procfs); err != nil {
		p.log.Info("the kernel's OOM killer may take evictd", "error", err)
	}
	if err := process.SetNice(ownNice); err != nil {
		p.log.Info("evictd waits for a processor like any other process", "error", err)
	}
	err := process.SetSessionNice(p.procfs, ownNice)
	if err != nil && !errors.Is(err, kernel.ErrUnavailable) {
		p.log.Info("evictd waits for a processor like any other session", "error", err)
	}
}

// OrdinaryPriority undoes ownNice for the calling thread, to which the goroutine
// must be locked.
func OrdinaryPriority() error {
	now, err := process.ThreadScheduling()
	if err != nil || now.Nice >= 0 {
		return err
	}
	return process.SetThreadNice(0)
}

func setOwnScore(proc kernel.FS) error {
	score, err := process.OpenScore(proc, os.Getpid())
	if err != nil {
		return err
	}
	defer score.Close()
	return score.Set(ownOOMScoreAdj)
}
