package affinity

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestGates closes each gate for one pod. Without it the pod is evicted after the debounce.
func TestGates(t *testing.T) {
	taint := func(effect corev1.TaintEffect) func(*scene, *Pod) {
		return func(s *scene, _ *Pod) {
			for _, n := range s.nodes {
				n.Object.Spec.Taints = []corev1.Taint{{Key: "k", Value: "v", Effect: effect}}
			}
		}
	}
	others := func(change func(*Node)) func(*scene, *Pod) {
		return func(s *scene, _ *Pod) {
			for name, n := range s.nodes {
				if name != "node-0" {
					change(n)
				}
			}
		}
	}
	requires := func(spec corev1.PodSpec) func(*scene, *Pod) {
		return func(s *scene, p *Pod) {
			p.Requirement = mustRequirement(s.t, &corev1.Pod{Spec: spec,
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{Annotation: requiresKey}}})
		}
	}
	tests := []struct {
		name  string
		setup func(*scene, *Pod)
		want  Hold
	}{
		{"nothing", func(*scene, *Pod) {}, ""},
		{"mirror", func(_ *scene, p *Pod) { p.Mirror = true }, HoldStatic},
		{"DaemonSet", func(_ *scene, p *Pod) { p.DaemonSet = true }, HoldDaemonSet},
		{"completed", func(_ *scene, p *Pod) { p.Completed = true }, HoldCompleted},
		{"terminating", func(_ *scene, p *Pod) { p.Terminating = true }, HoldTerminating},
		{"bare", func(_ *scene, p *Pod) { p.Workload = "" }, HoldBare},
		{"bare with the annotation", func(_ *scene, p *Pod) { p.Workload, p.EvictBare = "", true }, ""},
		{"bare with the configuration", func(s *scene, p *Pod) { p.Workload, s.cfg.EvictBare = "", true }, ""},
		{"node not Ready", func(s *scene, _ *Pod) { s.nodes["node-0"].Ready = false }, HoldNodeNotReady},
		{"node stale", func(s *scene, _ *Pod) { s.nodes["node-0"].Stale = true }, HoldNodeStale},
		{"node fenced", func(s *scene, _ *Pod) { s.nodes["node-0"].Fenced = true }, HoldNodeFenced},
		{"node gone", func(s *scene, _ *Pod) { delete(s.nodes, "node-0") }, HoldNodeGone},
		{"node shutting down", func(s *scene, _ *Pod) { s.nodes["node-0"].ShuttingDown = true }, HoldNodeDrained},
		{"node cordoned", func(s *scene, _ *Pod) { s.nodes["node-0"].Object.Spec.Unschedulable = true }, HoldNodeDrained},
		{"others don't match", others(func(n *Node) { n.Object.Labels[licence] = "expired" }), HoldNoNodeFits},
		{"others not Ready", others(func(n *Node) { n.Ready = false }), HoldNoNodeFits},
		{"others stale", others(func(n *Node) { n.Stale = true }), HoldNoNodeFits},
		{"others fenced", others(func(n *Node) { n.Fenced = true }), HoldNoNodeFits},
		{"others shutting down", others(func(n *Node) { n.ShuttingDown = true }), HoldNoNodeFits},
		{"others cordoned", others(func(n *Node) { n.Object.Spec.Unschedulable = true }), HoldNoNodeFits},
		{"others cordoned, evicted all the same", func(s *scene, p *Pod) {
			others(func(n *Node) { n.Object.Spec.Unschedulable = true })(s, p)
			s.cfg.EvictUnplaceable = true
		}, ""},
		{"taint NoSchedule", taint(corev1.TaintEffectNoSchedule), HoldNoNodeFits},
		{"taint NoExecute", taint(corev1.TaintEffectNoExecute), HoldNoNodeFits},
		{"taint PreferNoSchedule", taint(corev1.TaintEffectPreferNoSchedule), ""},
		{"taint tolerated", func(s *scene, p *Pod) {
			taint(corev1.TaintEffectNoSchedule)(s, p)
			p.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
		}, ""},
		{"another taint tolerated", func(s *scene, p *Pod) {
			taint(corev1.TaintEffectNoSchedule)(s, p)
			p.Tolerations = []corev1.Toleration{{Key: "k", Value: "w"}}
		}, HoldNoNodeFits},
		{"others lack the nodeSelector's label", requires(corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}), HoldNoNodeFits},
		{"others lack the affinity's label", requires(corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: selector(expressions(in("disk", corev1.NodeSelectorOpIn, "ssd"))),
		}}}), HoldNoNodeFits},
		{"only its own node would fit", func(s *scene, _ *Pod) {
			// The verdict is older than the nodes.
			others(func(n *Node) { n.Object.Labels[licence] = "expired" })(s, nil)
			s.inputs = func(in *Inputs) {
				for i := range in.Nodes {
					if in.Nodes[i].Object.Name == "node-0" {
						in.Nodes[i].Object = in.Nodes[i].Object.DeepCopy()
						in.Nodes[i].Object.Labels[licence] = "valid"
					}
				}
			}
		}, HoldNoNodeFits},
		{"replica not ready", func(s *scene, p *Pod) { s.workloads[p.Workload] = Workload{Desired: 3, Ready: 2} }, HoldWorkloadNotReady},
		{"replica not ready, with a budget", func(s *scene, p *Pod) {
			s.workloads[p.Workload] = Workload{Desired: 3, Ready: 2, Budget: true}
		}, ""},
		{"more ready than desired", func(s *scene, p *Pod) { s.workloads[p.Workload] = Workload{Desired: 2, Ready: 3} }, ""},
		{"workload unknown", func(s *scene, p *Pod) { delete(s.workloads, p.Workload) }, HoldWorkloadUnknown},
		{"no rate", func(s *scene, _ *Pod) { s.cfg.PerMinute = 0 }, HoldRate},
		{"dry run", func(s *scene, _ *Pod) { s.cfg.Enforce = false }, HoldDryRun},
		{"node not Ready and dry run", func(s *scene, _ *Pod) { s.cfg.Enforce, s.nodes["node-0"].Ready = false, false }, HoldNodeNotReady},
		{"mirror on a node that is not Ready", func(s *scene, p *Pod) { p.Mirror, s.nodes["node-0"].Ready = true, false }, HoldStatic},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t)
			tt.setup(s, s.pod("a", "node-0"))
			s.step()
			orders := s.after(30 * time.Second)
			if got := s.held("a"); got != tt.want {
				t.Errorf("Held = %q; want %q", got, tt.want)
			}
			if got := evicted(orders) == "a"; got != (tt.want == "") {
				t.Errorf("evicted = %t; want %t", got, tt.want == "")
			}
			want := map[Hold]int{}
			if tt.want != "" {
				want[tt.want] = 1
			}
			if got := s.state.Held(); len(got) != len(want) || got[tt.want] != want[tt.want] {
				t.Errorf("State.Held() = %v; want %v", got, want)
			}
		})
	}
}

