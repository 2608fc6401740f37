package kube

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

var testTime = time.Date(2026, 11, 22, 20, 0, 0, 0, time.UTC)

// running is web as the runtime has it.
func running() *evict.Pod {
	return &evict.Pod{UID: "u1", Namespace: "default", Name: "web-0", Kubelet: true, QoS: evict.Burstable}
}

func TestSpecification(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(*Pod, *evict.Pod)
		used    bool
		refused string
	}{
		{"fits", func(*Pod, *evict.Pod) {}, true, ""},
		{"no cgroup that names a class", func(_ *Pod, r *evict.Pod) { r.QoS = "" }, true, ""},
		{"class computed", func(p *Pod, _ *evict.Pod) { p.QoS = "" }, true, ""},
		{"not a kubelet's", func(_ *Pod, r *evict.Pod) { r.Kubelet = false }, false, ""},
		{"static", func(_ *Pod, r *evict.Pod) { r.Static = true }, false, ""},
		{"other UID", func(_ *Pod, r *evict.Pod) { r.UID = "u2" }, false, ""},
		{"other name", func(_ *Pod, r *evict.Pod) { r.Name = "web-1" }, false, "the runtime's pod of this UID is default/web-1"},
		{"other namespace", func(_ *Pod, r *evict.Pod) { r.Namespace = "prod" }, false, "the runtime's pod of this UID is prod/web-0"},
		{"other class", func(_ *Pod, r *evict.Pod) { r.QoS = evict.Guaranteed }, false, "its QoS class is Burstable, and its cgroup is that of a Guaranteed pod"},
		{"node-critical by its score", func(_ *Pod, r *evict.Pod) { r.Priority = new(int32(evict.SystemCriticalPriority)) }, false,
			"its priority is 7, and its oom_score_adj is that of a node-critical pod"},
		{"critical by both", func(p *Pod, r *evict.Pod) {
			p.Priority, r.Priority = 2_000_001_000, new(int32(evict.SystemCriticalPriority))
		}, true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, r, f := web(), running(), NewFacts()
			tt.change(p, r)
			if why := f.put(p, testTime); why != "" {
				t.Fatal(why)
			}
			for range 2 { // the second time is not another refusal
				if got := f.Specification(r); (got != nil) != tt.used {
					t.Errorf("Specification() = %v; want used %t", got, tt.used)
				}
			}
			s := f.Status(testTime)
			if tt.refused == "" {
				if s.Refusals != 0 || len(s.Refused) != 0 {
					t.Errorf("refusals %d, %v; want none", s.Refusals, s.Refused)
				}
				return
			}
			if s.Refusals != 1 || len(s.Refused) != 1 || s.Refused[0] != (Refusal{"default/web-0", "u1", tt.refused}) {
				t.Errorf("refusals %d, %+v; want %q", s.Refusals, s.Refused, tt.refused)
			}
			if about, ok := f.Describe("u1"); !ok || about.Refused != tt.refused {
				t.Errorf("Describe() = %+v, %t", about, ok)
			}
		})
	}
}

// Priority, class and owner of a UID stay those of the first fact, whatever comes, and
// the rest of the facts changes.
func TestPinned(t *testing.T) {
	f := NewFacts()
	f.put(web(), testTime)
	p := web()
	p.Priority, p.PriorityClassName, p.Owner = -5, "low", Owner{"DaemonSet", "d"}
	p.Containers[0].Resources.Requests.Memory = "2Gi"
	why := f.put(p, testTime)
	if want := `priority is -5 and was 7, priority class is "low" and was "high", owner is "DaemonSet/d" and was "StatefulSet/web"; the first is used`; why != want {
		t.Errorf("put() = %q; want %q", why, want)
	}
	got := f.Specification(running())
	if *got.Priority != 7 || got.PriorityClassName != "high" || got.DaemonSet || got.Containers[0].Resources.Requests.Memory.String() != "2Gi" {
		t.Errorf("Specification() = %+v; want the first priority, class and owner, and the new request", got)
	}
	if why := f.put(p, testTime); why == "" {
		t.Error("the same change again is taken; want it compared with the first facts")
	}
	if s := f.Status(testTime); s.Refusals != 1 || len(s.Refused) != 1 {
		t.Errorf("refusals %d, %v; want 1", s.Refusals, s.Refused)
	}
	// Facts of another pod with this UID are refused, and the first stay.
	p = web()
	p.Name = "other"
	if why := f.put(p, testTime); !strings.Contains(why, "was default/web-0 before") {
		t.Errorf("put() of another name = %q", why)
	}
	if f.Specification(running()) == nil {
		t.Error("the first facts are gone")
	}
	if why := f.put(web(), testTime); why != "" || len(f.Status(testTime).Refused) != 0 {
		t.Errorf("put() of the first facts = %q, refused %v; want none", why, f.Status(testTime).Refused)
	}
}

