package pods

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/meminfo"
)

// listSnapshot is what is known after one list. It is immutable once published. Its cgroups
// stay open, if only to return [cgroup.ErrGone].
type listSnapshot struct {
	listed           time.Time       // when the list was last complete
	requested        time.Time       // when that was requested
	attempted        time.Time       // when the last list was requested, whatever the result
	pods             []*pod          // running pods, by namespace, name and UID
	sandboxes        []listedSandbox // whether or not a container of the pod runs
	handles          map[string]Handle
	guard            *evict.Guard
	trustedKubelets  []evict.KubeletProcess
	kubelet          evict.Kubelet
	byCgroup         cgroupIndex
	measured         []*cgroup.Cgroup // cgroups that are read
	hasUnstarted     bool             // a container was created and does not run yet
	allBelowKubepods bool             // there are pods, and all their cgroups are below kubepods
}

// pod is a running pod, ready to be measured.
type pod struct {
	spec       evict.Pod // all but the usage
	containers []*podContainer
	// cgroup contains the whole pod and no other. If there is none it is nil, and sandbox
	// is the sandbox's own cgroup, nil if it has none that can be read.
	cgroup      *cgroup.Cgroup
	sandbox     *cgroup.Cgroup
	explanation Explanation
	// critical reports that an annotation or the oom_score_adj makes the pod critical.
	critical bool
	// declared reports that the requests come from the specification or an annotation, and
	// are not computed from the runtime's data.
	declared bool
}

// podContainer is a running container of a pod.
type podContainer struct {
	id, name string
	location *location
	// unproven is why the cgroup is not proven to be the container's alone, "" if it is
	// proven; unmeasured why its usage can't be read there, "" if it can.
	unproven, unmeasured string
	// failed is the error of the last reading; nil if it succeeded.
	failed atomic.Pointer[string]
	// init reports that the container is among the spec's init containers. index is its
	// index there or among the others.
	init  bool
	index int
}

// listedPod is a pod of the runtime's list, with the locations of its containers.
type listedPod struct {
	*Pod
	kept      time.Time            // since when it is kept although not listed; zero if listed
	locations map[string]*location // of its live containers, by ID
	sandbox   *location            // of the sandbox itself
}

// buildSnapshot builds a listSnapshot from the runtime's last list.
func (inv *Inventory) buildSnapshot(now time.Time) *listSnapshot {
	snap := &listSnapshot{handles: map[string]Handle{}, byCgroup: cgroupIndex{}, attempted: now}
	rules := inv.rules.Load()
	listed := inv.listedPods(snap)
	inv.updateKubelets(inv.containers(listed), snap.requested, now)
	snap.kubelet.Known = !snap.listed.IsZero() || inv.runtime == nil
	snap.kubelet.Absent, snap.kubelet.Process = rules.kubeletAbsent, inv.kubeletProcess()
	guard := inv.guard(nil, nil) // what is known without the containers
	locations := make(map[string]*location, len(inv.locations))
	claims := map[int]int{} // how many containers and sandboxes name each pid
	for _, l := range listed {
		snap.sandboxes = append(snap.sandboxes, listedSandbox{l.UID, l.Sandbox.ID})
		l.sandbox = inv.locateSandbox(&l.Sandbox)
		snap.byCgroup.add(l.sandbox)
		claims[l.sandbox.pid]++
		for i := range l.Containers {
			if c := &l.Containers[i]; c.live() {
				loc := inv.locateContainer(c, l.sandbox, inv.locations[c.ID], guard)
				locations[c.ID], l.locations[c.ID] = loc, loc
				snap.byCgroup.add(loc)
				claims[loc.pid]++
				snap.hasUnstarted = snap.hasUnstarted || c.State == cri.StateCreated
			}
		}
	}
	inv.locations = locations
	snap.allBelowKubepods = inv.allBelowKubepods(listed)

	capacity, capacityErr := inv.capacity()
	uids := map[string]bool{}
	slices.SortFunc(listed, func(a, b *listedPod) int {
		return cmp.Or(a.Sandbox.Created.Compare(b.Sandbox.Created), cmp.Compare(a.Sandbox.ID, b.Sandbox.ID))
	})
	for _, l := range listed {
		p := &pod{}
		for i := range l.Containers {
			c := &l.Containers[i]
			at := l.locations[c.ID]
			if !c.running() || at == nil || at.gone || c.State == cri.StateUnknown && at.cgroup == nil {
				continue
			}
			p.containers = append(p.containers, newPodContainer(c, at, snap.byCgroup, claims))
		}
		if len(p.containers) == 0 {
			continue
		}
		d := deduction{rules: rules, kubelet: snap.kubelet, capacity: capacity, capacityErr: capacityErr, listed: l, specs: inv.specs, forbidden: inv.forbidden}
		d.fill(p)
		// UIDs must be unique: crictl accepts any text as a UID. Of two sandboxes with one
		// UID the older keeps it.
		for p.spec.UID == "" || uids[p.spec.UID] {
			p.spec.UID += l.Sandbox.ID
		}
		uids[p.spec.UID] = true
		inv.chooseCgroups(p, l, snap.byCgroup)
		snap.measured = append(snap.measured, p.cgroups()...)
		snap.handles[p.spec.UID] = d.handle(p)
		snap.pods = append(snap.pods, p)
	}
	slices.SortFunc(snap.pods, func(a, b *pod) int {
		return cmp.Or(cmp.Compare(a.spec.Namespace, b.spec.Namespace), cmp.Compare(a.spec.Name, b.spec.Name), cmp.Compare(a.spec.UID, b.spec.UID))
	})
	snap.guard, snap.trustedKubelets = inv.guard(listed, locations), inv.trustedKubelets
	return snap
}