func TestHolds(t *testing.T) {
	holds := Holds()
	if holds[0] != HoldStatic || holds[len(holds)-1] != HoldDryRun || len(holds) != 22 {
		t.Errorf("Holds() = %v; want 22 from Static to DryRun", holds)
	}
	sorted := slices.Clone(holds)
	slices.Sort(sorted)
	if got := len(slices.Compact(sorted)); got != len(holds) {
		t.Errorf("Holds() has %d different holds; want %d", got, len(holds))
	}
}

// TestDebounce has a label that comes and goes. What is observed before a pod, or its node, changes does not count.
func TestDebounce(t *testing.T) {
	tests := []struct {
		name string
		// at are changes by the time of the steps, which is every 10 s.
		at map[time.Duration]func(*scene)
		// want is when the pod is evicted.
		want time.Duration
	}{
		{"steady", nil, 30 * time.Second},
		{"label back for a moment", map[time.Duration]func(*scene){
			10 * time.Second: func(s *scene) { s.nodes["node-0"].Object.Labels[licence] = "valid" },
			20 * time.Second: func(s *scene) { s.nodes["node-0"].Object.Labels[licence] = "" },
		}, 50 * time.Second},
		{"restart", map[time.Duration]func(*scene){20 * time.Second: func(s *scene) { s.state = State{} }}, 50 * time.Second},
		{"another value that does not match", map[time.Duration]func(*scene){
			20 * time.Second: func(s *scene) { delete(s.nodes["node-0"].Object.Labels, licence) },
		}, 30 * time.Second},
		{"another pod of that name", map[time.Duration]func(*scene){
			20 * time.Second: func(s *scene) { delete(s.pods, "a"); s.pod("b", "node-0").Name = "a" },
		}, 50 * time.Second},
		{"another node", map[time.Duration]func(*scene){
			20 * time.Second: func(s *scene) {
				s.nodes["node-1"].Object.Labels[licence] = "expired"
				s.pods["a"].Node = "node-1"
			},
		}, 50 * time.Second},
		{"node not Ready for a while", map[time.Duration]func(*scene){
			10 * time.Second: func(s *scene) { s.nodes["node-0"].Ready = false },
			90 * time.Second: func(s *scene) { s.nodes["node-0"].Ready = true },
		}, 110 * time.Second}, // the last step in which it was not Ready was at 80 s
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t)
			s.pod("a", "node-0")
			for {
				if change := tt.at[s.at()]; change != nil {
					change(s)
				}
				orders := s.step()
				if got := evicted(orders) != ""; got != (s.at() == tt.want) {
					t.Fatalf("at %s: evicted = %t; want it at %s", s.at(), got, tt.want)
				} else if got {
					return
				}
				if w := orders.Wake; s.held("a") == HoldDebounce && w.Sub(s.now) > 30*time.Second {
					t.Fatalf("at %s: Wake in %s; want the end of the debounce", s.at(), w.Sub(s.now))
				}
				s.now = s.now.Add(10 * time.Second)
			}
		})
	}
}

