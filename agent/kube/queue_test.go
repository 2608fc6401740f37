package kube

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Whatever changes while lists are sent and sessions end, evictd has the facts of the API when
// nothing changes any more.
func TestQueueConverges(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testQueueConverges(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

// testQueueConverges applies random events to a model of the API and to a feed, and compares
// evictd's facts with the model after they have ended.
//
// Complexity: a case for each kind of event.
//
//gocyclo:ignore
func testQueueConverges(t *testing.T, r *rand.Rand) {
	const most = 150
	s, f := quietServer(), quietFeed()
	if r.IntN(2) == 0 {
		s.decoded.take(decodeBurst, decodeBurst, decodeRate, time.Now()) // so that lists are long
	}
	api := map[string]*Pod{}
	pod := func() *Pod {
		p := pods(most)[r.IntN(most)]
		p.Labels = map[string]string{"revision": fmt.Sprint(r.IntN(3))}
		p.Started = r.IntN(2) == 0
		return p
	}
	all := func() (list []*Pod) {
		for _, p := range api {
			list = append(list, p)
		}
		return list
	}
	change := func() (uid string) {
		p := pod()
		if r.IntN(3) == 0 {
			delete(api, p.UID)
		} else {
			api[p.UID] = p
		}
		return p.UID
	}
	for range 80 {
		change()
	}
	f.Replace(all())
	l := connect(t, s, f)
	for range 400 {
		switch n := r.IntN(100); {
		case n < 80:
			if uid := change(); api[uid] != nil {
				f.Put(api[uid])
			} else {
				f.Remove(uid)
			}
		case n < 84: // the watch of the API was interrupted
			for range 10 {
				change()
			}
			f.Replace(all())
		case n < 90:
			f.ask(func(q *queue) { q.sendList = true })
		case n < 94:
			s.Facts.Specification(runs(r.IntN(most)))
		case n < 96:
			l.stop()
			l = connect(t, s, f)
		case n < 97: // evictd-kube restarts
			l.stop()
			f = quietFeed()
			f.Replace(all())
			l = connect(t, s, f)
		default:
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
		}
		if r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
		}
	}
	time.Sleep(2 * time.Minute)
	l.check()
	s.Facts.mu.Lock()
	defer s.Facts.mu.Unlock()
	for uid, known := range s.Facts.pods {
		if p := api[uid]; p == nil != known.gone {
			t.Errorf("pod %s: gone = %t; it is in the API: %t", uid, known.gone, p != nil)
		}
	}
	for uid, p := range api {
		want := *p
		want.Started = false
		if known := s.Facts.pods[uid]; known == nil || !reflect.DeepEqual(known.pod, &want) {
			t.Errorf("pod %s: facts %+v; want %+v", uid, known, p)
		}
	}
	if f.queue.listing || f.queue.sendList || len(f.queue.gone) > 0 {
		t.Errorf("listing %t, list wanted %t, %d gone; want nothing to be sent", f.queue.listing, f.queue.sendList, len(f.queue.gone))
	}
	l.cancel()
}

// sent returns the UIDs of the next lines, and waits for them as long as the queue says.
func sent(t *testing.T, q *queue, now *time.Time, most int) (uids []string) {
	t.Helper()
	for range 1000 {
		lines, wait, err := q.next(*now)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			m, err := decode(line[:len(line)-1])
			switch {
			case err != nil:
				t.Fatal(err)
			case m.Pod != nil:
				uids = append(uids, m.Pod.UID)
			case m.Gone != nil:
				uids = append(uids, "-"+m.Gone.UID)
			case m.List != nil:
				uids = append(uids, "list")
			case m.Listed != nil:
				uids = append(uids, "listed")
			}
		}
		if len(uids) >= most {
			return uids[:most]
		}
		*now = now.Add(wait)
	}
	return uids
}

func queueOf(t *testing.T, q *queue, p *Pod) {
	t.Helper()
	line, err := encodePod(p)
	if err != nil {
		t.Fatal(err)
	}
	if !q.put(p.UID, line, p.Started) {
		t.Fatalf("no room for %s", p.UID)
	}
}

func started(i int) *Pod {
	p := tiny(i)
	p.Started = true
	return p
}

