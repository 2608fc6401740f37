package affinity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestOutcomes answers each attempt alike for some time.
func TestOutcomes(t *testing.T) {
	const m, h = time.Minute, time.Hour
	delays := []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * m, 5 * m}
	tests := []struct {
		name    string
		outcome Outcome
		// delays are the least between attempts, each up to 20 % more, at most 5 min; at that 20 % less.
		delays []time.Duration
		// events are those of the hold in 10 min and in 3 h.
		events [2]int
	}{
		{"budget", Outcome{Kind: Budgeted}, delays, [2]int{1, 3}},
		{"throttled", Outcome{Kind: Throttled}, delays, [2]int{1, 3}},
		{"no answer", Outcome{Kind: RequestError}, delays, [2]int{1, 3}},
		{"forbidden", Outcome{Kind: Forbidden}, delays, [2]int{1, 3}},
		{"several budgets", Outcome{Kind: ManyBudgets}, []time.Duration{5 * m, 5 * m, 5 * m}, [2]int{1, 3}},
		{"gone", Outcome{Kind: Gone}, []time.Duration{30 * time.Second, 30 * time.Second}, [2]int{}},
		{"changed", Outcome{Kind: Changed}, []time.Duration{30 * time.Second, 30 * time.Second,
			30 * time.Second, 40 * time.Second, 80 * time.Second, 80 * time.Second, 80 * time.Second}, [2]int{1, 3}},
		{"not renewed", Outcome{Kind: NotRenewed}, []time.Duration{30 * time.Second, 30 * time.Second,
			30 * time.Second, 40 * time.Second, 80 * time.Second, 80 * time.Second, 80 * time.Second}, [2]int{1, 3}},
		{"retry after", Outcome{Kind: Budgeted, RetryAfter: 8 * m}, []time.Duration{8 * m, 8 * m, 8 * m}, [2]int{0, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t)
			s.pod("a", "node-0")
			tt.outcome.Message = "the answer"
			answer := func(Eviction) Outcome { return tt.outcome }
			at := s.run(30*time.Second+10*m, answer)
			if got := s.count(EventNotEvicted); got != tt.events[0] {
				t.Errorf("events in 10 min = %d; want %d", got, tt.events[0])
			}
			rest := s.run(3*h-10*m, answer)
			for i := range rest {
				rest[i] += 30*time.Second + 10*m
			}
			at = append(at, rest...)
			if got := s.count(EventNotEvicted); got != tt.events[1] {
				t.Errorf("events in 3 h = %d; want %d", got, tt.events[1])
			}
			if at[0] != 30*time.Second {
				t.Errorf("first attempt at %s; want 30s", at[0])
			}
			for i, want := range tt.delays {
				least, most := want, want*120/100
				if want == 5*m {
					least, most = want*80/100, want
				}
				if got := at[i+1] - at[i]; got < least || got > most+time.Second {
					t.Errorf("delay %d = %s; want %s to %s", i, got, least, most)
				}
			}
			for _, e := range s.events {
				if e.Reason == EventNotEvicted && !strings.Contains(e.Message, "the answer") {
					t.Errorf("message = %q; want that of the API server", e.Message)
				}
			}
			if got := s.count(EventViolated); got != 1 {
				t.Errorf("events of the violation = %d; want 1", got)
			}
		})
	}
}

// TestNotRenewed holds a pod of a node whose Lease is not renewed by that name from one attempt to the next.
func TestNotRenewed(t *testing.T) {
	s := newScene(t)
	s.pod("a", "node-0")
	s.step()
	for i := range 6 {
		orders := s.step()
		for waited := 0; len(orders.Evict) == 0; waited++ {
			if want := HoldNodeStale; i > 0 && s.held("a") != want || waited > 100 {
				t.Fatalf("attempt %d: Held = %q after %d s; want %q", i, s.held("a"), waited, want)
			}
			orders = s.after(time.Second)
		}
		s.outcome(orders.Evict[0], NotRenewed)
	}
	s.after(2 * time.Second)
	s.node(0, "valid")
	if s.after(time.Second); s.held("a") != "" {
		t.Errorf("Held = %q after the label came back; want none", s.held("a"))
	}
}

