package controller

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

// A renewTime counts from its first sight, by the controller's clock. A list that is late changes nothing.
func TestSightings(t *testing.T) {
	start := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	type event struct {
		live    bool // else a list
		renewed int
		version uint64
		at      int
	}
	for name, tt := range map[string]struct {
		events []event
		since  int
	}{
		"unchanged":                 {[]event{{false, 0, 5, 10}, {false, 0, 5, 20}, {true, 0, 5, 30}}, 10},
		"renewed":                   {[]event{{false, 0, 5, 10}, {false, 10, 6, 20}}, 20},
		"renewed in a live read":    {[]event{{false, 0, 5, 10}, {true, 10, 6, 15}, {false, 10, 6, 20}}, 15},
		"late list":                 {[]event{{true, 10, 6, 15}, {false, 0, 5, 20}, {true, 10, 6, 30}}, 15},
		"clock set back":            {[]event{{false, 600, 5, 10}, {false, 10, 6, 20}}, 20},
		"live read after a restore": {[]event{{true, 10, 6, 15}, {true, 20, 4, 30}}, 30},
		"other change":              {[]event{{false, 0, 5, 10}, {false, 0, 7, 20}, {false, 10, 6, 30}, {false, 10, 8, 40}}, 40},
		"no version":                {[]event{{false, 0, 0, 10}, {false, 10, 0, 20}}, 20},
	} {
		l := &leases{}
		for _, e := range tt.events {
			r := renewal{at(e.renewed), e.version}
			if e.live {
				l.observe("n1", r, at(e.at))
			} else {
				l.list(map[string]renewal{"n1": r}, at(e.at-1), at(e.at))
			}
		}
		if got := l.seen["n1"].since; !got.Equal(at(tt.since)) {
			t.Errorf("%s: unchanged since %v; want %v", name, got.Sub(start), at(tt.since).Sub(start))
		}
		last := l.seen["n1"].renewal
		for after, want := range map[time.Duration]bool{time.Minute - 1: false, time.Minute: true} {
			now := at(tt.since).Add(after)
			l.list(map[string]renewal{"n1": last}, now, now)
			if got := l.unchanged("n1", time.Minute); got != want {
				t.Errorf("%s: unchanged for a minute after %v: %t; want %t", name, after, got, want)
			}
		}
	}
}

// Only a recent list says which Leases there are.
func TestListedLeases(t *testing.T) {
	now := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	l := &leases{}
	check := func(what string, node string, at time.Time, want fence.Lease) {
		t.Helper()
		if got := l.lease(node, at); got != want {
			t.Errorf("%s: Lease of %s = %+v; want %+v", what, node, got, want)
		}
	}
	l.observe("n1", renewal{now, 1}, now)
	check("no list", "n1", now, fence.Lease{})
	l.list(map[string]renewal{"n1": {now, 1}, "n2": {now, 2}}, now, now)
	found := fence.Lease{Known: true, Found: true, Renewed: now, UnchangedSince: now}
	check("list", "n1", now.Add(leaseMaxAge), found)
	check("list", "n3", now, fence.Lease{Known: true})
	check("old list", "n1", now.Add(leaseMaxAge+1), fence.Lease{})
	l.list(map[string]renewal{"n2": {now, 2}}, now, now)
	check("node gone", "n1", now, fence.Lease{Known: true})
	if len(l.seen) != 1 {
		t.Errorf("%d Leases are remembered; want 1", len(l.seen))
	}
	l.forgetAll()
	check("outage", "n2", now, fence.Lease{})
	if l.unchanged("n2", 0) {
		t.Error("a Lease is known after an outage")
	}
}

// testLister returns a leaseLister that records the nodes that are to be looked at.
func testLister(r *reconciler) (l *leaseLister, notified map[string]int) {
	notified = make(map[string]int)
	return &leaseLister{
		reconciler: r, own: &ownNode{}, failed: &unreadable{log: r.log},
		notify: func(_ context.Context, node string) { notified[node]++ },
	}, notified
}

