package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// tiny returns pod i with as few facts as possible.
func tiny(i int) *Pod {
	return &Pod{UID: fmt.Sprintf("u%d", i), Namespace: "default", Name: fmt.Sprintf("web-%d", i), Containers: []Container{{Name: "c"}}}
}

// fat returns pod i with as many facts, and as long names, as a tenant can write.
func fat(i int) *Pod {
	p := web()
	p.UID, p.Name, p.Labels = fmt.Sprintf("u%d", i), fmt.Sprintf("web-%d", i), map[string]string{}
	p.Owner = Owner{strings.Repeat("k", maxName), strings.Repeat("n", maxName)}
	for j := 0; ; j++ {
		key := fmt.Sprintf("label-%d", j)
		p.Labels[key] = strings.Repeat("v", 63)
		if p.cost() > maxPodSize {
			delete(p.Labels, key)
			return p
		}
	}
}

func TestFactsAreBounded(t *testing.T) {
	f := NewFacts()
	f.begin()
	for i := range 3 * MaxPods {
		f.put(tiny(i), testTime)
	}
	n, refused := f.listed(testTime)
	if n != MaxPods || len(refused) != maxNamed || len(f.refused) > maxRefused {
		t.Errorf("%d pods, %d named, %d refused; want %d, %d, at most %d", n, len(refused), len(f.refused), MaxPods, maxNamed, maxRefused)
	}
	if s := f.Status(testTime); s.Refusals != 2*MaxPods {
		t.Errorf("refusals %d; want %d", s.Refusals, 2*MaxPods)
	}
	f = NewFacts()
	for i := range MaxPods {
		f.put(fat(i), testTime)
	}
	sum, reduced := 0, 0
	for _, known := range f.pods {
		sum += known.pod.cost() + len(known.pinned) + len(known.refused)
		if known.pod.Reduced {
			reduced++
		}
	}
	if sum != f.size || sum > maxFactsSize || sum < maxFactsSize-maxPodSize || reduced < 100 {
		t.Errorf("%d pods of %d bytes, counted as %d, %d of them reduced; want all of at most %d", len(f.pods), sum, f.size, reduced, maxFactsSize)
	}
	// Nothing of a line that is refused is kept in full.
	f = NewFacts()
	p := web()
	p.UID, p.Name, p.Phase = strings.Repeat("u", maxPodSize), strings.Repeat("n", maxPodSize), strings.Repeat("p", maxPodSize)
	f.put(p, testTime)
	for uid, r := range f.refused {
		if n := len(uid) + len(r.namespace) + len(r.name) + len(r.uid) + len(r.why); n > 5*(maxText+10) {
			t.Errorf("a refused pod is kept in %d bytes", n)
		}
	}
	if len(f.refused) != 1 {
		t.Errorf("%d refused; want 1", len(f.refused))
	}
}

// Several hundred running pods have facts, however large each is and whatever other pods
// tenants write.
func TestRunningPodsHaveFacts(t *testing.T) {
	for _, flood := range []int{0, 2 * MaxPods} {
		testRunningPodsHaveFacts(t, flood)
	}
}

func testRunningPodsHaveFacts(t *testing.T, flood int) {
	f, now := NewFacts(), time.Now()
	for i := range flood {
		f.put(fat(i), now)
	}
	const first, running = 10_000, 400
	for i := range running {
		if f.Specification(runs(first+i)) != nil {
			t.Fatalf("pod %d has facts before they were sent", i)
		}
		if why := f.put(fat(first+i), now); why != "" {
			t.Fatalf("facts about running pod %d refused: %s", i, why)
		}
	}
	for i := range running {
		if p := f.Specification(runs(first + i)); p == nil || *p.Priority != 7 || p.Request(signal.Memory) == 0 {
			t.Fatalf("Specification(%d) = %+v; want its priority and request", i, p)
		}
	}
	if f.size > maxFactsSize || len(f.pods) > MaxPods {
		t.Errorf("%d pods of %d bytes; want at most %d of %d", len(f.pods), f.size, MaxPods, maxFactsSize)
	}
	// A peer that sends them again changes nothing, and larger ones need room, too.
	for i := range running {
		if why := f.put(fat(first+i), now); why != "" {
			t.Fatalf("facts about running pod %d refused the second time: %s", i, why)
		}
	}
}

