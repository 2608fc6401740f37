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

// world is what was known after one list. It is not changed once it is
// published, and its cgroups stay usable, if only to say that they are gone.
type world struct {
	listed    time.Time // when the list was last complete
	asked     time.Time // when that was asked for
	tried     time.Time // when the last list was asked for, whatever the runtime said
	pods      []*pod    // those that run, by key and UID
	handles   map[string]Handle
	guard     *evict.Guard
	trusted   []evict.KubeletProcess
	kubelet   evict.Kubelet
	crowd     crowd
	groups    []*cgroup.Cgroup // that are measured
	unstarted bool             // a container was made and does not run yet
	within    bool             // there are pods, and all that is theirs is below the pods' cgroup
}

// pod is one that runs, ready to be measured.
type pod struct {
	spec    evict.Pod // all but the usage
	members []*member
	// group is a cgroup that is the whole pod's and nobody else's; nil where
	// there is none. sandbox is the sandbox's own in that case, or nil.
	group   *cgroup.Cgroup
	sandbox *cgroup.Cgroup
	about   About
	// critical tells that an annotation makes it so.
	critical bool
	// declared tells that somebody names its requests, so that they need not be
	// concluded from what the runtime says.
	declared bool
}

// member is a running container of a pod.
type member struct {
	id, name string
	place    *place
	// unproven says why the cgroup is not proven to be the container's alone,
	// unmeasured why its usage can't be read there; each "" where it is.
	unproven, unmeasured string
	// failed is why the last reading did not succeed; nil where it did.
	failed atomic.Pointer[string]
	// init tells that the container is among the spec's init containers, and
	// slot its index there or among the others.
	init bool
	slot int
}

// listing is a pod on its way into the world.
type listing struct {
	*Pod
	kept   time.Time // since when it is only kept; zero where it is listed
	places map[string]*place
	home   *place // the sandbox's
}

// build makes the world of what the runtime listed last.
func (i *Inventory) build(now time.Time) *world {
	w := &world{handles: map[string]Handle{}, crowd: crowd{}, tried: now}
	rules := i.rules.Load()
	listings := i.listings(w)
	i.updateKubelets(i.containers(listings), w.asked, now)
	w.kubelet.Known = !w.listed.IsZero() || i.runtime == nil
	w.kubelet.Absent, w.kubelet.Process = rules.kubeletAbsent, i.kubeletProcess()
	never := i.guard(nil, nil)
	places := make(map[string]*place, len(i.places))
	claims := map[int]int{}
	for _, l := range listings {
		l.home = i.placeSandbox(&l.Sandbox)
		w.crowd.add(l.home)
		claims[l.home.pid]++
		for n := range l.Containers {
			if c := &l.Containers[n]; c.live() {
				p := i.placeContainer(c, i.places[c.ID], never)
				places[c.ID], l.places[c.ID] = p, p
				w.crowd.add(p)
				claims[p.pid]++
				w.unstarted = w.unstarted || c.State == cri.StateCreated
			}
		}
	}
	i.places = places
	w.within = i.within(listings)

	capacity, capacityErr := i.capacity()
	uids := map[string]bool{}
	slices.SortFunc(listings, func(a, b *listing) int {
		return cmp.Or(a.Sandbox.Created.Compare(b.Sandbox.Created), cmp.Compare(a.Sandbox.ID, b.Sandbox.ID))
	})
	for _, l := range listings {
		p := &pod{}
		for n := range l.Containers {
			c := &l.Containers[n]
			at := l.places[c.ID]
			if !c.running() || at == nil || at.gone || c.State == cri.StateUnknown && at.group == nil {
				continue
			}
			p.members = append(p.members, newMember(c, at, w.crowd, claims))
		}
		if len(p.members) == 0 {
			continue
		}
		d := deduction{rules: rules, kubelet: w.kubelet, capacity: capacity, capacityErr: capacityErr, listing: l}
		if i.specs != nil {
			d.spec = i.specs.Specification(l.UID)
		}
		d.fill(p)
		// Two pods that run must not be taken for one: with the operator's
		// tools, a UID is whatever was typed.
		for p.spec.UID == "" || uids[p.spec.UID] {
			p.spec.UID += l.Sandbox.ID
		}
		uids[p.spec.UID] = true
		i.measureBy(p, l, w.crowd)
		w.groups = append(w.groups, p.measuredBy()...)
		w.handles[p.spec.UID] = d.handle(p)
		w.pods = append(w.pods, p)
	}
	slices.SortFunc(w.pods, func(a, b *pod) int {
		return cmp.Or(cmp.Compare(a.spec.Namespace, b.spec.Namespace), cmp.Compare(a.spec.Name, b.spec.Name), cmp.Compare(a.spec.UID, b.spec.UID))
	})
	w.guard, w.trusted = i.guard(listings, places), i.trusted
	return w
}

