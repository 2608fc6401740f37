package kube

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

const (
	// MaxPods is the maximum number of pods with facts. The kubelet's default is 110 pods
	// on a node, and the largest tested values are about 1,000.
	MaxPods = 2000
	// maxFactsSize is the maximum of the facts' costs ([Pod.cost]), in bytes.
	maxFactsSize = 16 << 20
	// maxRefused is the maximum number of refused facts that are remembered.
	maxRefused = 200
	// maxNamed is how many refused facts the status and the log show.
	maxNamed = 10
	// leftInterval is how long the facts of a pod that has left the API are kept after
	// the runtime last listed the pod. It is listed at least every 30 s.
	leftInterval = time.Minute
)

// Facts are evictd's facts about pods. The methods are safe for concurrent use and never
// wait for I/O.
type Facts struct {
	mu      sync.Mutex
	pods    map[string]*fact
	size    int                   // the sum of the facts' costs
	list    uint64                // counts the lists that began
	refused map[string]refusedPod // facts that are not in pods, by UID
	count   uint64                // of refusals since the start
	asOf    time.Time             // when the API server last confirmed the facts; zero if unknown
	version uint64                // incremented by each change of a fact

	peer  peer
	state State
	seen  time.Time // when state came
}

// fact is the facts about one pod.
type fact struct {
	pod     *Pod
	spec    *evict.Pod // pod as the decision uses it; immutable, so that it can be shared
	size    int
	list    uint64    // the last list that had the pod
	left    bool      // the pod has left the API
	usedAt  time.Time // when the runtime last listed the pod
	pinned  string    // why a part of pod is from the first fact; "" if none is
	refused string    // how the facts contradict the runtime; "" if they do not
}

type refusedPod struct {
	Refusal
	list uint64
}

// peer is the evictd-kube of the session.
type peer struct {
	connected bool
	listed    bool // it has sent a complete list
	dated     bool // it has sent the age of the facts
	hello     Hello
	since     time.Time
	err       string // why there is no session, or why the last one ended
}

// NewFacts returns Facts without any.
func NewFacts() *Facts {
	return &Facts{pods: map[string]*fact{}, refused: map[string]refusedPod{}}
}

// Specification returns the facts about a running pod; nil if there are none, or if they
// contradict the runtime. running is the pod as the kubelet described it to the runtime:
// its names, whether it is static, the QoS class of its cgroup, and a critical priority if
// its oom_score_adj shows one.
func (f *Facts) Specification(running *evict.Pod) *evict.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.pods[running.UID]
	if known == nil || !running.Kubelet || running.Static {
		return nil
	}
	known.usedAt = time.Now()
	refused := contradiction(known.spec, running)
	if refused != "" && refused != known.refused {
		f.count++
	}
	known.refused = refused
	if refused != "" {
		return nil
	}
	return known.spec
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
}

// listed ends a complete list. A pod that is not in it has left the API.
func (f *Facts) listed(now time.Time) (pods int, refused []Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, known := range f.pods {
		if known.list != f.list && !known.left {
			known.left = true
			f.version++
		}
	}
	for uid, r := range f.refused {
		if r.list != f.list {
			delete(f.refused, uid)
		}
	}
	f.prune(now)
	f.peer.listed = true
	f.confirm()
	return len(f.pods), f.refusals()
}

// put stores the facts about a pod from a line of size bytes. It returns why they were
// refused, in full or in part; "" if they were not.
func (f *Facts) put(p *Pod, size int, now time.Time) (why string) {
	spec, err := p.parse()
	size = p.cost(size)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		err = f.add(p, spec, size, now)
	}
	if err == nil {
		delete(f.refused, printable(p.UID))
		return f.pods[p.UID].pinned
	}
	f.count++
	if known := f.pods[p.UID]; known != nil {
		known.list, known.left = f.list, false // the earlier facts stay
	}
	uid := printable(p.UID) // not checked, and up to MaxLine long
	if _, named := f.refused[uid]; named || len(f.refused) < maxRefused {
		f.refused[uid] = refusedPod{Refusal{Pod: p.key(), UID: uid, Why: printable(err.Error())}, f.list}
	}
	return err.Error()
}

func (f *Facts) add(p *Pod, spec *evict.Pod, size int, now time.Time) error {
	next := &fact{pod: p, spec: spec, size: size, list: f.list}
	before := f.pods[p.UID]
	if before != nil {
		if before.pod.Namespace != p.Namespace || before.pod.Name != p.Name {
			return fmt.Errorf("pod of UID %s was %s before", p.UID, before.pod.key())
		}
		next.usedAt, next.refused = before.usedAt, before.refused
		if next.pinned = pin(next, before.pod); next.pinned != "" && next.pinned != before.pinned {
			f.count++
		}
	} else {
		before = &fact{}
	}
	if (before.pod == nil && len(f.pods) >= MaxPods) || f.size-before.size+size > maxFactsSize {
		f.prune(now)
	}
	switch {
	case before.pod == nil && len(f.pods) >= MaxPods:
		return fmt.Errorf("more than %d pods", MaxPods)
	case f.size-before.size+size > maxFactsSize:
		return fmt.Errorf("facts of all pods take more than %d bytes", maxFactsSize)
	}
	f.size += size - before.size
	f.pods[p.UID] = next
	f.version++
	return nil
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

// gone records that a pod has left the API.
func (f *Facts) gone(uid string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.refused, printable(uid))
	if known := f.pods[uid]; known != nil && !known.left {
		known.left = true
		f.version++
	}
	f.prune(now)
}