// TestJitter has pods that are refused at the same time retried at different times, and each always at the same.
func TestJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for _, uid := range []string{"a", "b", "c", "d", "e"} {
		s := newScene(t)
		s.pod(uid, "node-0")
		at := s.run(10*time.Minute, func(Eviction) Outcome { return Outcome{Kind: Budgeted} })
		again := newScene(t)
		again.pod(uid, "node-0")
		if got := again.run(10*time.Minute, func(Eviction) Outcome { return Outcome{Kind: Budgeted} }); got[1] != at[1] {
			t.Errorf("second attempt at %s, then at %s; want the same", at[1], got[1])
		}
		seen[at[1]] = true
	}
	if len(seen) < 4 {
		t.Errorf("second attempts at %v; want different times", seen)
	}
}

// TestRefusedSiblings bounds the attempts by workload, and gives each pod its turn.
func TestRefusedSiblings(t *testing.T) {
	s := newScene(t)
	uids := []string{"w.0", "w.1", "w.2", "w.3", "w.4"}
	for _, uid := range uids {
		s.pod(uid, "node-0")
	}
	attempts := map[string]int{}
	total := len(s.run(time.Hour, func(e Eviction) Outcome {
		attempts[e.Pod.Name]++
		return Outcome{Kind: Budgeted}
	}))
	if total > 7+60/4+2 {
		t.Errorf("attempts in an hour = %d; want those of one pod", total)
	}
	for _, uid := range uids {
		if attempts[uid] < total/5-1 {
			t.Errorf("attempts of %s = %d of %d; want its share", uid, attempts[uid], total)
		}
	}
}

// TestThrottled pauses all evictions, and others go on.
func TestThrottled(t *testing.T) {
	for _, kind := range []OutcomeKind{Throttled, Budgeted} {
		s := newScene(t)
		s.node(1, "expired")
		s.pod("a", "node-0")
		s.step()
		s.now = s.now.Add(time.Second)
		s.pod("b", "node-1")
		s.step()
		orders := s.after(29 * time.Second)
		if got := evicted(orders); got != "a" {
			t.Fatalf("evicted = %q; want a", got)
		}
		o := Outcome{ID: orders.Evict[0].ID, Pod: "a", Kind: kind, At: s.now, RetryAfter: 20 * time.Second}
		s.outcomes = append(s.outcomes, o)
		want := ""
		if kind == Budgeted {
			want = "b"
		}
		if got := evicted(s.after(2 * time.Second)); got != want {
			t.Errorf("%s: evicted = %q; want %q", kind, got, want)
		}
		if kind == Throttled && s.held("b") != HoldRate {
			t.Errorf("Held of b = %q; want %q", s.held("b"), HoldRate)
		}
		s.run(time.Minute, func(Eviction) Outcome { return Outcome{Kind: Accepted} })
		if got := s.held("b"); got != "" {
			t.Errorf("%s: Held of b after a minute = %q; want none", kind, got)
		}
	}
}

// TestLostOutcome sends an eviction again whose outcome does not come, and counts an acceptance that comes late.
func TestLostOutcome(t *testing.T) {
	s := newScene(t)
	s.pod("w.1", "node-0")
	s.step()
	first := s.after(30 * time.Second).Evict[0]
	if orders := s.after(2*time.Minute - time.Millisecond); len(orders.Evict) > 0 || s.held("w.1") != "" {
		t.Fatalf("evicted before the timeout: %q", evicted(orders))
	}
	if s.after(time.Millisecond); s.held("w.1") != HoldRefused {
		t.Fatalf("Held after the timeout = %q; want %q", s.held("w.1"), HoldRefused)
	}
	s.pod("w.2", "node-0")
	s.after(time.Second)
	s.outcome(first, Accepted)
	s.after(time.Second)
	if got := s.held("w.1"); got != "" || len(s.state.Evicted) != 1 {
		t.Errorf("Held = %q, accepted = %d; want none: in flight, 1", got, len(s.state.Evicted))
	}
	s.outcome(first, Accepted)
	if s.after(time.Second); len(s.state.Evicted) != 1 {
		t.Errorf("accepted by the same outcome again = %d; want 1", len(s.state.Evicted))
	}
	if got := evicted(s.after(time.Minute)); got != "" {
		t.Errorf("evicted beside the one in flight = %q; want none", got)
	}
	// Another eviction is not ended by an outcome of an old one.
	delete(s.pods, "w.1")
	second := s.after(time.Second)
	if got := evicted(second); got != "w.2" {
		t.Fatalf("evicted = %q; want w.2", got)
	}
	first.Pod.UID = "w.2"
	s.outcome(first, Budgeted)
	if s.after(time.Second); s.held("w.2") != "" {
		t.Errorf("Held = %q; want none: in flight", s.held("w.2"))
	}
}