// within reports whether there are pods, and all that is theirs is known to be
// below the cgroup of all pods.
func (i *Inventory) within(listings []*listing) bool {
	kubepods, ok, err := i.hierarchy.Kubepods(i.cgroupRoot)
	if err != nil || !ok {
		return false
	}
	below := func(p *place) bool { return p.gone || strings.HasPrefix(p.path, kubepods.Path+"/") }
	return len(listings) > 0 && !slices.ContainsFunc(listings, func(l *listing) bool {
		for _, p := range l.places {
			if !below(p) {
				return true
			}
		}
		return !below(l.home)
	})
}

// listings returns the pods of the runtime's list that have a live sandbox or
// container.
func (i *Inventory) listings(w *world) (listings []*listing) {
	r := i.runtime
	if r == nil {
		return nil
	}
	w.listed, w.asked, w.tried = r.listed, r.asked, r.tried
	for n := range r.list.Pods {
		p := &r.list.Pods[n]
		w.kubelet.Pods = w.kubelet.Pods || evict.MadeByKubelet(p.Sandbox.Annotations)
		if p.Sandbox.Ready || slices.ContainsFunc(p.Containers, func(c Container) bool { return c.live() }) {
			listings = append(listings, &listing{Pod: p, kept: r.partial[p.Sandbox.ID], places: map[string]*place{}})
		}
	}
	return listings
}

// capacity is what the kubelet computes scores from: the node's memory.
func (i *Inventory) capacity() (int64, error) {
	info, err := meminfo.Read(i.procfs)
	if err != nil {
		return 0, err
	}
	return signed(info.MemTotal), nil
}

func newMember(c *Container, at *place, all crowd, claims map[int]int) *member {
	m := &member{id: c.ID, name: c.Name, place: at, unproven: at.unproven}
	switch other := all.beside(at); {
	case at.group == nil:
		m.unmeasured = at.unproven
	case other != nil:
		m.unproven = fmt.Sprintf("cgroup %s also holds %s", at.path, other.id)
		m.unmeasured = m.unproven
	case !at.mine:
		m.unmeasured = at.unproven
	}
	if at.pid != 0 && claims[at.pid] > 1 && m.unproven == "" {
		m.unproven = fmt.Sprintf("the runtime names process %d for another container too", at.pid)
	}
	return m
}

// measureBy chooses the cgroups that tell what the pod uses as a whole: one that
// is named after it and holds nobody else, else the sum of what it consists of.
func (i *Inventory) measureBy(p *pod, l *listing, all crowd) {
	if parent := p.parent(); parent != "" && namedAfterPod(parent, l.UID) {
		own := len(l.places)
		if l.home.path != "" {
			own++
		}
		if below := all[parent]; len(below) <= own && !slices.ContainsFunc(below, func(o *place) bool { return o != l.home && l.places[o.id] != o }) {
			if group, err := i.groups.get(parent); err == nil {
				p.group = group
				return
			}
		}
	}
	if l.home.path != "" && all.beside(l.home) == nil {
		if group, err := i.groups.get(l.home.path); err == nil {
			p.sandbox = group
		}
	}
}

// measuredBy lists the cgroups that are read to measure the pod.
func (p *pod) measuredBy() (groups []*cgroup.Cgroup) {
	for _, m := range p.members {
		if m.unmeasured == "" {
			groups = append(groups, m.place.group)
		}
	}
	for _, g := range []*cgroup.Cgroup{p.group, p.sandbox} {
		if g != nil {
			groups = append(groups, g)
		}
	}
	return groups
}

// parent returns the cgroup right above all of the pod's containers, "" where
// there is none.
func (p *pod) parent() string {
	parent := ""
	for _, m := range p.members {
		switch above := path.Dir(m.place.path); {
		case m.place.path == "" || parent != "" && above != parent:
			return ""
		default:
			parent = above
		}
	}
	return parent
}

// namedAfterPod reports whether a cgroup has the name that the kubelet gives to
// a pod's (pkg/kubelet/cm/pod_container_manager_linux.go).
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
