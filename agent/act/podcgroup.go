package act

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/process"
)

const (
	// maxUnlisted bounds the cgroups below a pod's that are read beside those of its
	// containers. The pod has the sandbox's, and one for each container that has just started.
	maxUnlisted = 64
	// maxParents bounds the processes of each whose parent is read.
	maxParents = 16
)

// errExited means that a pod's cgroup has to be read again.
var errExited = errors.New("the sandbox's process or a container monitor has exited while the pod's cgroup was read")

// podCgroup is the cgroup of a Reported job's pod. Its unlisted containers are cgroups below
// it that are neither a container's of the job nor the sandbox's: of containers that have
// started after the runtime listed the pod, or are about to start.
type podCgroup struct {
	killer *Killer
	job    *Job
	path   string // "" if nothing in it may be killed
	// draining are the unlisted containers that were killed and not drained yet, and refused
	// those that are not killed, by the paths of their cgroups.
	draining, refused map[string]bool
	errs              []error // why something is not killed
	// failed means that a container was not killed that may be the pod's, or was not looked for.
	// If the runtime lists it, and the job is older than that list, the next eviction has it.
	failed bool
	// readErr is why the pod's cgroup could not be read when it was read last.
	readErr error
	// sandboxExited means that the sandbox's process had exited before the cgroup was read last.
	sandboxExited bool
}

// podCgroup returns the cgroup of a job's pod. Unless that is proven to be the pod's, nothing
// is killed that the job does not list.
func (k *Killer) podCgroup(job *Job) *podCgroup {
	p := &podCgroup{killer: k, job: job, draining: map[string]bool{}, refused: map[string]bool{}}
	if job.unproven() != nil {
		return p // the cgroups of the pod can't be distinguished
	}
	var containers []string
	for _, c := range job.Containers {
		containers = append(containers, c.Cgroup)
	}
	at, err := cgroup.PodPath(job.Order.UID, containers)
	if err != nil {
		// A pod without a cgroup of its own ends with the containers that the runtime lists.
		if len(job.OtherContainers) > 0 {
			p.stop(err)
		}
		return p
	}
	p.path = at
	return p
}

// stop gives up on the unlisted containers, so that the end of the pod is not known.
func (p *podCgroup) stop(err error) {
	p.failed = true
	p.errs = append(p.errs, fmt.Errorf("containers that the runtime did not list are not killed: %w", err))
	p.path = ""
}

// killUnlisted signals the processes of the unlisted containers and returns those that have
// some. drained is called for each later.
func (p *podCgroup) killUnlisted() (killed []*victim) {
	for _, v := range p.unlisted() {
		at := v.container.Cgroup
		err := v.killAtPriority(p.killer.proc)
		switch {
		case err == nil:
			p.draining[at] = true
			killed = append(killed, v)
			continue
		case !errors.Is(err, cgroup.ErrGone):
			p.refuse(at, err)
		}
		v.close()
	}
	return killed
}

// drained ends the drain of an unlisted container.
func (p *podCgroup) drained(v *victim) {
	delete(p.draining, v.container.Cgroup)
	v.close()
}

func (p *podCgroup) refuse(at string, err error) {
	p.refused[at] = true
	wrong := (*WrongVictimError)(nil)
	p.failed = p.failed || !errors.As(err, &wrong) || !wrong.Essential
	p.errs = append(p.errs, err)
}

// runsUnlisted reports whether an unlisted container has processes.
func (p *podCgroup) runsUnlisted() bool {
	unlisted := p.unlisted()
	closeVictims(unlisted)
	return len(unlisted) > 0 || p.readErr != nil
}

// unlisted opens the unlisted containers that have processes and may be killed. There is none
// if the sandbox's cgroup is not among those of the pod that the job does not list. Cgroups with
// container monitors alone are left out: they are neither a container's nor the sandbox's.
func (p *podCgroup) unlisted() (found []*victim) {
	all, err := p.openUnlisted()
	defer func() { closeVictims(all) }() // those that are not returned
	if p.readErr = err; err != nil {
		return nil
	}
	sandbox, exited := -1, p.sandboxExited
	p.sandboxExited = p.killer.exited(p.job.SandboxPID, p.job.SandboxStart)
	if p.job.SandboxPID != 0 && p.job.SandboxStart != 0 && p.startOf(p.job.SandboxPID) == p.job.SandboxStart {
		sandbox = listing(all, p.job.SandboxPID)
	}
	monitors := p.monitors(all)
	for i, v := range all {
		guarded, monitorExited := p.onlyGuarded(v)
		switch {
		case i == sandbox || guarded:
			continue
		case sandbox < 0 && (p.sandboxExited && !exited || monitorExited):
			p.readErr = errExited // the process may be the sandbox's, or a monitor's no longer
			return nil
		case sandbox < 0:
			p.stop(fmt.Errorf("the sandbox's process is in no cgroup below %s", p.path))
			return nil
		case monitors[i] != 0:
			p.refuse(v.container.Cgroup, &WrongVictimError{Cgroup: v.container.Cgroup, PID: monitors[i], Process: "the monitor of another container", Essential: true})
			continue
		}
		p.identify(v)
		found = append(found, v)
	}
	all = slices.DeleteFunc(all, func(v *victim) bool { return slices.Contains(found, v) })
	return found
}