// TestRates bounds evictions by workload, by node and in the cluster.
func TestRates(t *testing.T) {
	s := newScene(t)
	s.cfg.PerMinute, s.cfg.StormPercentage = 2, 50
	for _, n := range []string{"node-1", "node-2", "node-3"} {
		s.nodes[n].Object.Labels[licence] = "expired"
	}
	s.pod("w.1", "node-0")
	s.step()
	s.now = s.now.Add(time.Second)
	s.pod("w.2", "node-1") // the same workload
	s.pod("x", "node-0")   // the same node
	s.pod("y", "node-2")
	s.pod("z", "node-3") // the third in the cluster
	s.step()
	orders := s.after(30 * time.Second)
	if got := evicted(orders); got != "w.1 y" {
		t.Fatalf("evicted = %q; want w.1 y", got)
	}
	for uid, want := range map[string]Hold{"w.2": HoldWorkloadInFlight, "x": HoldNodeInFlight, "z": HoldRate} {
		if got := s.held(uid); got != want {
			t.Errorf("Held of %s = %q; want %q", uid, got, want)
		}
	}
	// The pods are accepted, and go later.
	accepted := s.now
	s.outcome(orders.Evict[0], Accepted)
	s.outcome(orders.Evict[1], Accepted)
	if got := evicted(s.after(time.Millisecond)); got != "" {
		t.Errorf("evicted after the first were accepted = %q; want none", got)
	}
	if got := s.held("w.2"); got != HoldWorkloadInFlight {
		t.Errorf("Held of w.2 while w.1 terminates = %q; want %q", got, HoldWorkloadInFlight)
	}
	delete(s.pods, "w.1")
	delete(s.pods, "y")
	orders = s.after(time.Second)
	for _, uid := range []string{"w.2", "x", "z"} {
		if got := s.held(uid); got != HoldRate {
			t.Errorf("Held of %s = %q; want %q", uid, got, HoldRate)
		}
	}
	if want := accepted.Add(time.Minute); orders.Wake.After(want) {
		t.Errorf("Wake = %s; want at most %s", orders.Wake, want)
	}
	s.now = accepted.Add(time.Minute - time.Millisecond)
	if got := evicted(s.step()); got != "" {
		t.Errorf("evicted within the minute = %q; want none", got)
	}
	if got := evicted(s.after(time.Millisecond)); got != "w.2 x" {
		t.Errorf("evicted after a minute = %q; want w.2 x", got)
	}
}

