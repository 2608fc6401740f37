package evict

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// underPressure returns a node that has MemoryPressure since start and refuses arrivals.
func underPressure(t *testing.T) *timeline {
	tl := newTimeline(t, hard(signal.MemoryAvailable, "1Gi"))
	tl.in.Policy.RefuseArrivals, tl.in.Policy.ProtectUnreportable = true, true
	tl.observe(signal.MemoryAvailable, gi-1)
	tl.step(0)
	tl.observe(signal.MemoryAvailable, 2*gi)
	return tl
}

// arrived makes a BestEffort pod of a kubelet that has come to the node at a time after start.
func arrived(at time.Duration) option {
	return func(p *Pod) { p.Kubelet, p.Priority, p.Arrived = true, new(int32(0)), start.Add(at) }
}

func refused(o Orders) (uids []string) {
	for i := range o.Refuse {
		uids = append(uids, o.Refuse[i].UID)
	}
	return uids
}

func TestRefuseArrivals(t *testing.T) {
	toleration := func(key string) option {
		return func(p *Pod) { p.Tolerations = []Toleration{{Key: key, Operator: "Exists"}} }
	}
	for _, tt := range []struct {
		name   string
		change option
		want   bool
	}{
		{"BestEffort", func(*Pod) {}, true},
		{"Burstable", requesting("1Mi", ""), false},
		{"before the condition", arrived(0), false},
		{"unknown arrival", func(p *Pod) { p.Arrived = time.Time{} }, false},
		{"of a DaemonSet", func(p *Pod) { p.DaemonSet = true }, false},
		{"labelled as by the DaemonSet controller", func(p *Pod) { p.Labels = map[string]string{"pod-template-generation": "1"} }, true},
		{"static", func(p *Pod) { p.Static = true }, false},
		{"mirror", func(p *Pod) { p.Mirror = true }, false},
		{"critical", withPriority(2_000_000_000), false},
		{"protected", func(p *Pod) { p.ProtectedReason = "kube-system" }, false},
		{"unreportable", unreportable, false},
		{"tolerates the kubelet's taint", toleration("node.kubernetes.io/memory-pressure"), false},
		{"tolerates evictd's taint", toleration("evictd.io/memory-pressure"), false},
		{"tolerates another taint", toleration("evictd.io/disk-pressure"), true},
	} {
		for _, started := range []bool{false, true} {
			tl := underPressure(t)
			p := aPod("p", using(gi), arrived(time.Second))
			tt.change(&p)
			if started {
				tl.in.Pods = []Pod{p}
			} else {
				tl.in.Arrivals = []Pod{p}
			}
			o := tl.step(2 * time.Second)
			got := o.Refuse
			if started {
				got = o.Evict
			}
			if len(o.Refuse)+len(o.Evict) != len(got) || len(got) == 1 != tt.want {
				t.Errorf("%s, started %t: refused %v, evicted %v; want refused %t", tt.name, started, refused(o), victims(o), tt.want)
				continue
			}
			if !tt.want {
				continue
			}
			if r := got[0]; r.Cause != CauseAdmission || !r.Hard || r.Reason != "Evicted" || r.Message != "The node had condition: [MemoryPressure]. " || r.Pod != "default/p" {
				t.Errorf("%s, started %t: order %+v", tt.name, started, r)
			}
			if o := tl.step(3 * time.Second); len(o.Refuse)+len(o.Evict) > 0 {
				t.Errorf("%s, started %t: refused again: %v, %v", tt.name, started, refused(o), victims(o))
			}
		}
	}
}

func TestRefuseArrivalsOnlyUnderPressure(t *testing.T) {
	for name, change := range map[string]func(*timeline){
		"off":                       func(tl *timeline) { tl.in.Policy.RefuseArrivals = false },
		"the condition has ended":   func(tl *timeline) { tl.in.Policy.TransitionPeriod = time.Second },
		"unknown since when it has": func(tl *timeline) { tl.state.Conditions[0].Since = time.Time{} },
		"another condition":         func(tl *timeline) { tl.state.Conditions[0].Condition = signal.DiskPressure },
	} {
		tl := underPressure(t)
		change(tl)
		tl.in.Arrivals, tl.in.Pods = []Pod{aPod("a", arrived(time.Second))}, []Pod{aPod("p", arrived(time.Second))}
		if o := tl.step(2 * time.Second); len(o.Refuse)+len(o.Evict) > 0 {
			t.Errorf("%s: refused %v, evicted %v; want none", name, refused(o), victims(o))
		}
	}
}