// openUnlisted opens the cgroups below the pod's that belong to no container of the job, are
// not refused and not being drained, and reads their processes.
func (p *podCgroup) openUnlisted() (all []*victim, err error) {
	if p.path == "" {
		return nil, nil
	}
	names, err := p.children()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		at := path.Join(p.path, name)
		if p.draining[at] || p.refused[at] || slices.ContainsFunc(p.job.Containers, func(c evict.RunningContainer) bool { return c.Cgroup == at }) {
			continue
		}
		if len(all) == maxUnlisted {
			p.stop(fmt.Errorf("more than %d cgroups of other containers below %s", maxUnlisted, p.path))
			closeVictims(all)
			return nil, nil
		}
		group, err := p.killer.hierarchy.Open(at)
		if errors.Is(err, cgroup.ErrGone) {
			continue
		}
		if err != nil {
			return all, err
		}
		v := newVictim(p.killer.hierarchy, group, evict.RunningContainer{Name: name, Cgroup: at, CgroupID: group.ID()}, p.job.Guard)
		v.thread = p.killer.PriorityThread
		all = append(all, v)
		if v.procs, err = group.Procs(nil); err != nil && !errors.Is(err, cgroup.ErrGone) {
			return all, err
		}
	}
	return all, nil
}

// children returns the names of the cgroups below the pod's; none if that is gone.
func (p *podCgroup) children() ([]string, error) {
	group, err := p.killer.hierarchy.Open(p.path)
	if err == nil {
		defer group.Close()
		var names []string
		if names, err = group.Children(); err == nil {
			return names, nil
		}
	}
	if errors.Is(err, cgroup.ErrGone) {
		err = nil
	}
	return nil, err
}

// removed reports whether the pod's cgroup was removed, and with it all that ran in it.
func (p *podCgroup) removed() bool {
	if p.path == "" {
		return false
	}
	group, err := p.killer.hierarchy.Open(p.path)
	if err == nil {
		group.Close()
	}
	return errors.Is(err, cgroup.ErrGone)
}

// identify sets the container of a cgroup if it is one that the job knows by its ID. The guard
// then has its first process.
func (p *podCgroup) identify(v *victim) {
	for _, pid := range v.procs {
		if id := p.job.Guard.Inits[pid]; id != "" && slices.Contains(p.job.OtherContainers, id) && !p.job.Guard.Reused(pid, p.startOf) {
			v.container.ID, v.container.InitPID, v.container.InitStart = id, pid, p.job.Guard.StartTimes[pid]
			return
		}
	}
}

// monitors returns for each cgroup a process that has a child in another of them or is the
// sandbox's parent; 0 for none. That is a container monitor, which CRI-O may run in the
// pod's cgroup (conmon_cgroup = "pod"). The guard has only those of listed containers.
func (p *podCgroup) monitors(all []*victim) []int {
	monitors := make([]int, len(all))
	for i, v := range all {
		for _, pid := range v.procs[:min(len(v.procs), maxParents)] {
			stat, err := process.ReadStat(p.killer.proc, pid)
			if err != nil {
				continue
			}
			if at := listing(all, stat.PPID); at >= 0 && at != i {
				monitors[at] = stat.PPID
			}
		}
	}
	return monitors
}

// onlyGuarded reports whether a cgroup has no process but those that the guard protects: with
// CRI-O and conmon_cgroup = "pod", the monitor of a listed container, which ends after it. The
// start time distinguishes such a process from another one that has its pid, so a process whose
// start time the guard lacks does not count as protected. exited means that the start time of a
// protected process could not be read.
func (p *podCgroup) onlyGuarded(v *victim) (only, exited bool) {
	guard := p.job.Guard
	only = true
	for _, pid := range v.procs {
		if _, essential := guard.Protected[pid]; !essential || guard.StartTimes[pid] == 0 {
			only = false
			continue
		}
		start := p.startOf(pid)
		only = only && start == guard.StartTimes[pid]
		exited = exited || start == 0
	}
	return only, exited
}

func (p *podCgroup) startOf(pid int) uint64 { return procfs{path: p.killer.proc}.startOf(pid) }

// listing returns the index of the cgroup with a process; -1 if there is none.
func listing(all []*victim, pid int) int {
	return slices.IndexFunc(all, func(v *victim) bool {
		_, listed := slices.BinarySearch(v.procs, pid)
		return listed
	})
}

func closeVictims(list []*victim) {
	for _, v := range list {
		v.close()
	}
}