// TestCarriedOutWithError: an eviction whose request failed counts as accepted if its pod terminates or is gone.
func TestCarriedOutWithError(t *testing.T) {
	for name, tt := range map[string]struct {
		after func(*scene)
		want  int
	}{
		"terminates":       {func(s *scene) { s.pods["w.1"].Terminating = true }, 1},
		"gone":             {func(s *scene) { delete(s.pods, "w.1") }, 1},
		"still there":      {func(*scene) {}, 0},
		"fits again":       {func(s *scene) { s.node(0, "valid") }, 0},
		"terminates later": {func(s *scene) { s.after(outcomeTimeout); s.pods["w.1"].Terminating = true }, 0},
	} {
		s := newScene(t)
		s.inputs = func(in *Inputs) { in.Present = map[types.UID]bool{"w.1": s.pods["w.1"] != nil} }
		s.pod("w.1", "node-0")
		s.step()
		e := s.after(30 * time.Second).Evict[0]
		s.outcome(e, RequestError)
		s.step()
		if got := len(s.state.Flights()); got != 1 {
			t.Errorf("%s: flights after the error = %d; want 1", name, got)
		}
		s.now = s.now.Add(time.Second)
		tt.after(s)
		s.step()
		b := s.state.Workloads["Deployment/default/w"]
		if got := len(s.state.Evicted); got != tt.want || b.EvictedAt.IsZero() == (tt.want > 0) {
			t.Errorf("%s: accepted = %d, at %s; want %d", name, got, b.EvictedAt, tt.want)
		}
	}
}

// TestLabelBackInFlight keeps the workload's turn while the request has no outcome.
func TestLabelBackInFlight(t *testing.T) {
	s := newScene(t)
	s.pod("w.1", "node-0")
	s.node(1, "expired")
	s.step()
	s.now = s.now.Add(time.Second)
	s.pod("w.2", "node-1")
	s.step()
	e := s.after(30 * time.Second).Evict[0]
	s.node(0, "valid")
	if s.after(time.Second); s.held("w.2") != HoldWorkloadInFlight {
		t.Errorf("Held of w.2 = %q; want %q", s.held("w.2"), HoldWorkloadInFlight)
	}
	s.node(0, "expired")
	if s.after(time.Second); s.held("w.1") != "" || s.state.Violations["w.1"].InFlight != e.ID {
		t.Errorf("Held of w.1 = %q, InFlight = %q; want none, %q", s.held("w.1"), s.state.Violations["w.1"].InFlight, e.ID)
	}
	s.outcome(e, Changed)
	if got := evicted(s.after(time.Second)); got != "w.2" || s.held("w.1") != HoldDebounce {
		t.Errorf("evicted = %q, Held of w.1 = %q; want w.2, %q", got, s.held("w.1"), HoldDebounce)
	}
}

