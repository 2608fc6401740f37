package kube

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// A pod that is being deleted, or has left the API, ends without evictd.
func TestEndingPod(t *testing.T) {
	f := NewFacts()
	spec := func() *evict.Pod {
		t.Helper()
		s := f.Specification(running())
		if s == nil {
			t.Fatal("no specification")
		}
		return s
	}
	f.put(web(), testTime)
	if s := spec(); s.Ending || !s.EndsBy.IsZero() {
		t.Errorf("specification %+v; want a pod that does not end", s)
	}
	f.takeChanged()
	deleted := web()
	deleted.Deleted = testTime.Add(time.Minute)
	f.put(deleted, time.Now())
	if s := spec(); !s.Ending || !s.EndsBy.Equal(deleted.Deleted) || !f.takeChanged() {
		t.Errorf("specification %+v; want a pod that ends in a minute, and that the facts have changed", s)
	}
	f.put(web(), time.Now())
	f.takeChanged()
	f.gone("u1", time.Now())
	if s := spec(); !s.Ending || !s.EndsBy.IsZero() || !f.takeChanged() {
		t.Errorf("specification %+v; want a pod that ends, and that the facts have changed", s)
	}
	if known := f.pods["u1"].spec; known.Ending {
		t.Error("the facts themselves were changed")
	}
	f.put(web(), time.Now())
	if s := spec(); s.Ending || !f.takeChanged() {
		t.Errorf("specification %+v of a pod that is in the API again; want one that does not end", s)
	}
}

func TestArrivals(t *testing.T) {
	since := testTime.Add(500 * time.Millisecond)
	pod := func(uid string, change func(*Pod)) *Pod {
		p := tiny(0)
		p.UID, p.Phase, p.QoS, p.Bound = uid, "Pending", evict.BestEffort, since.Add(time.Second)
		change(p)
		return p
	}
	f := completeFacts()
	for _, p := range []*Pod{
		pod("new", func(*Pod) {}),
		pod("cluster", func(p *Pod) { p.Namespace = "kube-system" }),
		pod("burstable", func(p *Pod) { p.QoS = evict.Burstable }), // evict.Step decides
		pod("before", func(p *Pod) { p.Bound = testTime.Add(-time.Second) }),
		pod("same second", func(p *Pod) { p.Bound = testTime }), // first seen later
		pod("unknown", func(p *Pod) { p.Bound = time.Time{} }),
		pod("exclusive", func(p *Pod) { p.Exclusive = ExclusiveClaim }),
		pod("deleted", func(p *Pod) { p.Deleted = since.Add(time.Minute) }),
		pod("runs", func(p *Pod) { p.Phase = "Running" }),
		pod("listed", func(*Pod) {}),
		pod("gone", func(*Pod) {}),
	} {
		p.UID = spaceless(p.UID)
		if why := f.put(p, since.Add(2*time.Second)); why != "" {
			t.Fatal(why)
		}
	}
	// Its facts were there before, by evictd's clock.
	early := pod("early", func(p *Pod) { p.Bound = since.Add(time.Hour) })
	f.put(early, since.Add(-time.Second))
	early = pod("early", func(p *Pod) { p.Priority = 1 })
	f.put(early, since.Add(time.Minute))
	f.Specification(&evict.Pod{UID: "listed", Namespace: "default", Name: "web-0", Kubelet: true, QoS: evict.BestEffort})
	f.gone("gone", since.Add(2*time.Second))
	var got []string
	for _, p := range f.Arrivals(since, since.Add(3*time.Second)) {
		got = append(got, p.UID)
		if !p.Kubelet || p.UID != "samesecond" && !p.Arrived.Equal(since.Add(2*time.Second-1)) || (p.ProtectedReason != "") != (p.UID == "cluster") {
			t.Errorf("arrival %+v; want a kubelet's pod, protected only in kube-system", p)
		}
	}
	slices.Sort(got)
	if want := []string{"burstable", "cluster", "new", "samesecond"}; !slices.Equal(got, want) {
		t.Errorf("Arrivals() = %q; want %q", got, want)
	}
	if (*Facts)(nil).Arrivals(since, since) != nil {
		t.Error("arrivals without evictd-kube")
	}
}

func spaceless(s string) string {
	return string(slices.DeleteFunc([]byte(s), func(c byte) bool { return c == ' ' }))
}

// A new BestEffort pod is a change of the facts only while somebody asks for arrivals.
func TestArrivalIsAChange(t *testing.T) {
	f, now := NewFacts(), testTime
	put := func(i int, qos evict.QoS) bool {
		p := tiny(i)
		p.QoS = qos
		f.put(p, now)
		return f.takeChanged()
	}
	if put(1, evict.BestEffort) {
		t.Error("changed before Arrivals")
	}
	f.Arrivals(now, now)
	if put(2, evict.Burstable) || !put(3, evict.BestEffort) || put(3, evict.BestEffort) {
		t.Error("want a change by the first facts of a BestEffort pod alone")
	}
	now = now.Add(arrivalsWatched)
	if put(4, evict.BestEffort) {
		t.Error("changed long after Arrivals")
	}
}