// prune deletes the facts of pods that have left the API and the runtime.
func (f *Facts) prune(now time.Time) {
	for uid, known := range f.pods {
		if known.left && now.Sub(known.usedAt) >= leftInterval {
			f.size -= known.size
			delete(f.pods, uid)
			f.version++
		}
	}
}

// setState stores evictd-kube's state.
func (f *Facts) setState(s *State, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state, f.seen = *s, now
	f.state.Error = printable(s.Error)
	f.confirm()
	f.prune(now) // regularly
}

// confirm updates the age of the facts from the state, after a complete list. Within a
// session the age of the API server's last confirmation only falls. The first age of a
// session replaces an earlier one: that one may be of a wall clock that was set since.
func (f *Facts) confirm() {
	age := f.state.AgeMilliseconds
	if !f.peer.listed || age < 0 || age > int64(maxAge/time.Millisecond) {
		return
	}
	if at := f.seen.Add(-time.Duration(age) * time.Millisecond); !f.peer.dated || at.After(f.asOf) {
		f.asOf, f.peer.dated = at, true
	}
}

// maxAge is the largest valid age: a longer time would overflow.
const maxAge = 100 * 365 * 24 * time.Hour

// connect begins a session.
func (f *Facts) connect(hello *Hello, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peer = peer{connected: true, hello: *hello, since: now}
	f.state, f.seen = State{AgeMilliseconds: -1}, now
}

// disconnect ends the session that began at since, or reports a connection that did
// not become one.
func (f *Facts) disconnect(since time.Time, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.peer.connected && !f.peer.since.Equal(since) {
		return // another session has begun
	}
	f.peer.connected, f.peer.listed, f.peer.err = false, false, printable(why)
}

// Status describes the session and the facts.
type Status struct {
	// Connected is set while evictd-kube has a session, since Since. Software is its
	// version and Node the node that it reads.
	Connected bool
	Since     time.Time
	Software  string
	Node      string
	// Watching is set while evictd-kube watches the API server.
	Watching bool
	// Error is the reason if it is not connected or does not watch.
	Error string
	// AsOf is when the API server last confirmed the facts; zero if unknown.
	AsOf time.Time
	// Pods is the number of pods with facts, and Used that of running pods whose facts
	// agree with the runtime.
	Pods, Used int
	// Refusals counts the refused facts since the start, and Refused has the first
	// maxNamed that are refused now.
	Refusals uint64
	Refused  []Refusal
}

// Status returns the present status.
func (f *Facts) Status(now time.Time) Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{
		Connected: f.peer.connected, Software: printable(f.peer.hello.Software), Node: printable(f.peer.hello.Node),
		AsOf: f.asOf, Pods: len(f.pods), Refusals: f.count, Refused: f.refusals(), Error: f.peer.err,
	}
	if f.peer.connected {
		s.Since, s.Watching, s.Error = f.peer.since, f.state.Connected, f.state.Error
	}
	for _, known := range f.pods {
		if known.refused == "" && now.Sub(known.usedAt) < leftInterval {
			s.Used++
		}
	}
	return s
}

// refusals returns the first maxNamed facts that are refused now, sorted by name.
func (f *Facts) refusals() (list []Refusal) {
	for _, r := range f.refused {
		list = append(list, r.Refusal)
	}
	for uid, known := range f.pods {
		for _, why := range []string{known.refused, known.pinned} {
			if why != "" {
				list = append(list, Refusal{Pod: known.pod.key(), UID: uid, Why: printable(why)})
			}
		}
	}
	slices.SortFunc(list, func(a, b Refusal) int {
		return strings.Compare(a.Pod+"\x00"+a.UID+"\x00"+a.Why, b.Pod+"\x00"+b.UID+"\x00"+b.Why)
	})
	return list[:min(len(list), maxNamed)]
}

// About describes the facts about a pod.
type About struct {
	Owner   string    // kind/name, or none
	AsOf    time.Time // when the API server last confirmed them; zero if unknown
	Refused string    // why the facts are not used; "" if they are
	Reduced bool      // see Pod.Reduced
	Left    bool      // the pod has left the API
}

// About returns a description of the facts about a pod; ok is false if there are none.
func (f *Facts) About(uid string) (about About, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.pods[uid]
	if known == nil {
		r, refused := f.refused[printable(uid)]
		return About{Refused: r.Why}, refused
	}
	return About{
		Owner: printable(known.pod.Owner.text()), AsOf: f.asOf, Refused: printable(known.refused), Reduced: known.pod.Reduced, Left: known.left,
	}, true
}