// TestLoop evicts replacements that are bound to a node that violates, ever more rarely.
func TestLoop(t *testing.T) {
	tests := []struct {
		name string
		// pending is the time from a replacement's creation to its binding, and fits how long the node fits then.
		pending, fits time.Duration
		noBound       bool
		// skew is how far the clocks of API server and scheduler are ahead. Then the pod was seen when it was bound.
		skew time.Duration
		// want are the times between evictions that exceed pending, fits and debounce.
		want []time.Duration
	}{
		{"at once", 0, 0, false, 0, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute,
			16 * time.Minute, 32 * time.Minute, time.Hour, time.Hour}},
		{"time of binding unknown", 10 * time.Second, 0, true, 0, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}},
		{"20 min a turn", 20 * time.Minute, 0, false, 0, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}},
		{"clocks behind", 0, 0, false, -10 * time.Minute, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}},
		{"clocks ahead", 0, 0, false, 10 * time.Minute, []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute}},
		{"the label goes 20 min later", 0, 20 * time.Minute, false, 0, []time.Duration{30 * time.Second, 30 * time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t)
			s.pod("w.x", "node-0")
			for i, want := range append([]time.Duration{30 * time.Second}, tt.want...) {
				begin := s.now
				orders := s.step()
				for len(orders.Evict) == 0 {
					s.now = orders.Wake
					orders = s.step()
				}
				if got := s.now.Sub(begin); got != want {
					t.Fatalf("eviction %d after %s; want %s", i, got, want)
				}
				s.outcome(orders.Evict[0], Accepted)
				clear(s.pods)
				s.after(time.Second)
				created := s.now.Truncate(time.Second)
				s.now = s.now.Add(tt.pending)
				bound := s.now
				s.now = s.now.Add(tt.fits)
				p := s.pod("w.x"+strings.Repeat("y", i+1), "node-0")
				if p.Created = created.Add(tt.skew); !tt.noBound {
					p.Bound = bound.Add(tt.skew)
				}
				p.AtBinding = tt.skew != 0
			}
			loops := tt.fits == 0
			if got := s.count(EventLoop) > 0; got != loops {
				t.Errorf("event = %t; want %t", got, loops)
			}
			if got := s.state.Workloads["Deployment/default/w"].Loops > 0; got != loops {
				t.Errorf("Loops > 0 = %t; want %t", got, loops)
			}
			if !loops {
				return
			}
			// A replacement that was placed correctly ends the loop, although its node violates later.
			clear(s.pods)
			p := s.pod("w.z", "node-0")
			p.Created, p.Bound = s.now, s.now
			s.now = s.now.Add(2 * time.Hour)
			if s.step(); s.state.Workloads["Deployment/default/w"].Loops != 0 {
				t.Errorf("Loops = %d; want 0", s.state.Workloads["Deployment/default/w"].Loops)
			}
		})
	}
}

// TestOften backs a workload off whose label goes after each correct placement. Of a large workload each pod is evicted
// once, without a back-off.
func TestOften(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fits    time.Duration // how long a replacement fits its node
		replica bool          // the pods are replicas that were there before
		most    int           // evictions in 6 h
		events  bool
	}{
		{"replacements", 2 * time.Minute, false, 20, true},
		{"replacements, rarely", 20 * time.Minute, false, 18, false},
		{"replicas", 2 * time.Minute, true, 144, false},
	} {
		s := newScene(t)
		evictions := 0
		for i := 0; s.now.Before(start.Add(6 * time.Hour)); i++ {
			created := s.now
			s.now = s.now.Add(tt.fits)
			p := s.pod(fmt.Sprint("w.", i), "node-0")
			if p.Created, p.Bound = created, created; tt.replica {
				p.Created, p.Bound = start.Add(-time.Hour), start.Add(-time.Hour)
			}
			orders := s.step()
			for len(orders.Evict) == 0 {
				s.now = orders.Wake
				orders = s.step()
			}
			evictions++
			if want := 30 * time.Second; evictions <= oftenEvictions && s.now.Sub(created)-tt.fits != want {
				t.Errorf("%s: eviction %d after %s; want %s", tt.name, evictions, s.now.Sub(created)-tt.fits, want)
			}
			s.outcome(orders.Evict[0], Accepted)
			clear(s.pods)
			s.step()
		}
		if evictions > tt.most || evictions < tt.most-4 {
			t.Errorf("%s: evictions in 6 h = %d; want about %d", tt.name, evictions, tt.most)
		}
		first, often := "", 0
		for _, e := range s.events {
			if e.Reason == EventLoop && strings.Contains(e.Message, "the label changes too often") {
				if often++; first == "" {
					first = e.Message
				}
			}
		}
		if (often > 0) != tt.events || often > 6 || first != "" && !strings.Contains(first, "at least 8 evictions since 2026-03-01T12:02:30Z") {
			t.Errorf("%s: events = %d, first %q; want some: %t, at most one an hour", tt.name, often, first, tt.events)
		}
	}
}

