package affinity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestStormNodes counts the nodes on which pods violate.
func TestStormNodes(t *testing.T) {
	tests := []struct {
		name                 string
		nodes, affected, pct int
		exempt               func(*Pod)
		want                 bool
	}{
		{"as many as allowed", 10, 2, 20, nil, false},
		{"one more", 10, 3, 20, nil, true},
		{"rounded down", 14, 3, 20, nil, true},
		{"rounded down, allowed", 15, 3, 20, nil, false},
		{"one of two", 2, 1, 20, nil, false},
		{"two of three", 3, 2, 20, nil, true},
		{"one with 0 %", 10, 1, 0, nil, false},
		{"all with 100 %", 10, 9, 100, nil, false},
		{"DaemonSet's pods", 10, 3, 20, func(p *Pod) { p.DaemonSet = true }, false},
		{"mirror pods", 10, 3, 20, func(p *Pod) { p.Mirror = true }, false},
		{"completed pods", 10, 3, 20, func(p *Pod) { p.Completed = true }, false},
		{"terminating pods", 10, 3, 20, func(p *Pod) { p.Terminating = true }, false},
		{"pods whose own change began it", 10, 3, 20, func(p *Pod) { p.Own = true }, false},
		{"bare pods", 10, 3, 20, func(p *Pod) { p.Workload = "" }, false},
		{"bare pods that are evicted", 10, 3, 20, func(p *Pod) { p.Workload, p.EvictBare = "", true }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t)
			clear(s.nodes)
			s.cfg.StormPercentage = tt.pct
			for i := range tt.nodes {
				s.node(i, "valid")
			}
			for i := range tt.affected {
				s.node(i, "expired")
				p := s.pod(fmt.Sprint("p", i), fmt.Sprint("node-", i))
				if i > 0 && tt.exempt != nil {
					tt.exempt(p)
				}
			}
			// Two pods on a node count once.
			s.pod("second", "node-0")
			s.step()
			orders := s.after(30 * time.Second)
			if got := len(orders.Evict) == 0; got != tt.want {
				t.Errorf("storm = %t; want %t", got, tt.want)
			}
			if got := s.state.Storm != ""; got != tt.want {
				t.Errorf("State.Storm = %q; want a storm: %t", s.state.Storm, tt.want)
			}
			if tt.want && s.held("p0") != HoldStorm {
				t.Errorf("Held = %q; want %q", s.held("p0"), HoldStorm)
			}
		})
	}
}

// TestStormConfirmed ends a storm by its id, which the event names. It does not confirm the next one.
func TestStormConfirmed(t *testing.T) {
	s := newScene(t)
	for i := range 3 {
		s.node(i, "expired")
		s.pod(fmt.Sprint("p", i), fmt.Sprint("node-", i))
	}
	s.run(2*time.Hour, nil)
	if got := s.count(EventStorm); got != 2 {
		t.Errorf("events in two hours = %d; want 2", got)
	}
	id := s.state.Storm
	if text := s.events[len(s.events)-1].Message; id == "" || !strings.Contains(text, "storm_confirmed in ConfigMap cluster-affinity-config is "+id) {
		t.Errorf("message = %q; want the id %q", text, id)
	}
	s.cfg.StormConfirmed = "other, " + id
	if got := evicted(s.step()); got != "p0 p1 p2" {
		t.Errorf("evicted when confirmed = %q; want p0 p1 p2", got)
	}
	s.cfg.StormConfirmed = id
	s.node(0, "valid")
	s.after(time.Minute)
	if got := s.state.Storm; got != "" {
		t.Errorf("Storm with two nodes = %q; want none", got)
	}
	s.node(0, "expired")
	s.after(time.Minute)
	if got := s.state.Storm; got == "" || got == id {
		t.Errorf("id of the next storm = %q; want a new one, not %q", got, id)
	}
	if got := s.after(30 * time.Second); len(got.Evict) > 0 || s.held("p0") != HoldStorm {
		t.Errorf("Held in the next storm = %q; want %q", s.held("p0"), HoldStorm)
	}
}