// The condition begins again after it has ended: pods that came in between stay.
func TestRefuseArrivalsOfLaterPressure(t *testing.T) {
	tl := underPressure(t)
	tl.in.Arrivals = []Pod{aPod("between", arrived(7*time.Minute)), aPod("later", arrived(11*time.Minute))}
	tl.observe(signal.MemoryAvailable, gi-1)
	if o := tl.step(10 * time.Minute); len(o.Refuse) != 1 || o.Refuse[0].UID != "later" {
		t.Errorf("refused %v; want later", refused(o)) // by its clock it has just come
	}
	if since := tl.in.Policy.PressureSince(&tl.state, start.Add(10*time.Minute)); !since.Equal(start.Add(10 * time.Minute)) {
		t.Errorf("pressure since %v; want 10m", since.Sub(start))
	}
}

// A pod that starts although it was refused is killed, but not while its kubelet may be stopping it.
func TestRefusedPodStarts(t *testing.T) {
	tl := underPressure(t)
	p := aPod("p", using(gi), arrived(time.Second))
	tl.in.Arrivals = []Pod{p}
	tl.step(2 * time.Second)
	tl.in.Arrivals, tl.in.Pods = nil, []Pod{p}
	wantVictims(t, "after 1s", tl.step(3*time.Second))
	tl.pod("p").Ending = true
	wantVictims(t, "while it ends", tl.step(5*time.Second))
	tl.pod("p").Ending = false
	wantVictims(t, "after 3s", tl.step(5*time.Second), "p")
	if v := tl.state.Victims; len(v) != 1 || !v[0].OverLimit {
		t.Errorf("victims %+v; want one that says nothing about a signal", v)
	}
}

// A pod whose report has failed is refused again after a minute.
func TestRefuseAgain(t *testing.T) {
	tl := underPressure(t)
	tl.in.Arrivals = []Pod{aPod("p", arrived(time.Second))}
	for _, tt := range []struct {
		at   time.Duration
		want int
	}{{2 * time.Second, 1}, {61 * time.Second, 0}, {62 * time.Second, 1}} {
		if o := tl.step(tt.at); len(o.Refuse) != tt.want {
			t.Errorf("at %v: refused %v; want %d", tt.at, refused(o), tt.want)
		}
	}
	tl.in.Arrivals = nil
	if tl.step(2*time.Minute + 2*time.Second); len(tl.state.Refusals) > 0 {
		t.Errorf("refusals %v; want none left", tl.state.Refusals)
	}
}

// At most ten pods are refused in ten seconds, whether or not they have started.
func TestRefusalsAreBounded(t *testing.T) {
	tl := underPressure(t)
	for i := range 15 {
		tl.in.Arrivals = append(tl.in.Arrivals, aPod(fmt.Sprintf("a%02d", i), arrived(time.Second)))
		tl.in.Pods = append(tl.in.Pods, aPod(fmt.Sprintf("p%02d", i), arrived(time.Second)))
	}
	for _, tt := range []struct {
		at   time.Duration
		want int
	}{{2 * time.Second, 10}, {11 * time.Second, 0}, {12 * time.Second, 10}, {22 * time.Second, 10}, {32 * time.Second, 0}} {
		if o := tl.step(tt.at); len(o.Refuse)+len(o.Evict) != tt.want {
			t.Errorf("at %v: refused %v, evicted %v; want %d", tt.at, refused(o), victims(o), tt.want)
		}
	}
}