// TestLoopOfBarePod backs off a pod without a controller that something makes again under its name.
func TestLoopOfBarePod(t *testing.T) {
	s := newScene(t)
	s.cfg.EvictBare = true
	for i := range 4 {
		p := s.pod(fmt.Sprint("bare", i), "node-0")
		p.Name, p.Workload, p.Created, p.Bound = "bare", "", s.now, s.now
		begin := s.now
		orders := s.step()
		for len(orders.Evict) == 0 {
			s.now = orders.Wake
			orders = s.step()
		}
		if got, want := s.now.Sub(begin), max(30*time.Second, time.Minute<<i/2); got != want {
			t.Fatalf("eviction %d after %s; want %s", i, got, want)
		}
		s.outcome(orders.Evict[0], Accepted)
		clear(s.pods)
		s.after(time.Second)
	}
}

// TestLoopOfBarePods backs off a pod without a controller that is made again under another name each time.
func TestLoopOfBarePods(t *testing.T) {
	for name, change := range map[string]func(*Pod){
		"generated":    func(p *Pod) { p.GenerateName = "exec-" },
		"own suffixes": func(p *Pod) { p.AtBinding = true },
	} {
		s := newScene(t)
		s.cfg.EvictBare = true
		evictions, held := 0, 0
		for i := 0; s.now.Before(start.Add(6 * time.Hour)); i++ {
			uid := fmt.Sprint("exec-", i)
			p := s.pod(uid, "node-0")
			p.Workload, p.Created, p.Bound = "", s.now, s.now
			change(p)
			orders := s.step()
			for len(orders.Evict) == 0 {
				if s.held(uid) == HoldLoop {
					held++
				}
				s.now = orders.Wake
				orders = s.step()
			}
			evictions++
			s.outcome(orders.Evict[0], Accepted)
			clear(s.pods)
			s.after(time.Second)
		}
		if evictions > 14 || held == 0 || s.count(EventLoop) == 0 {
			t.Errorf("%s: evictions in 6 h = %d, held %d times, events %d; want at most 14, and an event", name, evictions, held, s.count(EventLoop))
		}
		// Another node, and a pod that was placed correctly, do not wait.
		s.node(1, "expired")
		for uid, node := range map[string]string{"other": "node-1", "placed": "node-0"} {
			p := s.pod(uid, node)
			p.Workload, p.AtBinding = "", uid == "other"
		}
		s.step()
		if got := evicted(s.after(30 * time.Second)); got != "other placed" {
			t.Errorf("%s: evicted = %q; want the other node's and the placed pod", name, got)
		}
		clear(s.pods)
		s.step()
		if s.after(loopMemory + time.Hour); len(s.state.Workloads) > 2 { // in flight: the answers do not come
			t.Errorf("%s: remembered = %d; want the evictions without an answer", name, len(s.state.Workloads))
		}
	}
}

// TestRestartWhileTerminating: a process that has just started orders no eviction beside one of the process before.
func TestRestartWhileTerminating(t *testing.T) {
	for _, late := range []time.Duration{0, time.Minute} { // its request may be carried out after the start
		s := newScene(t)
		s.node(1, "expired")
		s.pod("w.1", "node-0")
		s.pod("w.2", "node-1")
		s.pod("x.1", "node-0").Mirror = true
		if late > 0 {
			s.cfg.Debounce = 2 * late
			s.step()
			s.now = s.now.Add(late)
		}
		s.pods["w.1"].Terminating, s.pods["x.1"].Mirror = true, false
		s.step()
		got := evicted(s.after(5 * time.Minute))
		if got != "" || s.held("w.2") != HoldWorkloadInFlight || s.held("x.1") != HoldNodeInFlight {
			t.Errorf("evicted = %q, Held of w.2 = %q, of x.1 = %q; want none, %q, %q", got, s.held("w.2"), s.held("x.1"),
				HoldWorkloadInFlight, HoldNodeInFlight)
		}
		if got := evicted(s.after(5 * time.Minute)); got != "w.2 x.1" { // one that does not go holds back nothing for ever
			t.Errorf("evicted after the progress timeout = %q; want w.2 x.1", got)
		}
	}
}

