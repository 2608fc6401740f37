package kube

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Facts are evictd's facts about pods. The methods are safe for concurrent use and never
// wait for I/O.
type Facts struct {
	// Busy reports whether a threshold is met or a victim is in flight; nil means never.
	// It is set before the first use of the facts.
	Busy func() bool
	// Forbidden reports whether the API server has refused the report of an eviction of the pod
	// with a UID ([Orders.Forbidden]); nil means never. It is set before the first use of the facts.
	Forbidden func(uid string) bool

	mu      sync.Mutex
	pods    map[string]*fact
	size    int                   // the sum of the facts' sizes
	list    uint64                // counts the lists that began
	refused map[string]refusedPod // facts that are not in pods, by UID
	count   uint64                // of refusals since the start
	asOf    time.Time             // when the API server last confirmed the facts; zero if unknown
	version uint64                // incremented by each change of a fact
	changed bool                  // facts that the decision uses have changed, of a pod that the runtime lists

	room    room
	kubelet kubeletFacts
	peer    peer
	state   State
	seen    time.Time // when state came
	// arrivalsAsked is when Arrivals was last called.
	arrivalsAsked time.Time
	// completed is set once a complete list has come since the start.
	completed bool
	// cannotReport is why evictd-kube may not report evictions; nil if it has never said.
	cannotReport   *string
	canReportAgain bool // cannotReport was set to "", and had a reason before
}

// fact is the facts about one pod.
type fact struct {
	pod        *Pod
	spec       *evict.Pod // pod as the decision uses it; immutable, so that it can be shared
	size       int        // the memory that all this takes, see [Pod.cost]
	list       uint64     // the last list that had the pod
	arrived    time.Time  // when the pod came to the node; zero if unknown
	gone       bool       // the pod is no longer in the API
	usedAt     time.Time  // when the runtime last listed the pod; zero for never
	restoredAt time.Time  // when the facts were loaded from disk; zero if they were not
	pinned     string     // why a part of pod is from the first fact; "" if none is
	refused    string     // how the facts contradict the runtime; "" if they do not
}

// listed reports whether the runtime lists the pod.
func (k *fact) listed(now time.Time) bool {
	return !k.usedAt.IsZero() && now.Sub(k.usedAt) < retention
}

// expired reports whether neither the API nor the runtime has the pod. After a restart the
// runtime may not have been listed yet.
func (k *fact) expired(now time.Time) bool {
	return k.gone && !k.listed(now) && (k.restoredAt.IsZero() || now.Sub(k.restoredAt) >= retention)
}

// NewFacts returns Facts without any.
func NewFacts() *Facts {
	return &Facts{pods: map[string]*fact{}, refused: map[string]refusedPod{}, room: room{unknown: map[string]unknownPod{}, wake: make(chan struct{}, 1)}, kubelet: kubeletFacts{wake: make(chan struct{}, 1)}}
}

// Specification returns the facts about a running pod; nil if there are none, or if they
// contradict the runtime. running is the pod as the kubelet described it to the runtime:
// its names, whether it is static, the QoS class of its cgroup, and a critical priority if
// its oom_score_adj shows one.
func (f *Facts) Specification(running *evict.Pod) *evict.Pod {
	if !running.Kubelet || running.Static {
		return nil
	}
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.pods[running.UID]
	if known == nil {
		f.noteUnknown(running.UID, now)
		return nil
	}
	known.usedAt = now
	why := contradiction(known.spec, running)
	if why != known.refused {
		if why != "" {
			f.count++
		}
		f.size += len(why) - len(known.refused)
		known.size += len(why) - len(known.refused)
		known.refused = why
	}
	if why != "" {
		return nil
	}
	if known.gone && !known.spec.Ending {
		spec := *known.spec
		spec.Ending = true // its kubelet ends it, or has ended it
		return &spec
	}
	return known.spec
}

// DaemonSet reports whether a DaemonSet owns the pod, according to the facts that are used.
func (f *Facts) DaemonSet(uid string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.pods[uid]
	return known != nil && known.refused == "" && known.pod.Owner.daemonSet()
}

// arrivalsWatched is how long after a call of Arrivals a new pod is a change of the facts.
const arrivalsWatched = 15 * time.Second

// Arrivals returns the pods that have come to the node after since and of which the runtime has
// listed no container, without those that must not run twice: a container of these may be
// starting, and its end can't be waited for. A pod whose report was forbidden is Unreportable. While
// it is called, a new BestEffort pod is a change of the facts that the decision uses.
func (f *Facts) Arrivals(since, now time.Time) (pods []evict.Pod) {
	if f == nil { // there is no evictd-kube
		return nil
	}
	for _, pod := range f.newPods(since, now) {
		if f.Forbidden != nil && f.Forbidden(pod.UID) {
			pod.Unreportable = "the API server refused the report of an earlier eviction"
		}
		pods = append(pods, pod)
	}
	return pods
}