// A tenant's pods that do not run take the whole room before the facts of another pod come.
// That pod has facts once it runs, and also without running once there is room again.
func TestFactsAfterAFlood(t *testing.T) {
	hog := &Pod{UID: "z", Namespace: "default", Name: "hog", Priority: 7, Containers: []Container{{Name: "c"}}}
	for name, after := range map[string]func(*Facts, *Feed){
		"it runs": func(facts *Facts, _ *Feed) {
			facts.Specification(&evict.Pod{UID: "z", Namespace: "default", Name: "hog", Kubelet: true})
		},
		"the flood ends": func(_ *Facts, feed *Feed) { feed.Remove("u0") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				facts, log := NewFacts(), slog.New(slog.DiscardHandler)
				feed := NewFeed("n1", "test", log)
				var flood []*Pod
				for i := range MaxPods {
					flood = append(flood, tiny(i))
				}
				feed.Replace(append(flood, hog))
				ctx, cancel := context.WithCancel(t.Context())
				evictdEnd, kubeEnd := net.Pipe()
				server := &Server{Facts: facts, Changed: func() {}, Log: log}
				go server.serveConn(ctx, evictdEnd)
				ended := make(chan error)
				go func() {
					_, err := feed.serve(ctx, kubeEnd)
					ended <- err
				}()
				has := func() bool {
					d, ok := facts.Describe("z")
					return ok && d.Refused == ""
				}
				time.Sleep(2 * askInterval)
				if has() {
					t.Fatal("facts before there is room; want none, else this tests nothing")
				}
				after(facts, feed)
				time.Sleep(askInterval + 2*StateInterval)
				if !has() || facts.Status(time.Now()).Pods != MaxPods {
					t.Errorf("facts %t, status %+v; want facts", has(), facts.Status(time.Now()))
				}
				cancel()
				<-ended
			})
		})
	}
}

// evictd does not ask for a list that would bring nothing, nor more often than every
// askInterval.
func TestWantsList(t *testing.T) {
	f, now := NewFacts(), testTime
	f.Specification(runs(0))
	if f.wantsList(now) {
		t.Error("wantsList() = true; want false for a pod whose facts were never refused")
	}
	for i := range MaxPods + 1 {
		f.put(tiny(i), now)
	}
	if f.wantsList(now) {
		t.Error("wantsList() = true; want false while there is no room")
	}
	asked := 0
	for range 60 {
		f.gone("u1", now)
		if f.wantsList(now) {
			asked++
		}
		f.put(tiny(1), now)
		f.put(tiny(MaxPods+1), now)
		now = now.Add(askInterval / 20)
	}
	if asked != 3 {
		t.Errorf("wantsList() = true %d times in %v; want 3", asked, 3*askInterval)
	}
}

// At the bound evictd visits all facts at most once a second, whatever a peer sends.
func TestPruneAtTheBound(t *testing.T) {
	f := NewFacts()
	for i := range MaxPods {
		f.put(tiny(i), testTime)
	}
	for _, tt := range []struct {
		after   time.Duration
		refused bool
	}{{0, true}, {pruneInterval - 1, true}, {pruneInterval, false}} {
		if got := f.put(tiny(MaxPods), testTime.Add(tt.after)) != ""; got != tt.refused {
			t.Errorf("after %v: refused = %t; want %t", tt.after, got, tt.refused)
		}
		if known := f.pods["u0"]; known != nil {
			known.gone = true // expired since the last visit
		}
	}
}

// Facts that expired are not deleted while they are replaced.
func TestReplaceExpired(t *testing.T) {
	f := NewFacts()
	f.put(tiny(0), testTime)
	f.pods["u0"].gone = true
	f.size = maxFactsSize // as with others
	if why := f.put(fat(0), testTime); why == "" || len(f.pods) != 1 || f.size != maxFactsSize {
		t.Errorf("put() = %q, %d pods of %d bytes; want it refused, and the earlier facts kept", why, len(f.pods), f.size)
	}
}

// A list whose pods are all refused or pinned formats and sorts those that it names.
func TestListFormatsWhatItNames(t *testing.T) {
	f := NewFacts()
	for i := range MaxPods {
		f.put(tiny(i), testTime)
		again := tiny(i)
		again.Priority, again.Owner = -1, Owner{"ReplicaSet", "r"}
		f.put(again, testTime)
	}
	if got := testing.AllocsPerRun(10, func() { f.listed(testTime) }); got > 20*maxNamed {
		t.Errorf("%v allocations for a list of %d pinned pods; want at most %d", got, MaxPods, 20*maxNamed)
	}
	if got := testing.AllocsPerRun(10, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.firstRefused()
	}); got > 3 {
		t.Errorf("%v allocations while the facts are locked; want at most 3", got)
	}
	_, refused := f.listed(testTime)
	if len(refused) != maxNamed || refused[0].Pod != "default/web-0" || refused[1].Pod != "default/web-1" || refused[2].Pod != "default/web-10" {
		t.Errorf("refused %+v; want the first %d by name", refused, maxNamed)
	}
}

// Facts that were stored in full are in full after a restart.
func TestRestartReducesNoFacts(t *testing.T) {
	f := NewFacts()
	for i := range MaxPods {
		f.put(fat(i), testTime)
	}
	full := func(f *Facts) (uids []string) {
		for uid, known := range f.pods {
			if !known.pod.Reduced {
				uids = append(uids, uid)
			}
		}
		slices.Sort(uids)
		return uids
	}
	for range 5 { // the order of the saved facts is random
		var saved bytes.Buffer
		if _, err := f.Encode(&saved); err != nil {
			t.Fatal(err)
		}
		next := NewFacts()
		if err := next.Restore(saved.Bytes(), testTime); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(full(f), full(next)); diff != "" || len(next.pods) != len(f.pods) {
			t.Fatalf("%d pods after a restart, %d before; in full (-before +after):\n%s", len(next.pods), len(f.pods), diff)
		}
	}
}