// TestAcceptedButNotGone ends what an accepted eviction blocks after the progress timeout.
func TestAcceptedButNotGone(t *testing.T) {
	s := newScene(t)
	s.pod("w.1", "node-0")
	s.step()
	s.now = s.now.Add(time.Second)
	s.pod("w.2", "node-0")
	s.step()
	orders := s.after(30 * time.Second)
	s.outcome(orders.Evict[0], Accepted)
	s.pods["w.1"].Terminating = true
	s.step()
	if got := s.held("w.1"); got != "" {
		t.Errorf("Held of w.1 = %q; want none: it is in flight", got)
	}
	if got := evicted(s.after(10*time.Minute - time.Millisecond)); got != "" {
		t.Errorf("evicted before the timeout = %q; want none", got)
	}
	if got := evicted(s.after(time.Millisecond)); got != "w.2" {
		t.Errorf("evicted after the timeout = %q; want w.2", got)
	}
	if got := s.held("w.1"); got != HoldTerminating {
		t.Errorf("Held of w.1 = %q; want %q", got, HoldTerminating)
	}
}

// TestNotReadyWorkload reports a workload that does not become ready, once an hour for all of its pods.
func TestNotReadyWorkload(t *testing.T) {
	for _, known := range []bool{true, false} {
		s := newScene(t)
		s.pod("w.1", "node-0")
		s.pod("w.2", "node-0")
		s.workloads["Deployment/default/w"] = Workload{Desired: 2, Ready: 1}
		if !known {
			clear(s.workloads)
		}
		s.run(10*time.Minute, nil)
		if got := s.count(EventNotEvicted); got != 0 {
			t.Errorf("known=%t: events before the timeout = %d; want 0", known, got)
		}
		s.run(2*time.Hour, nil)
		if got := s.count(EventNotEvicted); got != 2 {
			t.Errorf("known=%t: events = %d; want 2", known, got)
		}
		if text := s.events[len(s.events)-1].Message; known && !strings.Contains(text, "1 of 2 replicas") {
			t.Errorf("message = %q; want the replicas", text)
		}
		s.workloads["Deployment/default/w"] = Workload{Desired: 2, Ready: 2}
		if got := evicted(s.step()); got != "w.1" {
			t.Errorf("known=%t: evicted when ready = %q; want w.1", known, got)
		}
	}
}

// TestDryRun has all pods get their turn, at the rate, each with one event.
func TestDryRun(t *testing.T) {
	s := newScene(t)
	s.cfg.Enforce, s.cfg.PerMinute = false, 2
	for _, uid := range []string{"w.1", "w.2", "x", "y"} {
		s.pod(uid, "node-0")
	}
	s.run(31*time.Second, nil)
	if got := s.count(EventWouldEvict); got != 2 {
		t.Errorf("events in the first minute = %d; want 2", got)
	}
	s.run(3*time.Hour, nil)
	if got := s.count(EventWouldEvict); got != 4 {
		t.Errorf("events = %d; want 4", got)
	}
	if got := s.state.Held()[HoldDryRun]; got != 4 {
		t.Errorf("held by dry run = %d; want 4", got)
	}
	s.nodes["node-0"].Ready = false
	s.step()
	s.nodes["node-0"].Ready = true
	s.run(time.Hour, nil)
	if got := s.count(EventWouldEvict); got != 4 {
		t.Errorf("events after the node was not Ready = %d; want 4", got)
	}
	// The same state with evictions on.
	s.cfg.Enforce = true
	if got := evicted(s.step()); got != "w.1" {
		t.Errorf("evicted with enforce = %q; want w.1", got)
	}
}
