package loop

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Under memory pressure a BestEffort pod that comes is refused, and recorded with what became of
// that.
func TestRefusesArrival(t *testing.T) {
	const on = "admission: evict\n"
	for _, tt := range []struct {
		name, settings string
		change         func(*node)
		err            error
		asked, refused bool
		result, log    string
	}{
		{name: "reported", settings: on, asked: true, refused: true, result: evict.ResultRefused, log: "refusing pod"},
		{name: "not reported", settings: on, err: errors.New("too many"), asked: true, refused: true, result: evict.ResultFailed, log: "refused pod is not reported to the API server; its kubelet starts it"},
		{name: "dry run", settings: "dryRun: true\n" + on, asked: true, result: evict.ResultDryRun, log: "would refuse pod"},
		{name: "off", settings: "admission: off\n"},
		{name: "override", settings: "kubelet: override\n" + on},
		{name: "without a kubelet", settings: on, change: func(n *node) { n.kubelet = false }},
		{name: "without pressure", settings: on, change: func(n *node) { n.used = 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var since time.Time
			var refused []string
			run(t, settings+"kube: {uid: 7}\n"+tt.settings, func(n *node) {
				n.pass(3 * time.Second)
				if !since.IsZero() != tt.asked {
					t.Errorf("asked for arrivals since %v; want asked %t", since, tt.asked)
				}
				if (len(refused) > 0) != tt.refused || tt.refused && !slices.Equal(refused, []string{"default/new The node had condition: [MemoryPressure]. "}) {
					t.Errorf("refused %q; want %t", refused, tt.refused)
				}
				records := n.execute.Records().List()
				if tt.result == "" {
					if len(records) > 0 {
						t.Errorf("records %+v; want none", records)
					}
					return
				}
				if len(records) != 1 {
					t.Fatalf("records %+v; want one", records)
				}
				if r := records[0]; r.UID != "new" || r.Cause != evict.CauseAdmission || r.Result != tt.result || r.DryRun != (tt.result == evict.ResultDryRun) || (r.Error != "") != (tt.err != nil) || r.Decided.IsZero() {
					t.Errorf("record %+v; want the result %s", r, tt.result)
				}
				if !slices.Contains(n.messages(), tt.log) {
					t.Errorf("messages %q; want %q", n.messages(), tt.log)
				}
			}, func(n *node, o *Options) {
				n.kubelet, n.used = true, 15*gi+gi/2
				if tt.change != nil {
					tt.change(n)
				}
				o.Arrivals = func(from, now time.Time) []evict.Pod {
					since = from
					return []evict.Pod{{UID: "new", Namespace: "default", Name: "new", Kubelet: true, QoS: evict.BestEffort, Priority: new(int32(0)), Arrived: from.Add(time.Millisecond)}}
				}
				o.Refuse = func(order *evict.Order, decided time.Time) error {
					refused = append(refused, order.Pod+" "+order.Message)
					return tt.err
				}
			})
		})
	}
}

// While a pod that ends by itself covers a hard threshold, the loop looks again soon enough to see
// that less than half of the threshold is left: no lane raises another alarm.
func TestCoveredCrossing(t *testing.T) {
	run(t, settings, func(n *node) {
		n.pass(time.Second)
		n.mu.Lock()
		n.pods[1].Ending = true
		n.mu.Unlock()
		n.pass(time.Second)
		n.grow("a", 13*gi+gi/2)
		n.alarm()
		n.pass(5 * time.Millisecond)
		n.wantCalls("half of the threshold is left")
		n.grow("a", 14*gi+gi/4)
		n.pass(2 * settlingInterval)
		if n.runs("a") && len(n.took()) == 0 {
			t.Error("no pod is evicted below half of the threshold")
		}
	}, func(n *node, _ *Options) { n.add("a", gi); n.add("b", 2*gi-gi/4) })
}

// The record of a pod that ends by itself says that its status does not get the condition.
func TestRecordOfEndingPod(t *testing.T) {
	run(t, settings, func(n *node) {
		n.observe(signal.PIDAvailable, 50)
		n.pass(3 * time.Second)
		if r := n.record("a"); r.DisruptionTarget || r.Result == "" {
			t.Errorf("record %+v; want one without DisruptionTarget", r)
		}
	}, func(n *node, _ *Options) {
		n.add("a", gi)
		n.pods[0].Usage.PIDs, n.pods[0].Ending = 600, true
	})
}

// A pod that was refused does not keep the loop at its shortest interval.
func TestIntervalAfterRefusal(t *testing.T) {
	v := &View{State: evict.State{Victims: []evict.Victim{{Cause: evict.CauseAdmission, Status: evict.Unsettled}}}}
	if got := levelInterval(v); got != idleInterval {
		t.Errorf("levelInterval() = %v; want %v", got, idleInterval)
	}
	v.State.Victims[0].Cause = "memory.available"
	if got := levelInterval(v); got != settlingInterval {
		t.Errorf("levelInterval() = %v; want %v for an eviction", got, settlingInterval)
	}
}

// When evictd ends before a decision is carried out, no pod is refused either: the state, which
// stays that of the last decision, would not have the refusal.
func TestStopRefusesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ask, refused bool
		n := newNode(t, settings+"kube: {uid: 7}\nadmission: evict\n", func(n *node, o *Options) {
			n.kubelet = true
			n.add("b", gi)
			n.add("c", gi)
			o.Arrivals = func(from, now time.Time) []evict.Pod {
				ask = true
				if !n.arbiter.neverAcquires {
					return nil
				}
				return []evict.Pod{{UID: "new", Namespace: "default", Name: "new", Kubelet: true, QoS: evict.BestEffort, Priority: new(int32(0)), Arrived: from.Add(time.Millisecond)}}
			}
			o.Refuse = func(*evict.Order, time.Time) error { refused = true; return nil }
		})
		stop := n.start()
		n.grow("b", 14*gi+gi/2)
		n.alarm()
		n.pass(5 * time.Second) // b is gone
		n.arbiter.neverAcquires = true
		n.grow("c", 15*gi+gi/2)
		n.alarm()
		stop()
		if !ask || refused {
			t.Errorf("asked for arrivals %t, refused %t; want only the former", ask, refused)
		}
	})
}