// TestLabelBackWhileTerminating: an accepted eviction is in flight until its pod is gone, also if its label comes back.
func TestLabelBackWhileTerminating(t *testing.T) {
	s := newScene(t)
	s.node(1, "expired")
	present := map[types.UID]bool{"w.1": true}
	s.inputs = func(in *Inputs) {
		if in.Present = present; len(s.state.Workloads) > 0 && len(s.state.Flights()) != 1 {
			t.Fatalf("Flights() = %v; want one", s.state.Flights())
		}
	}
	s.pod("w.1", "node-0")
	s.step()
	s.outcome(s.after(30 * time.Second).Evict[0], Accepted)
	s.pod("w.2", "node-1")
	s.node(0, "valid")
	s.step()
	if got := evicted(s.after(5 * time.Minute)); got != "" || s.held("w.2") != HoldWorkloadInFlight {
		t.Errorf("evicted while w.1 terminates = %q, Held of w.2 = %q; want none, %q", got, s.held("w.2"), HoldWorkloadInFlight)
	}
	present = nil
	if got := evicted(s.after(time.Second)); got != "w.2" {
		t.Errorf("evicted when w.1 is gone = %q; want w.2", got)
	}
}

// TestTerminatingLate: the hold of a terminating pod begins when it was seen terminating. It is one of its node if the
// process before this one may have evicted it: else whoever deletes pods that take their time could hold back all others.
func TestTerminatingLate(t *testing.T) {
	s := newScene(t)
	s.cfg.EvictUnplaceable = true
	s.pod("w.1", "node-0").Completed = true
	s.node(1, "expired")
	s.step()
	s.now = s.now.Add(time.Hour)
	p := s.pod("w.1", "node-0")
	p.Terminating = true
	s.pod("w.2", "node-1")
	s.pod("x.1", "node-0")
	s.step()
	got := evicted(s.after(5 * time.Minute))
	if got != "x.1" || s.held("w.2") != HoldWorkloadInFlight {
		t.Errorf("evicted = %q, Held of w.2 = %q; want x.1, %q", got, s.held("w.2"), HoldWorkloadInFlight)
	}
	p.Since = s.now // the label came back in between: another violation
	if got := evicted(s.after(5 * time.Minute)); !strings.Contains(got, "w.2") {
		t.Errorf("evicted after the progress timeout = %q; want w.2", got)
	}
}

// TestTurns: pods of others whose violations never end, because their owner makes new ones, keep no pod from its turn:
// neither one that was refused once, nor one whose node has changed.
func TestTurns(t *testing.T) {
	for _, own := range []bool{false, true} {
		s := newScene(t)
		s.cfg.PerMinute, s.cfg.StormPercentage = 1, 100
		s.pod("victim", "node-0")
		s.step()
		s.now = s.now.Add(time.Second)
		count := 0
		more := func() {
			count++
			name := fmt.Sprint("node-", 1+count%8)
			s.nodes[name].Object.Labels[licence] = "expired"
			s.pod(fmt.Sprint("other", count), name).Own = own
		}
		for range 2 {
			more()
		}
		s.step()
		s.outcome(s.after(29 * time.Second).Evict[0], Budgeted)
		var after time.Duration // the turn of the pod
		for second := range 4 * 60 {
			if second%10 == 0 {
				more()
			}
			s.now = s.now.Add(time.Second)
			for _, e := range s.step().Evict {
				if e.Pod.UID == "victim" {
					after = time.Duration(second) * time.Second
				}
				s.outcome(e, Accepted)
				delete(s.pods, e.Pod.UID)
			}
		}
		if limit := map[bool]time.Duration{false: 3 * time.Minute, true: time.Minute + 10*time.Second}[own]; after == 0 || after > limit {
			t.Errorf("own %t: the turn of the pod that was refused once is after %s; want one within %s", own, after, limit)
		}
	}
}