// What evictd asks for is sent first, then pods that run, then pods that are gone, and then
// changes and pods that do not run, by turns.
func TestQueueOrder(t *testing.T) {
	q, now := newQueue(), testTime
	q.complete = true
	q.begin(lineBurst, decodeBurst, now)
	for _, p := range []*Pod{tiny(0), tiny(1), started(2), tiny(3), started(4)} {
		queueOf(t, &q, p)
	}
	q.want([]string{"u3", "unknown"})
	if got, want := sent(t, &q, &now, 7), []string{"list", "u3", "u2", "u4", "u0", "u1", "listed"}; !slices.Equal(got, want) {
		t.Errorf("sent %v; want %v", got, want)
	}
	now = now.Add(updateInterval)
	for _, i := range []int{2, 4} {
		p := started(i)
		p.Priority = 2
		queueOf(t, &q, p)
	}
	for _, i := range []int{5, 6, 7} {
		queueOf(t, &q, tiny(i))
	}
	q.remove("u0")
	q.remove("u5") // was not sent
	queueOf(t, &q, started(8))
	if got, want := sent(t, &q, &now, 6), []string{"u8", "-u0", "u2", "u6", "u4", "u7"}; !slices.Equal(got, want) {
		t.Errorf("sent %v; want %v", got, want)
	}
	// A pod that is known is sent again after updateInterval, unless evictd asks for it.
	began := now
	queueOf(t, &q, started(4))
	queueOf(t, &q, started(2))
	q.want([]string{"u2"})
	if got := sent(t, &q, &now, 1); got[0] != "u2" || now != began {
		t.Errorf("sent %v after %v; want u2 at once", got, now.Sub(began))
	}
	if got := sent(t, &q, &now, 1); got[0] != "u4" || now.Sub(began) != updateInterval {
		t.Errorf("sent %v after %v; want u4 after %v", got, now.Sub(began), updateInterval)
	}
}

// A deletion is sent at once, though evictd has just had facts about the pod, but only once.
func TestQueueSendsDeletionAtOnce(t *testing.T) {
	f := NewFeed("n1", "test", slog.New(slog.DiscardHandler))
	q, now := &f.queue, testTime
	f.Replace([]*Pod{started(1)})
	q.begin(lineBurst, decodeBurst, now)
	sent(t, q, &now, 3)
	began := now
	for _, tt := range []struct {
		change func(*Pod)
		want   time.Duration
	}{
		{func(p *Pod) { p.Deleted = testTime }, sendInterval},
		{func(p *Pod) { p.Deleted = testTime.Add(time.Minute) }, updateInterval + sendInterval},
	} {
		p := started(1)
		tt.change(p)
		f.Put(p)
		if got := sent(t, q, &now, 1); got[0] != "u1" || now.Sub(began) > tt.want || now.Sub(began) < tt.want-sendInterval {
			t.Errorf("sent %v after %v; want u1 after %v", got, now.Sub(began), tt.want)
		}
	}
}

// The queue is bounded, and keeps the pods that run, those that evictd asks for, and the others
// that came last.
func TestQueueIsBounded(t *testing.T) {
	q, now := newQueue(), testTime
	q.complete = true
	q.begin(lineBurst, decodeBurst, now)
	q.want([]string{"u1"})
	for i := range 3 * maxQueued {
		p := tiny(i)
		p.Started = i%10 == 0 && i < maxQueued
		queueOf(t, &q, p)
	}
	if len(q.pods) != maxQueued || len(q.gone) != 0 {
		t.Errorf("%d pods, %d gone; want %d, none", len(q.pods), len(q.gone), maxQueued)
	}
	for _, i := range []int{0, 1, 10, maxQueued - 10, 3*maxQueued - 1} {
		if q.pods[tiny(i).UID] == nil {
			t.Errorf("pod %d is not in the queue", i)
		}
	}
	for i := range maxQueued {
		line, _ := encodePod(started(10*maxQueued + i))
		q.put(started(10*maxQueued+i).UID, line, true)
	}
	if line, _ := encodePod(started(0)); q.put("another", line, true) || len(q.pods) != maxQueued {
		t.Errorf("%d pods that run; want another refused", len(q.pods))
	}
}

// A list ends although pods come all the time.
func TestListEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := quietServer(), quietFeed()
		s.decoded.take(decodeBurst, decodeBurst, decodeRate, time.Now())
		var first []*Pod
		for i := range 200 {
			first = append(first, tiny(i))
		}
		f.Replace(first)
		f.Confirm(time.Now())
		l := connect(t, s, f)
		for i := range 60 * 150 {
			f.Put(waitingPod(i))
			f.Remove(waitingPod(i - 1000).UID)
			if i%5 == 0 {
				f.Put(large(i%100+1000, fmt.Sprint(i)))
			}
			time.Sleep(time.Second / 150)
		}
		if s.Facts.Status(time.Now()).AsOf.IsZero() {
			t.Error("no list has ended in a minute")
		}
		l.stop()
	})
}
