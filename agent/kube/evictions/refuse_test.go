package evictions

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/pods"
)

// A refused pod is reported at once, without a fence, and its order ends with its sandbox.
func TestRefuse(t *testing.T) {
	n := newNode(t)
	n.run()
	n.running.Containers, n.running.LastStart = 0, 0
	p := n.connect(kube.AnswerReported, 0)
	n.refusePod()
	n.wantStage(kube.StageEnded)
	n.until("the answer", func() bool { return n.order().Answer == kube.AnswerReported })
	if o := n.order().Order; o.UID != testUID || o.Namespace != "shop" || o.Name != "web-0" || o.Reason != evict.ReasonEvicted || o.Message != "refused" {
		t.Errorf("order %+v; want that of the refusal", o)
	}
	n.wantFenced(false)
	if !n.checkNow() {
		t.Error("the sandbox is not waited for")
	}
	n.running = pods.Running{Known: true}
	if n.checkNow(); n.order() != nil {
		t.Errorf("order %+v after the end of the sandbox; want none", n.order())
	}
	if got := p.got(); !slices.Equal(got, []kube.Stage{kube.StageEnded}) {
		t.Errorf("evictd-kube got the stages %q; want the last alone", got)
	}
	if s := n.Status(); s != (Status{}) {
		t.Errorf("status %+v; want nothing about a fence", s)
	}
}

// A refused pod that starts nevertheless is killed, fenced and reported by another order.
func TestRefusedPodIsKilled(t *testing.T) {
	n := newNode(t)
	n.run()
	n.connect("", 0)
	n.refusePod()
	before := n.order().Order.ID
	time.Sleep(2 * time.Millisecond) // an order has the millisecond of its decision
	n.evict(false)
	n.fence()
	n.wantStage(kube.StageKilled)
	n.wantFenced(true)
	if o := n.order(); o.Order.ID == before {
		t.Errorf("order %+v; want another one than that of the refusal", o)
	}
}

// A refused pod whose sandbox the runtime does not list yet goes on: it may start later. Then it is not reported any
// more, but for a short time if it may run twice.
func TestRefusedPodStarts(t *testing.T) {
	for _, tt := range []struct {
		name      string
		exclusive string
		restart   bool
		after     time.Duration
		goesOn    bool
	}{
		{name: "just refused", after: lateReport - time.Second, goesOn: true},
		{name: "late", after: lateReport + time.Second},
		{name: "must not run twice", exclusive: kube.ExclusiveStatefulSet, after: time.Second},
		{name: "late, after a restart", restart: true, after: lateReport + time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			n.exclusive = tt.exclusive
			n.running = pods.Running{Known: true}
			n.refusePod()
			if tt.restart {
				n.save()
				n.restart(false)
				n.decided = true
			}
			if !n.checkNow() {
				t.Fatal("the pod is not followed until its sandbox is listed")
			}
			n.running = pods.Running{Known: true, Sandboxes: []string{"sandbox"}, Containers: 1, LastStart: time.Now().UnixNano()}
			n.check(t.Context(), time.Now().Add(tt.after))
			if goesOn := n.order() != nil; goesOn != tt.goesOn {
				t.Errorf("the order goes on: %t; want %t\n%s", goesOn, tt.goesOn, n.log)
			}
		})
	}
}