// Facts of a pod that is no longer in the API are used while the runtime lists it.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFacts()
		f.begin()
		f.put(web(), time.Now())
		f.listed(time.Now())
		for range 10 {
			if f.Specification(running()) == nil {
				t.Fatal("no facts while the pod runs")
			}
			f.begin()
			f.listed(time.Now())
			time.Sleep(retention / 2)
		}
		if about, ok := f.Describe("u1"); !ok || !about.Gone {
			t.Errorf("Describe() = %+v, %t; want gone", about, ok)
		}
		time.Sleep(retention)
		f.setState(&State{Connected: true}, time.Now())
		if n := f.Status(time.Now()).Pods; n != 0 || f.size != 0 {
			t.Errorf("%d pods of %d bytes are kept; want none", n, f.size)
		}
		f.put(web(), time.Now())
		f.gone("u1", time.Now())
		f.gone("unknown", time.Now())
		if n := f.Status(time.Now()).Pods; n != 0 {
			t.Errorf("%d pods after gone; want none", n)
		}
	})
}

// The age counts from the last sign of the API server, and is that of the disk until
// the first complete list.
func TestAge(t *testing.T) {
	f := NewFacts()
	asOf := func(now time.Time) time.Duration {
		s := f.Status(now)
		if s.AsOf.IsZero() {
			return -1
		}
		return now.Sub(s.AsOf)
	}
	f.connect(&Hello{Version: Version}, testTime)
	f.setState(&State{Connected: true, AgeMilliseconds: 500}, testTime)
	if got := asOf(testTime); got != -1 {
		t.Errorf("age before a list = %v; want unknown", got)
	}
	f.begin()
	f.put(web(), testTime)
	f.listed(testTime.Add(time.Second))
	if got := asOf(testTime.Add(time.Second)); got != 1500*time.Millisecond {
		t.Errorf("age = %v; want 1.5s", got)
	}
	for _, age := range []int64{-1, -9e18, 9e18, 60_000} { // none is younger
		f.setState(&State{AgeMilliseconds: age, Error: "a\x1b\nb"}, testTime.Add(2*time.Second))
	}
	s := f.Status(testTime.Add(2 * time.Second))
	if got := asOf(testTime.Add(2 * time.Second)); got != 2500*time.Millisecond || s.Error != "a  b" || s.Watching {
		t.Errorf("age = %v, %+v; want 2.5s, the error without control characters", got, s)
	}
	content := encoded(t, f)
	later := testTime.Add(time.Hour)
	f = NewFacts()
	if err := f.Restore(content, later); err != nil {
		t.Fatal(err)
	}
	if got := asOf(later); got != time.Hour+500*time.Millisecond || f.Specification(running()) == nil {
		t.Errorf("age after a restart = %v; want 1h0.5s, with facts", got)
	}
	f.connect(&Hello{Version: Version}, later)
	f.setState(&State{AgeMilliseconds: 0}, later)
	if got := asOf(later); got != time.Hour+500*time.Millisecond {
		t.Errorf("age before the first list = %v; want 1h0.5s", got)
	}
	// The wall clock is set back while evictd runs: the first age of a session counts.
	set := testTime.Add(-time.Hour)
	f.connect(&Hello{Version: Version}, set)
	f.begin()
	f.put(web(), set)
	f.listed(set)
	f.setState(&State{AgeMilliseconds: 2000}, set)
	if got := asOf(set.Add(time.Minute)); got != time.Minute+2*time.Second {
		t.Errorf("age after the clock was set back = %v; want 1m2s", got)
	}
	f = NewFacts()
	if err := f.Restore(content, testTime.Add(-time.Hour)); err != nil || asOf(testTime) != -1 {
		t.Errorf("Restore() with a clock that was set back = %v, age %v; want it unknown", err, asOf(testTime))
	}
}