// newPods is Arrivals without regard to forbidden reports.
func (f *Facts) newPods(since, now time.Time) (pods []evict.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrivalsAsked = now
	for _, known := range f.pods {
		p := known.pod
		if !known.spec.Arrived.After(since) || !known.usedAt.IsZero() || known.gone || !p.Deleted.IsZero() || p.Exclusive != "" || p.Phase != "Pending" {
			continue
		}
		spec := *known.spec
		spec.Kubelet, spec.ProtectedReason = true, evict.ProtectedNamespace(p.Namespace)
		pods = append(pods, spec)
	}
	return pods
}

// Exclusive returns why two instances of the pod with a UID must not run at the same time
// ([Pod.Exclusive]); "" if they may, and ExclusiveUnknown without facts.
func (f *Facts) Exclusive(uid string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known := f.pods[uid]; known != nil {
		return known.pod.Exclusive
	}
	return ExclusiveUnknown
}

// contradiction returns how facts contradict a running pod; "" if they do not.
func contradiction(facts, running *evict.Pod) string {
	switch {
	case facts.Namespace != running.Namespace || facts.Name != running.Name:
		return "the runtime's pod of this UID is " + printable(running.Key())
	case running.QoS != "" && facts.QoSClass() != running.QoS:
		return fmt.Sprintf("its QoS class is %s, and its cgroup is that of a %s pod", facts.QoSClass(), running.QoS)
	case running.Critical() && !facts.Critical():
		return fmt.Sprintf("its priority is %d, and its oom_score_adj is that of a node-critical pod", *facts.Priority)
	}
	return ""
}

// begin starts a complete list.
func (f *Facts) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list++
	f.room.overflowed, f.room.missing = false, false
}

// listed ends a complete list. A pod that is not in it is no longer in the API.
func (f *Facts) listed(now time.Time) (pods int, refused []Refusal) {
	f.mu.Lock()
	for _, known := range f.pods {
		if known.list != f.list && !known.gone {
			f.noteGone(known, now)
		}
	}
	for uid, r := range f.refused {
		if r.list != f.list {
			delete(f.refused, uid)
		}
	}
	f.prune(now)
	f.completed = true
	if !f.peer.listed {
		f.peer.listed, f.peer.listedAt = true, now
	}
	f.noteCannotReport()
	f.confirm()
	pods, first := len(f.pods), f.firstRefused()
	f.mu.Unlock()
	return pods, shown(first)
}

// put stores the facts about a pod. It returns why they were refused, in full or in part; ""
// if they were not.
func (f *Facts) put(p *Pod, now time.Time) (why string) {
	spec, err := p.parse()
	if err == nil && f.scarce(p) {
		var small *Pod
		if small, spec, err = p.smallest(); err == nil {
			p = small
		}
	}
	return f.store(p, spec, err, now)
}

// store is put for facts that were parsed, with the error of that.
func (f *Facts) store(p *Pod, spec *evict.Pod, err error, now time.Time) (why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		err = f.add(p, spec, now)
	}
	if err == nil {
		delete(f.refused, p.UID)
		return f.pods[p.UID].pinned
	}
	if known := f.pods[p.UID]; known != nil {
		known.list, known.gone = f.list, false // the earlier facts stay
	}
	f.refuse(p, err.Error())
	return err.Error()
}

func (f *Facts) add(p *Pod, spec *evict.Pod, now time.Time) error {
	next := &fact{pod: p, spec: spec, list: f.list}
	before := f.pods[p.UID]
	if before != nil {
		if before.pod.Namespace != p.Namespace || before.pod.Name != p.Name {
			return fmt.Errorf("pod of UID %s was %s before", p.UID, before.pod.key())
		}
		f.changed = f.changed || before.gone && before.listed(now)
		before.gone = false // so that it is not deleted now
		next.usedAt, next.restoredAt, next.refused = before.usedAt, before.restoredAt, before.refused
		if next.pinned = pin(next, before.pod); next.pinned != "" && next.pinned != before.pinned {
			f.count++
		}
	} else {
		before = &fact{}
		next.usedAt = f.room.unknown[p.UID].listed
	}
	if before.pod != nil && next.pinned == before.pinned && reflect.DeepEqual(next.pod, before.pod) {
		before.list = f.list
		return nil
	}
	next.setArrived(f.arrival(next.pod, before, now))
	next.size = next.pod.cost() + len(next.pinned) + len(next.refused)
	if err := f.makeRoom(next, before, now); err != nil {
		return err
	}
	delete(f.room.unknown, p.UID)
	f.size += next.size - before.size
	f.pods[p.UID] = next
	f.version++
	f.changed = f.changed || next.listed(now) && !(before.pod != nil && before.pod.decidesAs(next.pod)) ||
		before.pod == nil && now.Sub(f.arrivalsAsked) < arrivalsWatched && next.spec.QoSClass() == evict.BestEffort
	return nil
}