// TestStormKey holds back the pods that lack a label that no node has, and no others.
func TestStormKey(t *testing.T) {
	s := newScene(t)
	s.cfg.EvictUnplaceable = true
	s.node(1, "expired")
	other := s.pod("other", "node-1")
	other.Requirement = mustRequirement(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{Annotation: strings.ReplaceAll(requiresKey, licence, "zone")}}})
	s.pod("a", "node-0")
	for _, n := range s.nodes {
		delete(n.Object.Labels, licence)
		n.Object.Labels["zone"] = "z"
	}
	s.step()
	orders := s.after(30 * time.Second)
	if got := evicted(orders); got != "other" {
		t.Errorf("evicted = %q; want other", got)
	}
	if got := s.held("a"); got != HoldStorm {
		t.Errorf("Held of a = %q; want %q", got, HoldStorm)
	}
	for _, e := range s.events {
		if e.Reason == EventStorm && (e.Pod.Name != "a" || !strings.Contains(e.Message, licence)) {
			t.Errorf("event at %s = %q; want one at a with the key", e.Pod.Name, e.Message)
		}
	}
	if got := s.count(EventStorm); got != 1 {
		t.Errorf("events of the storm = %d; want 1", got)
	}
	// Both storms at once: each has to be confirmed.
	s.node(2, "x")
	s.nodes["node-2"].Object.Labels["zone"] = "valid"
	delete(s.nodes["node-2"].Object.Labels, licence)
	for i := range 3 {
		p := s.pod(fmt.Sprint("p", i), fmt.Sprint("node-", 3+i))
		p.Requirement = other.Requirement
	}
	s.after(time.Second)
	nodes, key := s.state.Storms[clusterStorm].ID, s.state.Storms[licence].ID
	if s.state.Storm != nodes || nodes == "" || key == "" || nodes == key {
		t.Fatalf("Storms = %v, Storm = %q; want both", s.state.Storms, s.state.Storm)
	}
	s.cfg.StormConfirmed = nodes
	if s.after(time.Second); s.held("a") != HoldStorm {
		t.Errorf("Held of a with the nodes confirmed = %q; want %q", s.held("a"), HoldStorm)
	}
	s.cfg.StormConfirmed = nodes + "," + key
	if got := evicted(s.after(time.Second)); !strings.Contains(got, "a") {
		t.Errorf("evicted with both confirmed = %q; want a", got)
	}
	// One node with the key ends the storm.
	s.cfg.StormConfirmed = ""
	s.nodes["node-9"].Object.Labels[licence] = ""
	s.after(time.Second)
	if _, ok := s.state.Storms[licence]; ok {
		t.Errorf("Storms = %v; want none of the key", s.state.Storms)
	}
}

// TestManyRequirements compares no more than it may in a step, and each in its turn.
func TestManyRequirements(t *testing.T) {
	const nodes, requirements = 2000, 120
	s := newScene(t)
	for i := range nodes {
		s.node(i, "valid")
	}
	s.cfg.PerMinute = 1000
	for i := range requirements {
		p := s.pod(fmt.Sprintf("p%03d", i), "node-0")
		p.Requirement = mustRequirement(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Annotations: map[string]string{Annotation: strings.ReplaceAll(requiresKey, "valid", fmt.Sprint("v", i))}}})
	}
	// Only the last one fits another node.
	s.node(nodes-1, fmt.Sprint("v", requirements-1))
	last := fmt.Sprintf("p%03d", requirements-1)
	s.step()
	s.after(30 * time.Second)
	per := maxComparisons / nodes
	if got := s.state.Held(); got[HoldNoNodeFits] != per || got[HoldNotCompared] != requirements-per {
		t.Errorf("Held() = %v; want %d compared", got, per)
	}
	orders := s.after(time.Second)
	if got := s.state.Held(); got[HoldNoNodeFits] != 2*per || got[HoldNotCompared] != requirements-2*per {
		t.Errorf("Held() = %v; want %d compared", got, 2*per)
	}
	if got := orders.Wake.Sub(s.now); got > time.Second {
		t.Errorf("Wake in %s; want at most 1s", got)
	}
	if got := evicted(s.after(time.Second)); got != last {
		t.Errorf("evicted in the third step = %q; want %s", got, last)
	}
	// What was compared the longest ago is next.
	if got := s.state.Violations[types.UID("p000")].Compared; !got.Equal(s.now) {
		t.Errorf("p000 compared at %s; want %s", got, s.now)
	}
}