// completeFacts returns facts after a complete list without pods.
func completeFacts() *Facts {
	f := NewFacts()
	f.begin()
	f.listed(testTime)
	return f
}

// arrivedPod returns a pod that was bound at a time.
func arrivedPod(uid string, bound time.Time) *Pod {
	p := tiny(0)
	p.UID, p.Phase, p.QoS, p.Bound = uid, "Pending", evict.BestEffort, bound
	return p
}

// After a restart of evictd, a pod came when evictd first knew of it, also if the API server's
// clock is ahead.
func TestArrivalIsRestored(t *testing.T) {
	for _, skew := range []time.Duration{-time.Minute, 10 * time.Minute} {
		f := completeFacts()
		f.put(arrivedPod("p", testTime.Add(skew)), testTime)
		want := f.pods["p"].spec.Arrived
		restart := testTime.Add(time.Hour)
		restored := NewFacts()
		if err := restored.Restore(encoded(t, f), restart); err != nil {
			t.Fatal(err)
		}
		p := arrivedPod("p", testTime.Add(skew))
		p.Priority = 1 // a first list with other facts
		restored.begin()
		restored.put(p, restart)
		restored.put(arrivedPod("meanwhile", restart.Add(skew)), restart)
		restored.listed(restart)
		if got := restored.pods["p"].spec.Arrived; want.IsZero() || want.After(testTime) || !got.Equal(want) {
			t.Errorf("skew %v: arrived at %v; want %v as before the restart", skew, got, want)
		}
		if got := restored.pods["meanwhile"].spec.Arrived; !got.IsZero() {
			t.Errorf("skew %v: a pod of the first list arrived at %v; want unknown", skew, got)
		}
	}
}

// Facts that were saved without the arrival do not say when the pod came.
func TestArrivalIsNotSaved(t *testing.T) {
	f := completeFacts()
	content := `{"format":1,"pods":[{"uid":"p","namespace":"default","name":"web-0","priority":0,"containers":[{"name":"c"}],"bound":"2026-01-02T03:04:05Z"},null,{}]}`
	if err := f.Restore([]byte(content), testTime); err != nil || len(f.pods) != 1 {
		t.Fatalf("Restore() = %v, %d pods; want one", err, len(f.pods))
	}
	if got := f.pods["p"].spec.Arrived; !got.IsZero() {
		t.Errorf("arrived at %v; want unknown", got)
	}
}

// It is not known when a pod came that may have been there before its facts.
func TestUnknownArrival(t *testing.T) {
	now := time.Now()
	for name, prepare := range map[string]func(*Facts){
		"":                  func(*Facts) {},
		"of the first list": func(f *Facts) { f.completed = false },
		"listed by the runtime": func(f *Facts) {
			f.Specification(&evict.Pod{UID: "p", Namespace: "default", Name: "web-0", Kubelet: true})
		},
		"deleted to make room": func(f *Facts) {
			f.put(arrivedPod("p", now), now)
			f.remove(f.pods["p"])
			f.refuse(tiny(0), "")
			f.refuse(arrivedPod("p", now), "")
		},
		"without the time of bound": func(*Facts) {},
	} {
		f := completeFacts()
		prepare(f)
		p := arrivedPod("p", now.Add(time.Hour))
		if name == "without the time of bound" {
			p.Bound = time.Time{}
		}
		f.put(p, now)
		if got := f.pods["p"].spec.Arrived; got.IsZero() != (name != "") {
			t.Errorf("%q: arrived at %v", name, got)
		}
	}
}

// A pod with reduced facts is no arrival: what exempts it may be left out.
func TestReducedIsNoArrival(t *testing.T) {
	f, now := completeFacts(), testTime
	full := arrivedPod("p", now)
	full.Labels = map[string]string{"guard": "yes"}
	small, _, err := full.smallest()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		p    *Pod
		want int
	}{{small, 0}, {full, 1}, {small, 0}} {
		f.put(tt.p, now)
		if got := f.Arrivals(now.Add(-time.Minute), now); len(got) != tt.want {
			t.Errorf("reduced %t: %d arrivals; want %d", tt.p.Reduced, len(got), tt.want)
		}
		if got := f.pods["p"].spec.Arrived; got.IsZero() != tt.p.Reduced {
			t.Errorf("reduced %t: arrived at %v", tt.p.Reduced, got)
		}
	}
}

// An arrival whose report was forbidden is exempt, as such a running pod is.
func TestForbiddenArrival(t *testing.T) {
	f := completeFacts()
	f.Forbidden = func(uid string) bool { return uid == "p" }
	f.put(arrivedPod("p", testTime), testTime)
	f.put(arrivedPod("q", testTime), testTime)
	for _, p := range f.Arrivals(testTime.Add(-time.Minute), testTime) {
		if (p.Unreportable != "") != (p.UID == "p") {
			t.Errorf("pod %s: unreportable because of %q", p.UID, p.Unreportable)
		}
	}
}