// In dry run each pod is refused once, and a running one counts as gone until the pressure ends.
func TestRefuseInDryRun(t *testing.T) {
	tl := underPressure(t)
	tl.in.DryRun = true
	tl.in.Arrivals, tl.in.Pods = []Pod{aPod("a", arrived(time.Second))}, []Pod{aPod("p", using(gi), arrived(time.Second))}
	o := tl.step(2 * time.Second)
	if !slices.Equal(refused(o), []string{"a"}) || !slices.Equal(victims(o), []string{"p"}) {
		t.Fatalf("refused %v, evicted %v; want a and p", refused(o), victims(o))
	}
	tl.observe(signal.MemoryAvailable, 100*mi)
	if o := tl.step(4 * time.Minute); len(o.Refuse)+len(o.Evict)+len(o.Met) > 0 || len(tl.state.DryRunVictims) != 1 {
		t.Errorf("after 4m: refused %v, evicted %v, met %v; want none: p counts as gone", refused(o), victims(o), o.Met)
	}
	tl.observe(signal.MemoryAvailable, 2*gi)
	tl.in.Arrivals, tl.in.Pods = nil, []Pod{tl.in.Arrivals[0]} // it has started
	if o := tl.step(4 * time.Minute); len(o.Evict) > 0 {
		t.Errorf("evicted %v; want none: it was refused before", victims(o))
	}
	if tl.step(20 * time.Minute); len(tl.state.DryRunVictims)+len(tl.state.Refusals) > 0 {
		t.Errorf("state after the pressure: %+v", tl.state)
	}
}

// A pod that has run for a while is not refused when refusals begin, or begin again: its kubelet
// would have refused it on arrival only.
func TestPodThatRunsIsNotRefused(t *testing.T) {
	tl := underPressure(t)
	tl.in.Pods = []Pod{aPod("p", arrived(time.Hour))}
	wantVictims(t, "after the clock was set back", tl.step(2*time.Second))
	for name, suspend := range map[string]func(*timeline, bool){
		"dry run":                   func(tl *timeline, yes bool) { tl.in.DryRun = yes },
		"another configuration":     func(tl *timeline, yes bool) { tl.in.Policy.RefuseArrivals = !yes },
		"its report was impossible": func(tl *timeline, yes bool) { tl.pod("p").Unreportable = map[bool]string{true: "no facts"}[yes] },
		"it was not there":          func(tl *timeline, yes bool) { tl.pod("p").Ending = yes },
	} {
		tl := underPressure(t)
		tl.in.Policy.TransitionPeriod = 2 * time.Hour
		tl.in.Pods = []Pod{aPod("p", arrived(10*time.Minute))}
		suspend(tl, true)
		for at := 10 * time.Minute; at < time.Hour; at += 10 * time.Minute {
			if o := tl.step(at); !tl.in.DryRun && len(o.Evict) > 0 {
				t.Fatalf("%s: evicted %v at %v", name, victims(o), at)
			}
		}
		suspend(tl, false)
		tl.in.Pods = append(tl.in.Pods, aPod("new", arrived(time.Hour)))
		wantVictims(t, name, tl.step(time.Hour+time.Second), "new")
	}
}

// Until the pods are listed it is not known which of them have started.
func TestRefuseNoneBeforePodsAreListed(t *testing.T) {
	tl := underPressure(t)
	tl.in.Arrivals, tl.in.PodsUnknown, tl.in.DryRun = []Pod{aPod("a", arrived(time.Second))}, true, true
	if o := tl.step(2 * time.Second); len(o.Refuse) > 0 {
		t.Errorf("refused %v; want none", refused(o))
	}
	tl.in.PodsUnknown = false
	if o := tl.step(2 * time.Second); len(o.Refuse) != 1 {
		t.Errorf("refused %v; want a", refused(o))
	}
}

// Pods that are refused and killed do not hold back evictions for contention.
func TestRefusalsDoNotDelayContention(t *testing.T) {
	tl := underPressure(t)
	tl.in.Policy.Contention = ContentionPolicy{Sustained: 5 * time.Second, Evict: true}
	tl.in.Measured = true
	tl.in.Pods = []Pod{aPod("old", using(gi)), aPod("new", using(gi), arrived(time.Second))}
	wantVictims(t, "on arrival", tl.step(2*time.Second), "new")
	tl.in.Contention = []Contention{{Condition: signal.KubepodsMemoryContentionPressure, Since: start.Add(-3 * time.Second)}}
	wantVictims(t, "after 5s of contention", tl.step(2500*time.Millisecond), "old")
}