// allBelowKubepods reports whether there are pods, and all their cgroups are known to be
// below kubepods.
func (inv *Inventory) allBelowKubepods(listed []*listedPod) bool {
	kubepods, ok, err := inv.hierarchy.Kubepods(inv.cgroupRoot)
	if err != nil || !ok {
		return false
	}
	below := func(loc *location) bool { return loc.gone || strings.HasPrefix(loc.path, kubepods.Path+"/") }
	return len(listed) > 0 && !slices.ContainsFunc(listed, func(l *listedPod) bool {
		for _, loc := range l.locations {
			if !below(loc) {
				return true
			}
		}
		return !below(l.sandbox)
	})
}

// listedPods returns the pods of the runtime's list with a ready sandbox or a live
// container.
func (inv *Inventory) listedPods(snap *listSnapshot) (listed []*listedPod) {
	r := inv.runtime
	if r == nil {
		return nil
	}
	snap.listed, snap.requested, snap.attempted = r.listed, r.requested, r.attempted
	for i := range r.list.Pods {
		p := &r.list.Pods[i]
		snap.kubelet.HasSandboxes = snap.kubelet.HasSandboxes || evict.MadeByKubelet(p.Sandbox.Annotations)
		if p.Sandbox.ID == "" {
			continue // it can't be stopped, and has no name if it has no UID either
		}
		if p.Sandbox.Ready || slices.ContainsFunc(p.Containers, func(c Container) bool { return c.live() }) {
			listed = append(listed, &listedPod{Pod: p, kept: r.partial[p.Sandbox.ID], locations: map[string]*location{}})
		}
	}
	return listed
}

// capacity returns the node's memory, from which the kubelet computes oom_score_adj.
func (inv *Inventory) capacity() (int64, error) {
	info, err := meminfo.Read(inv.procfs)
	if err != nil {
		return 0, err
	}
	return signed(info.MemTotal), nil
}

// newPodContainer decides whether a container's cgroup is proven and measurable, given the
// locations of all others and how many containers name each pid.
func newPodContainer(c *Container, at *location, all cgroupIndex, claims map[int]int) *podContainer {
	pc := &podContainer{id: c.ID, name: c.Name, location: at, unproven: at.unproven}
	switch other := all.other(at); {
	case at.cgroup == nil:
		pc.unmeasured = at.unproven
	case other != nil:
		pc.unproven = fmt.Sprintf("cgroup %s also contains %s", at.path, other.id)
		pc.unmeasured = pc.unproven
	case !at.measurable:
		pc.unmeasured = at.unproven
	}
	if at.pid != 0 && claims[at.pid] > 1 && pc.unproven == "" {
		pc.unproven = fmt.Sprintf("the runtime names process %d for another container too", at.pid)
	}
	return pc
}

// chooseCgroups selects the cgroups that are read for the usage of the whole pod: one that
// is named after the pod and contains no other, else those of its containers and sandbox.
func (inv *Inventory) chooseCgroups(p *pod, l *listedPod, all cgroupIndex) {
	if parent := p.parent(); parent != "" && namedAfterPod(parent, l.UID) {
		// own is the number of locations that may be at the parent or below; if there are
		// more, the runtime lists a container twice.
		own := len(l.locations)
		if l.sandbox.path != "" {
			own++
		}
		if below := all[parent]; len(below) <= own && !slices.ContainsFunc(below, func(o *location) bool { return o != l.sandbox && l.locations[o.id] != o }) {
			if group, err := inv.cgroups.get(parent); err == nil {
				p.cgroup = group
				return
			}
		}
	}
	if l.sandbox.path != "" && all.other(l.sandbox) == nil {
		if group, err := inv.cgroups.get(l.sandbox.path); err == nil {
			p.sandbox = group
		}
	}
}

// cgroups returns the cgroups that are read to measure the pod.
func (p *pod) cgroups() (groups []*cgroup.Cgroup) {
	for _, c := range p.containers {
		if c.unmeasured == "" {
			groups = append(groups, c.location.cgroup)
		}
	}
	for _, g := range []*cgroup.Cgroup{p.cgroup, p.sandbox} {
		if g != nil {
			groups = append(groups, g)
		}
	}
	return groups
}

// parent returns the cgroup directly above all containers of the pod; "" if there is none.
func (p *pod) parent() string {
	parent := ""
	for _, c := range p.containers {
		switch above := path.Dir(c.location.path); {
		case c.location.path == "" || parent != "" && above != parent:
			return ""
		default:
			parent = above
		}
	}
	return parent
}

// namedAfterPod reports whether a cgroup has the name that the kubelet gives to a pod's
// (pkg/kubelet/cm/pod_container_manager_linux.go: GetPodContainerName, and
// cgroup_manager_linux.go: escapeSystemdCgroupName).
func namedAfterPod(cgroupPath, uid string) bool {
	if uid == "" {
		return false
	}
	name, slice := strings.CutSuffix(path.Base(cgroupPath), ".slice")
	if slice {
		return strings.HasSuffix(name, "-pod"+strings.ReplaceAll(uid, "-", "_"))
	}
	return name == "pod"+uid
}