// setArrived sets when the pod came to the node, before others see the fact. The decision does not
// learn it from reduced facts: labels or tolerations that exempt the pod may have been left out.
func (k *fact) setArrived(at time.Time) {
	k.arrived, k.spec.Arrived = at, at
	if k.pod.Reduced {
		k.spec.Arrived = time.Time{}
	}
}

// arrival returns when a pod came to the node: when it was bound by the API server's clock, or
// when evictd had its first facts by the node's, whichever is earlier; zero if one of these is
// unknown. Clocks that differ do not make a pod newer than it is. The API server's times are cut to
// seconds, so the pod was bound within the second after its time.
func (f *Facts) arrival(p *Pod, before *fact, now time.Time) time.Time {
	first := before.arrived
	if before.pod == nil && !f.mayHaveBeenThere(p.UID) {
		first = now
	}
	if first.IsZero() || p.Bound.IsZero() {
		return time.Time{}
	}
	if bound := p.Bound.Add(time.Second - 1); bound.Before(first) {
		return bound
	}
	return first
}

// mayHaveBeenThere reports whether a pod may have come to the node before the first facts that can
// be stored now: those before the first complete list, those of a pod that the runtime has
// listed before, and those that were refused or deleted before.
func (f *Facts) mayHaveBeenThere(uid string) bool {
	_, refused := f.refused[uid]
	_, unknown := f.room.unknown[uid]
	return !f.completed || refused || unknown
}

// takeChanged reports whether facts that the decision uses have changed since the last call, of
// a pod that the runtime lists. Those of another pod are used when it is listed.
func (f *Facts) takeChanged() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.changed
	f.changed = false
	return changed
}

// decidesAs reports whether convert returns the same for other facts about the pod. It returns
// false for equal amounts with different texts.
func (p *Pod) decidesAs(other *Pod) bool {
	a, b := *p, *other
	for _, p := range []*Pod{&a, &b} {
		p.Exclusive, p.RestartPolicy, p.Phase, p.Bound, p.Owner.Name = "", "", "", time.Time{}, ""
	}
	return reflect.DeepEqual(a, b)
}

// pin restores priority, class and owner from the earlier facts, and returns what differed;
// "" if nothing did.
func pin(next *fact, before *Pod) string {
	p := next.pod
	var changed []string
	if p.Priority != before.Priority {
		changed = append(changed, fmt.Sprintf("priority is %d and was %d", p.Priority, before.Priority))
	}
	if p.PriorityClassName != before.PriorityClassName {
		changed = append(changed, fmt.Sprintf("priority class is %q and was %q", p.PriorityClassName, before.PriorityClassName))
	}
	if p.Owner != before.Owner {
		changed = append(changed, fmt.Sprintf("owner is %q and was %q", p.Owner.text(), before.Owner.text()))
	}
	if len(changed) == 0 {
		return ""
	}
	pod, spec := *p, *next.spec
	pod.Priority, pod.PriorityClassName, pod.Owner = before.Priority, before.PriorityClassName, before.Owner
	spec.Priority, spec.PriorityClassName, spec.DaemonSet = new(before.Priority), before.PriorityClassName, before.Owner.daemonSet()
	next.pod, next.spec = &pod, &spec
	return strings.Join(changed, ", ") + "; the first is used"
}

func (o Owner) daemonSet() bool { return o.Kind == "DaemonSet" }

func (o Owner) text() string {
	if o == (Owner{}) {
		return "none"
	}
	return o.Kind + "/" + o.Name
}

// gone records that a pod is no longer in the API.
func (f *Facts) gone(uid string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.refused, printable(uid))
	known := f.pods[uid]
	if known == nil {
		return
	}
	if !known.gone {
		f.noteGone(known, now)
	}
	if known.expired(now) {
		f.free(known)
	}
}

// noteGone records that a pod has left the API. Its kubelet ends it if it still runs.
func (f *Facts) noteGone(known *fact, now time.Time) {
	known.gone = true
	f.version++
	f.changed = f.changed || known.listed(now)
}