// After the clock was set, each Lease counts as seen for the first time: set back, none would be unchanged for a grace period
// for as long, and set forward each would be at once.
func TestClockSet(t *testing.T) {
	for _, tt := range []struct {
		set    time.Duration
		forget bool
	}{{0, false}, {time.Second, false}, {-time.Second, false}, {time.Hour, true}, {-time.Hour, true}} {
		for _, list := range []bool{false, true} {
			start := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
			elapsed := time.Minute
			l := &leases{elapsed: func() time.Duration { return elapsed }}
			see := func(now time.Time) time.Time {
				elapsed += 10 * time.Second
				if r := (renewal{renewed: start, version: 5}); !list {
					return l.observe("n1", r, now)
				} else {
					l.list(map[string]renewal{"n1": r}, now, now)
				}
				return l.lease("n1", now).UnchangedSince
			}
			see(start)
			set := start.Add(10*time.Second + tt.set)
			want := start
			if tt.forget {
				want = set
			}
			for i := range 3 {
				if got := see(set.Add(time.Duration(i) * 10 * time.Second)); !got.Equal(want) {
					t.Errorf("set by %v, list %t: unchanged since %v; want %v", tt.set, list, got, want)
				}
			}
		}
	}
}

// The list is served from the API server's cache, and is of one namespace.
func TestLeaseRequest(t *testing.T) {
	r, _ := testReconciler(t, nil, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, options ...client.ListOption) error {
			var got client.ListOptions
			got.ApplyOptions(options)
			if raw := got.AsListOptions(); raw.ResourceVersion != "0" || raw.Limit != 0 || got.Namespace != leaseNamespace {
				t.Errorf("list of %s with %+v; want resourceVersion 0 and no limit", got.Namespace, raw)
			}
			return c.List(ctx, o, options...)
		},
	}, leaseOf("n1", time.Now()), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "n2"}})
	all, err := r.observer.live.leases(t.Context())
	if _, ok := all["n1"]; err != nil || len(all) != 1 || !ok {
		t.Errorf("leases = %v, %v; want that of n1, because that of n2 was never renewed", all, err)
	}
}

// There are several lists in one grace period, and not more than one each second.
func TestListPeriod(t *testing.T) {
	r, _ := testReconciler(t, nil, interceptor.Funcs{})
	l, _ := testLister(r)
	for grace, want := range map[time.Duration]time.Duration{
		time.Minute: 10 * time.Second, time.Hour: 10 * time.Second, 12 * time.Second: 2 * time.Second, time.Second: time.Second,
	} {
		r.config.config.Policy.Timings.Grace.Duration = grace
		if got := l.period(); got != want {
			t.Errorf("grace %v: period %v; want %v", grace, got, want)
		}
	}
	r.config.loaded = false
	if got := l.period(); got != configWait {
		t.Errorf("without a configuration: period %v; want %v", got, configWait)
	}
}

// The leader lists until it is stopped, and ends with an error when it must not be the leader.
func TestListerStart(t *testing.T) {
	for name, dead := range map[string]bool{"stopped": false, "own node not Ready": true} {
		synctest.Test(t, func(t *testing.T) {
			lists := 0
			n := healthyNode("n1")
			if dead {
				n = deadNode()
			}
			r, _ := testReconciler(t, nil, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, options ...client.ListOption) error {
					if _, ok := o.(*coordinationv1.LeaseList); ok {
						lists++
					}
					return c.List(ctx, o, options...)
				},
			}, n, replica("n2"))
			l, _ := testLister(r)
			l.own = &ownNode{name: "n1", live: r.observer.live}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute-time.Second)
			defer cancel()
			began := time.Now()
			err := l.Start(ctx)
			if (err != nil) != dead || dead && time.Since(began) > ownNodeGrace+leasePeriod || !dead && lists != 6 {
				t.Errorf("%s: Start = %v after %v and %d lists", name, err, time.Since(began), lists)
			}
		})
	}
}

// listFor lists the Leases and reconciles n1, as the leader does, for a time.
func listFor(t *testing.T, l *leaseLister, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		l.list(t.Context())
		reconcileFor(t, l.reconciler, min(leasePeriod, time.Until(end)))
	}
}

