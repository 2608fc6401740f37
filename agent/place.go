package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/evictd/evictd/agent/metrics"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/probe"
	"github.com/evictd/evictd/kernel/process"
)

// misplaced says why evictd can't be sure that the processes and the cgroups
// that it sees are this host's; empty where it can.
func misplaced(procfs kernel.FS, h *cgroup.Hierarchy) string {
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

// foreignRoot says that the root directory that evictd was given is not the
// host's, which is that of pid 1; empty where it is, and where that is not known.
// statfs and the files of pods are then those of evictd's own container. It
// compares mounts, since following /proc/1/root needs all capabilities of pid 1.
func foreignRoot(procfs kernel.FS, rootfs string) string {
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

// protectSelf makes evictd a bad victim, and urgent, where it may. Where it may not,
// whoever starts it has to (OOMScoreAdjust=, Nice= of a unit).
func (d *daemon) protectSelf() {
	if err := setOwnScore(kernel.FS(d.options.Procfs)); err != nil {
		d.log.Info("the kernel's OOM killer may take evictd", "error", err)
	}
	if err := process.SetNice(ownNice); err != nil {
		d.log.Info("evictd waits for a processor like any other process", "error", err)
	}
	err := process.SetSessionNice(kernel.FS(d.options.Procfs), ownNice)
	if err != nil && !errors.Is(err, kernel.ErrUnavailable) {
		d.log.Info("evictd waits for a processor like any other session", "error", err)
	}
}

// ordinaryPriority undoes ownNice for the calling thread, to which the goroutine
// must be locked.
func ordinaryPriority() error {
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

// facts returns what the mode follows from, but for what the loop knows.
func (d *daemon) facts(h *cgroup.Hierarchy) func() facts {
	place := misplaced(kernel.FS(d.options.Procfs), h)
	return func() facts { return facts{configured: describeConfigured(d.loop.config), misplaced: place} }
}

// checks are what readiness means.
func (d *daemon) checks() []metrics.Check {
	return []metrics.Check{
		{Name: "observation", Run: func() (metrics.Verdict, string) {
			if v := d.board.view.Load(); v == nil {
				return metrics.Fail, "the first is not complete yet"
			} else if len(v.Orders.Unreadable) > 0 {
				return metrics.Fail, unreadableText(v)
			}
			return metrics.Pass, "complete"
		}},
		{Name: "runtime", Run: func() (metrics.Verdict, string) {
			switch s := d.inventory.Status(); {
			case s.DeclaredAbsent:
				return metrics.Pass, "declared absent"
			case !s.Connected && s.Error == "":
				return metrics.Fail, "the pods have not been listed yet"
			case !s.Connected:
				return metrics.Fail, s.Error
			}
			return metrics.Pass, "connected"
		}},
		{Name: "lanes", Run: d.checkLanes},
		{Name: "node", Run: func() (metrics.Verdict, string) {
			if d.shutting.shown.Load().Active() {
				return metrics.Fail, "node is shutting down"
			}
			return metrics.Pass, "stays up"
		}},
		{Name: "eligible pods", Run: func() (metrics.Verdict, string) {
			if v := d.board.view.Load(); v == nil || v.eligible() == 0 {
				return metrics.Warn, "no pod may be evicted"
			}
			return metrics.Pass, "some"
		}},
		{Name: "state", Run: func() (metrics.Verdict, string) {
			if err := d.store.Err(); err != nil {
				return metrics.Warn, notKept + ": " + err.Error()
			}
			return metrics.Pass, "kept in " + d.options.StateDir
		}},
		{Name: "mode", Run: func() (metrics.Verdict, string) {
			if v := d.board.view.Load(); v != nil && v.Mode.dryRun {
				return metrics.Warn, "dry run: " + strings.Join(v.Mode.why, "; ")
			}
			return metrics.Pass, "enforcing"
		}},
	}
}