// TestNeverReady: of a workload whose replacement never gets ready no other pod is evicted, and that is said once an hour.
// Another replica may be lost to node pressure, or to a fence, in the same way.
func TestNeverReady(t *testing.T) {
	s := newScene(t)
	const workload = "Deployment/default/w"
	for _, uid := range []string{"w.1", "w.2", "w.3"} {
		s.pod(uid, "node-0")
	}
	s.workloads[workload] = Workload{Desired: 3, Ready: 3}
	s.step()
	orders := s.after(30 * time.Second)
	if got := evicted(orders); got != "w.1" {
		t.Fatalf("evicted = %q; want w.1", got)
	}
	s.outcome(orders.Evict[0], Accepted)
	s.workloads[workload] = Workload{Desired: 3, Ready: 2}
	s.step()
	delete(s.pods, "w.1")
	if at := s.run(24*time.Hour, nil); len(at) > 0 {
		t.Errorf("evictions after %v; want none", at)
	}
	if s.held("w.2") != HoldWorkloadNotReady || s.held("w.3") != HoldWorkloadNotReady {
		t.Errorf("Held = %q, %q; want %q", s.held("w.2"), s.held("w.3"), HoldWorkloadNotReady)
	}
	if got := s.count(EventNotEvicted); got < 23 || got > 24 {
		t.Errorf("events in a day = %d; want one an hour", got)
	}
	s.workloads[workload] = Workload{Desired: 3, Ready: 3}
	if got := evicted(s.after(time.Second)); got != "w.2" {
		t.Errorf("evicted when ready = %q; want w.2", got)
	}
}

// TestChangedWithoutDebounce has no hot loop where the caches stay behind what is read live.
func TestChangedWithoutDebounce(t *testing.T) {
	for kind, want := range map[OutcomeKind]int{Gone: 12, Changed: 4, NotRenewed: 4} {
		s := newScene(t)
		s.cfg.Debounce = 0
		s.pod("a", "node-0")
		at := s.run(time.Minute, func(Eviction) Outcome { return Outcome{Kind: kind} })
		if len(at) < want-2 || len(at) > want+1 {
			t.Errorf("%s: attempts in a minute = %d; want about %d", kind, len(at), want)
		}
	}
}

// TestForget leaves nothing of workloads whose pods no longer violate.
func TestForget(t *testing.T) {
	s := newScene(t)
	s.pod("a", "node-0")
	s.run(time.Minute, func(Eviction) Outcome { return Outcome{Kind: Accepted} })
	clear(s.pods)
	if s.step(); len(s.state.Workloads) != 1 || len(s.state.Violations) != 0 {
		t.Errorf("workloads, violations = %d, %d; want 1, 0", len(s.state.Workloads), len(s.state.Violations))
	}
	if s.after(loopMemory); len(s.state.Workloads) != 0 || len(s.state.Evicted) != 0 {
		t.Errorf("workloads, evicted = %d, %d; want 0, 0", len(s.state.Workloads), len(s.state.Evicted))
	}
}

// TestEventsBounded reports many violations over time.
func TestEventsBounded(t *testing.T) {
	s := newScene(t)
	for i := range 200 {
		s.pod("p"+strings.Repeat("x", i), "node-0").DaemonSet = true
	}
	s.run(31*time.Second, nil)
	if got := s.count(EventViolated); got != maxEvents {
		t.Errorf("events = %d; want %d", got, maxEvents)
	}
	s.run(10*time.Minute, nil)
	if got := s.count(EventViolated); got != 200 {
		t.Errorf("events after 10 min = %d; want 200", got)
	}
}

// The pause after the API server throttled an eviction is not shortened by another answer, and bounded for all others.
func TestPause(t *testing.T) {
	for _, tt := range []struct {
		retries []time.Duration
		want    time.Duration
	}{
		{[]time.Duration{0}, retryDelay},
		{[]time.Duration{time.Minute, 0}, time.Minute},
		{[]time.Duration{0, time.Minute}, time.Minute},
		{[]time.Duration{1 << 31 * time.Second}, retryDelayMax},
	} {
		r := run{now: start}
		for i, retry := range tt.retries {
			r.refuse(&Backoff{Refusals: 6}, nil, Outcome{Pod: types.UID(fmt.Sprint(i)), Kind: Throttled, RetryAfter: retry, At: start})
		}
		if got := r.s.PausedUntil.Sub(start); got != tt.want {
			t.Errorf("after throttling for %v, the pause is %s; want %s", tt.retries, got, tt.want)
		}
	}
}