func setReady(t *testing.T, api client.Client, status corev1.ConditionStatus) {
	t.Helper()
	n := getNode(t, api)
	n.Status.Conditions[0].Status = status
	if err := api.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// A node is fenced one grace period after its last renewal, not after it became not Ready. With a Node cache that is a
// minute late, too: the list has it looked at.
func TestFencedAfterLastRenewal(t *testing.T) {
	for name, late := range map[string]bool{"cache": false, "late cache": true} {
		synctest.Test(t, func(t *testing.T) {
			renewed := time.Now().Truncate(time.Microsecond)
			r, api := testReconciler(t, &faultyDevice{uuid: machine}, interceptor.Funcs{},
				healthyNode("n2"), healthyNode("n3"), deadNode(), leaseOf("n1", renewed))
			setReady(t, api, corev1.ConditionTrue)
			if late {
				_, r.cached = testReconciler(t, nil, interceptor.Funcs{}, getNode(t, api), healthyNode("n2"), healthyNode("n3"))
			}
			l, notified := testLister(r)
			time.Sleep(3 * time.Second)
			listFor(t, l, 40*time.Second)
			setReady(t, api, corev1.ConditionUnknown)
			grace := testPlan().Timings.Grace.Duration
			listFor(t, l, time.Until(renewed.Add(grace-time.Second)))
			if nf := getFence(t, api); nf != nil {
				t.Errorf("%s: fence created %v after the last renewal", name, time.Since(renewed))
			}
			listFor(t, l, time.Until(renewed.Add(grace+2*leasePeriod)))
			nf := getFence(t, api)
			if nf == nil {
				t.Fatalf("%s: no fence %v after the last renewal", name, time.Since(renewed))
			}
			if since := nf.State.History[0].At.Sub(renewed); since < grace || since > grace+leasePeriod+3*time.Second {
				t.Errorf("%s: fenced %v after the last renewal; want %v and at most %v more", name, since, grace, leasePeriod)
			}
			if (notified["n1"] > 0) != late || notified["n2"] > 0 {
				t.Errorf("%s: nodes looked at because of their Leases: %v", name, notified)
			}
		})
	}
}

// A list that fails in an outage of the API server begins the grace period again. One that is refused does not: the
// Lease of the node is read all the same.
func TestFailedList(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		held bool
	}{
		"outage":  {unavailable(), true},
		"network": {context.DeadlineExceeded, true},
		"refused": {refuseAccess("leases"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			fail := false
			r, api := testReconciler(t, &faultyDevice{uuid: machine}, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, options ...client.ListOption) error {
					if _, ok := o.(*coordinationv1.LeaseList); ok && fail {
						return tt.err
					}
					return c.List(ctx, o, options...)
				},
			}, deadNode(), healthyNode("n2"), healthyNode("n3"), leaseOf("n1", time.Now().Add(-time.Hour)))
			l, _ := testLister(r)
			grace := testPlan().Timings.Grace.Duration
			listFor(t, l, grace-leasePeriod-time.Second)
			fail = true
			l.list(t.Context())
			fail = false
			time.Sleep(firstReadBackoff)
			listFor(t, l, 2*leasePeriod)
			if held := getFence(t, api) == nil; held != tt.held {
				t.Errorf("%s: fence held: %t; want %t", name, held, tt.held)
			}
			listFor(t, l, grace)
			if getFence(t, api) == nil {
				t.Errorf("%s: no fence one grace period after it", name)
			}
		})
	}
}

// The Leases of the storm policy's members are those of the list. Nodes in repair are among the members, because the
// majority of the control plane is one of all its nodes.
func TestMembers(t *testing.T) {
	now := time.Now()
	l := &leases{}
	nodes := []corev1.Node{*healthyNode("n1"), *healthyNode("n2")}
	nodes[1].Labels = map[string]string{labelExclude: "true"}
	if got := members(nodes, l, now); len(got) != 2 || got[0].Excluded || !got[1].Excluded || got[0].Lease.Known {
		t.Errorf("members without a list = %+v; want two with unknown Leases, n2 excluded", got)
	}
	l.list(map[string]renewal{"n1": {now, 1}}, now, now)
	want := fence.Lease{Known: true, Found: true, Renewed: now, UnchangedSince: now}
	if got := members(nodes, l, now)[0].Lease; got != want {
		t.Errorf("Lease of n1 = %+v; want that of the list", got)
	}
}

// A pass over 1,000 nodes takes one list of 1,000 Leases.
func BenchmarkListLeases(b *testing.B) {
	all := make(map[string]renewal, 1000)
	for i := range 1000 {
		all[fmt.Sprint("node-", i)] = renewal{time.Now(), uint64(i)}
	}
	l := &leases{}
	b.ReportAllocs()
	for b.Loop() {
		l.list(all, time.Now(), time.Now())
	}
}