// encoded returns the facts as they are saved.
func encoded(t *testing.T, f *Facts) []byte {
	t.Helper()
	var content bytes.Buffer
	if _, err := f.Encode(&content); err != nil {
		t.Fatal(err)
	}
	return content.Bytes()
}

// Saved facts of another format are refused as a whole, facts that are not valid one by one,
// and unknown keys not at all.
func TestRestoreRefuses(t *testing.T) {
	for _, content := range []string{"", "{", "[]", `{"format":2}`, `{"format":1,"pods":7}`} {
		if err := NewFacts().Restore([]byte(content), testTime); err == nil {
			t.Errorf("Restore(%q) = nil; want an error", content)
		}
	}
	f := NewFacts()
	if err := f.Restore([]byte(`{"format":1,"pods":[null,{"uid":""},{"uid":"u1","namespace":"a","name":"b","priority":1,"later":{},"containers":[{"name":"c"}]}],"orders":[]}`), testTime); err != nil {
		t.Fatal(err)
	}
	if s := f.Status(testTime); s.Pods != 1 || s.Refusals != 1 {
		t.Errorf("status %+v; want 1 pod and 1 refusal", s)
	}
}

// What evictd-kube says about its rights counts after a complete list, and is saved.
func TestCannotReport(t *testing.T) {
	f := NewFacts()
	say := func(why string) { f.setState(&State{AgeMilliseconds: -1, CannotReport: why}, testTime) }
	want := func(when, why string) {
		t.Helper()
		if got := f.CannotReport(); got != why || f.Status(testTime).CannotReport != why {
			t.Errorf("%s: CannotReport() = %q; want %q", when, got, why)
		}
	}
	const never = "evictd-kube has never connected"
	want("start", never)
	f.connect(&Hello{}, testTime)
	say("")
	want("before the list", never)
	f.connect(&Hello{}, testTime)
	f.begin()
	f.listed(testTime)
	want("before a state", never)
	version := f.Version()
	say("")
	want("after both", "")
	if f.Version() == version {
		t.Error("the facts are not saved after the change")
	}
	version = f.Version()
	say("")
	if f.Version() != version {
		t.Error("the facts are saved without a change")
	}
	f.connect(&Hello{}, testTime)
	f.begin()
	f.listed(testTime)
	say(rightsUnknown)
	want("evictd-kube does not know yet", "")
	f.connect(&Hello{}, testTime)
	say("no right to patch pods/status\n")
	want("next session, before the list", "")
	f.begin()
	f.listed(testTime)
	want("after the list", "no right to patch pods/status ")
	content := encoded(t, f)
	f = NewFacts()
	if err := f.Restore(content, testTime); err != nil {
		t.Fatal(err)
	}
	want("restart", "no right to patch pods/status ")
	f = NewFacts()
	if err := f.Restore([]byte(`{"format":1,"pods":[]}`), testTime); err != nil {
		t.Fatal(err)
	}
	want("facts of an earlier version", never)
}

// Without facts two instances of a pod must not run.
func TestExclusive(t *testing.T) {
	f, p := NewFacts(), web()
	p.Exclusive = ExclusiveStatefulSet
	if why := f.put(p, time.Now()); why != "" {
		t.Fatal(why)
	}
	for uid, want := range map[string]string{p.UID: ExclusiveStatefulSet, "other": ExclusiveUnknown} {
		if got := f.Exclusive(uid); got != want {
			t.Errorf("Exclusive(%s) = %q; want %q", uid, got, want)
		}
	}
}
