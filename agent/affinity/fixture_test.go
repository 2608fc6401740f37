package affinity

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	licence     = "example.com/licence"
	requiresKey = `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"example.com/licence","operator":"In","values":["valid"]}]}]}`
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// scene is a cluster, and Step's state in it.
type scene struct {
	t         testing.TB
	cfg       Config
	nodes     map[string]*Node
	pods      map[types.UID]*Pod
	workloads map[string]Workload
	outcomes  []Outcome
	state     State
	now       time.Time
	events    []Event
	// inputs, if set, is called with the inputs before each call of Step.
	inputs func(*Inputs)
}

// newScene has ten nodes, of which all but node-0 have the label.
func newScene(t testing.TB) *scene {
	s := &scene{
		t: t, cfg: DefaultConfig(), now: start,
		nodes: map[string]*Node{}, pods: map[types.UID]*Pod{}, workloads: map[string]Workload{},
	}
	s.cfg.Enforce = true
	for i := range 10 {
		s.node(i, "valid")
	}
	s.nodes["node-0"].Object.Labels[licence] = "expired"
	return s
}

func (s *scene) node(i int, value string) *Node {
	name := fmt.Sprint("node-", i)
	s.nodes[name] = &Node{Ready: true, Object: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{licence: value}},
	}}
	return s.nodes[name]
}

func mustRequirement(t testing.TB, pod *corev1.Pod) *Requirement {
	t.Helper()
	r, err := NewRequirement(pod)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// pod adds a pod of a workload with a replica, all ready.
func (s *scene) pod(uid, node string) *Pod {
	s.t.Helper()
	workload := "Deployment/default/" + uid
	if i := strings.Index(uid, "."); i > 0 {
		workload = "Deployment/default/" + uid[:i]
	}
	s.workloads[workload] = Workload{Desired: 1, Ready: 1}
	p := &Pod{
		PodKey:  PodKey{Namespace: "default", Name: uid, UID: types.UID(uid)},
		Node:    node,
		Created: s.now.Add(-time.Hour),
		Requirement: mustRequirement(s.t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: uid, Annotations: map[string]string{Annotation: requiresKey}}}),
		Workload: workload,
	}
	s.pods[p.UID] = p
	return p
}

// observation returns the inputs: the pods on nodes that they don't match.
func (s *scene) observation() Inputs {
	in := Inputs{Workloads: s.workloads, Config: s.cfg, Outcomes: s.outcomes}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		in.Nodes = append(in.Nodes, *s.nodes[name])
	}
	for _, uid := range slices.Sorted(maps.Keys(s.pods)) {
		p := *s.pods[uid]
		if n := s.nodes[p.Node]; n != nil {
			p.Verdict = p.Requirement.Violates(n.Object, false)
		}
		if !p.Verdict.Match {
			in.Violating = append(in.Violating, p)
		}
	}
	return in
}

// step calls Step, and checks what holds for each of its results.
func (s *scene) step() Orders {
	s.t.Helper()
	in := s.observation()
	if s.inputs != nil {
		s.inputs(&in)
	}
	s.outcomes = nil
	state, orders := Step(s.state, in, s.now)
	s.state = state
	s.events = append(s.events, orders.Events...)
	if !orders.Wake.IsZero() && !orders.Wake.After(s.now) {
		s.t.Fatalf("at %s: Wake = %s; want later", s.at(), orders.Wake.Sub(start))
	}
	for uid, v := range state.Violations {
		inFlight := slices.ContainsFunc(slices.Collect(maps.Values(state.Workloads)), func(b Backoff) bool { return b.InFlight == uid })
		if (v.Held == "") != inFlight {
			s.t.Fatalf("at %s: pod %s: Held = %q, in flight = %t; want exactly one", s.at(), uid, v.Held, inFlight)
		}
		if v.Held != "" && !slices.Contains(Holds(), v.Held) {
			s.t.Fatalf("pod %s: Held = %q; want one of Holds()", uid, v.Held)
		}
	}
	if len(state.Violations) != len(in.Violating) {
		s.t.Fatalf("violations = %d; want %d", len(state.Violations), len(in.Violating))
	}
	return orders
}

func (s *scene) at() time.Duration { return s.now.Sub(start) }

// after lets time pass, and steps.
func (s *scene) after(d time.Duration) Orders {
	s.t.Helper()
	s.now = s.now.Add(d)
	return s.step()
}

// outcome ends the eviction of a pod.
func (s *scene) outcome(e Eviction, kind OutcomeKind) {
	s.outcomes = append(s.outcomes, Outcome{ID: e.ID, Pod: e.Pod.UID, Kind: kind, At: s.now})
}

// run steps at each Wake for some time. It answers each eviction at once as answer says, and returns how long after
// the start of the run each was ordered.
func (s *scene) run(d time.Duration, answer func(Eviction) Outcome) []time.Duration {
	s.t.Helper()
	var at []time.Duration
	begin := s.now
	for orders := s.step(); ; orders = s.step() {
		for _, e := range orders.Evict {
			at = append(at, s.now.Sub(begin))
			o := answer(e)
			o.ID, o.Pod, o.At = e.ID, e.Pod.UID, s.now
			s.outcomes = append(s.outcomes, o)
			s.now = s.now.Add(time.Millisecond)
		}
		if len(s.outcomes) > 0 && s.now.Sub(begin) <= d {
			continue
		}
		if orders.Wake.IsZero() || orders.Wake.Sub(begin) > d || s.now.Sub(begin) > d {
			s.now = begin.Add(d)
			return at
		}
		s.now = orders.Wake
	}
}

func (s *scene) count(reason string) int {
	n := 0
	for _, e := range s.events {
		if e.Reason == reason {
			n++
		}
	}
	return n
}

// evicted names the pods of orders.
func evicted(o Orders) string {
	var names []string
	for _, e := range o.Evict {
		names = append(names, e.Pod.Name)
	}
	return strings.Join(names, " ")
}

func (s *scene) held(uid string) Hold { return s.state.Violations[types.UID(uid)].Held }
