package cluster

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/kube"
)

// writer is a nodeWriter with a Node and a clock.
type writer struct {
	t *testing.T
	nodeWriter
	now    time.Time
	node   *nodeObject
	denied nodeStep // a kind of request that is refused
}

func newWriter(t *testing.T, taints ...string) *writer {
	w := &writer{t: t, nodeWriter: newNodeWriter(), now: time.Date(2026, 11, 23, 1, 0, 0, 0, time.UTC), node: &nodeObject{uid: "u"}}
	for _, s := range taints {
		w.node.taints = append(w.node.taints, rawTaint(s))
	}
	return w
}

// step makes the next request and returns its kind, and when the next one is due.
func (w *writer) step() (nodeStep, time.Time) {
	due := w.now.Add(time.Hour)
	a, _ := w.next(w.now, &due)
	switch {
	case a.step == noStep:
		return noStep, due
	case a.step == w.denied:
		w.failed(a.step, refused, "no", 0, w.now)
		return a.step, due
	case a.step == writeTaints:
		w.node.taints = a.taints.after
	}
	read := *w.node
	read.conditions = w.node.conditions
	if w.object != nil { // as the API server merges them
		read.conditions = w.object.conditions
	}
	if read.conditions == nil {
		read.conditions = map[string]corev1.NodeCondition{}
	}
	w.achieved(&a, &read, w.now, w.now)
	w.node.conditions = w.object.conditions
	return a.step, due
}

// steps makes requests until none may start, and returns their kinds.
func (w *writer) steps() (list []nodeStep, due time.Time) {
	w.t.Helper()
	for range 20 {
		step, next := w.step()
		if step == noStep {
			return list, next
		}
		list = append(list, step)
	}
	w.t.Fatalf("requests without end: %v", list)
	return nil, due
}

func (w *writer) want(when string, want ...nodeStep) time.Time {
	w.t.Helper()
	got, due := w.steps()
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: requests %v; want %v", when, got, want)
	}
	return due
}

func pressure(number uint64, kinds ...string) *kube.NodeState {
	s := &kube.NodeState{Number: number}
	for kind := range kube.NodeConditions {
		s.Conditions = append(s.Conditions, kube.NodeCondition{Type: kind, Status: slices.Contains(kinds, kind)})
	}
	return s
}

// Before evictd's first state nothing changes. The conditions are written again within five
// minutes, and a taint that another client has removed is put back then.
func TestNodeHeartbeat(t *testing.T) {
	w := newWriter(t, disk+":NoSchedule")
	w.want("before the first state")
	w.set(pressure(1, "EvictdMemoryPressure"))
	w.want("first state", readNode, writeTaints, writeConditions)
	for range 20 {
		began := w.now
		due := w.want("nothing to do")
		if d := due.Sub(began); d < heartbeatInterval || d >= 5*time.Minute {
			t.Fatalf("next heartbeat after %v; want 4 to 5 minutes", d)
		}
		w.node.taints = nil
		w.now = due
		w.want("heartbeat", readNode, writeTaints, writeConditions)
	}
	w.set(pressure(2))
	w.want("change", writeTaints, writeConditions)
	w.now = w.want("nothing to do")
	w.want("heartbeat", readNode, writeConditions)
	w.set(nil)
	w.want("evictd is gone", writeConditions)
	began := w.now
	if w.now = w.want("one more look"); w.now.Sub(began) >= 5*time.Minute {
		t.Errorf("last look after %v; want it at the heartbeat", w.now.Sub(began))
	}
	w.want("last look", readNode)
	if due := w.want("nothing"); !due.Equal(w.now.Add(time.Hour)) {
		t.Errorf("due at %v without conditions; want never", due)
	}
}

// The taint of an order is written before evictd's first state, which removes no other one, and
// remains some seconds after the order, unless evictd has stopped.
func TestTaintOfOrder(t *testing.T) {
	w := newWriter(t, disk+":NoSchedule")
	w.ordered[memory] = true
	w.verify = w.now.Add(-taintTrust)
	w.want("order before the state", readNode, writeTaints)
	if got := taintsOf(w.node.taints); !slices.Equal(got, []string{disk + ":NoSchedule", memory + ":NoSchedule"}) {
		t.Errorf("taints %v; want the stale one to remain until the first state", got)
	}
	w.set(pressure(1))
	w.want("state", writeTaints, writeConditions)
	if !w.tainted(memory, w.verify) {
		t.Error("the taint is not known")
	}
	w.now = w.now.Add(5 * time.Second)
	w.verify = w.now.Add(-taintTrust)
	if w.tainted(memory, w.verify) {
		t.Error("the taint is known without a look")
	}
	w.want("later order", readNode)
	w.node.taints = nil // by another client
	w.now = w.now.Add(5 * time.Second)
	w.verify = w.now.Add(-taintTrust)
	w.want("order after another client has removed the taint", readNode, writeTaints)

	delete(w.ordered, memory)
	w.keepTaint(memory, w.now)
	w.keepTaint("other", w.now)
	began := w.now
	w.now = w.want("end of the order")
	if d := w.now.Sub(began); d != taintKept {
		t.Errorf("looks again after %v; want %v", d, taintKept)
	}
	w.want("end of the delay", writeTaints)
	w.keepTaint(memory, w.now)
	w.want("order", writeTaints)
	w.set(&kube.NodeState{Number: 2, Stopped: true})
	w.want("evictd has stopped", writeTaints, writeConditions)
	w.keepTaint(memory, w.now)
	w.want("order withdrawn by an evictd that has stopped")
	w.set(nil)
	w.want("evictd does not come back") // and remains stopped
}

// What can't be written does not keep the rest from being written, and is tried again after up to
// five minutes.
func TestNodeRefused(t *testing.T) {
	w := newWriter(t)
	w.set(pressure(1, "EvictdMemoryPressure"))
	w.denied = writeTaints
	w.want("refused taints", readNode, writeTaints, writeConditions)
	if !w.cannotTaint() {
		t.Error("orders wait for a taint that is refused")
	}
	last := time.Duration(0)
	for range 20 {
		began := w.now
		w.now = w.want("nothing to do")
		last = max(last, w.now.Sub(began))
		if last > longestRefusedDelay {
			t.Fatalf("tried again after %v", last)
		}
		got, _ := w.steps()
		if !slices.Contains(got, writeTaints) && !slices.Contains(got, writeConditions) {
			t.Fatalf("requests %v", got)
		}
	}
	if last < time.Minute {
		t.Errorf("tried again after %v in the end; want minutes", last)
	}
	due := w.now
	if _, clean := w.next(w.now, &due); clean || w.why() != "no" {
		t.Errorf("clean %t, why %q; want the reason", clean, w.why())
	}
	w.denied = noStep
	w.parts[writeTaints].missing = "a right"
	w.now = w.now.Add(time.Hour)
	w.want("missing right", readNode, writeConditions)
	if due := w.want("nothing to do"); due.Sub(w.now) >= 5*time.Minute {
		t.Errorf("next heartbeat after %v without the right to taint", due.Sub(w.now))
	}
	w.parts[writeTaints].missing = ""
	w.want("right", writeTaints)

	// Without the right to write conditions a taint that is gone is put back, too.
	w.parts[writeConditions].missing = "a right"
	w.now = w.now.Add(lookInterval)
	w.want("missing right", readNode)
	w.node.taints = nil
	w.now = w.want("nothing to do")
	w.want("look", readNode, writeTaints)
}

// A right that is back is used at once, whatever was refused without it.
func TestNodeRightIsBack(t *testing.T) {
	r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
	w := newWriter(t)
	w.set(pressure(1, "EvictdMemoryPressure"))
	w.denied = writeTaints
	for range 20 {
		w.steps()
		w.now = w.now.Add(longestRefusedDelay)
	}
	w.steps()
	r.nodes = w.nodeWriter
	r.setNodeRights(nodeRights)
	r.setNodeRights(nil)
	w.nodeWriter, w.denied = r.nodes, noStep
	if w.cannotTaint() {
		t.Error("taints count as refused")
	}
	w.want("rights", writeTaints)
}

// The delays after failures.
func TestNodeDelays(t *testing.T) {
	w := newWriter(t)
	longest := func(fail func(), of nodeStep) (d time.Duration) {
		for range 30 {
			fail()
			d = max(d, w.parts[of].notBefore.Sub(w.now))
		}
		return d
	}
	for name, tt := range map[string]struct {
		fail     func()
		of       nodeStep
		min, max time.Duration
	}{
		"overtaken": {func() { w.overtaken(writeTaints, w.now) }, readNode, longestRaceDelay / 2, longestRaceDelay},
		"no answer": {func() { w.failed(writeTaints, later, "x", 0, w.now) }, readNode, longestDelay / 2, longestDelay},
		"asked": {func() {
			w.failed(writeConditions, later, "x", 7*time.Second, w.now)
			w.parts[writeConditions].delay = 0
		}, writeConditions, 7 * time.Second, 9 * time.Second},
		"asked too long": {func() { w.failed(writeConditions, later, "x", time.Hour, w.now) }, writeConditions, longestDelay, longestDelay * 5 / 4},
		"forbidden":      {func() { w.failed(writeTaints, forbidden, "x", 0, w.now) }, writeTaints, longestRefusedDelay / 2, longestRefusedDelay},
		"no Node":        {func() { w.failed(readNode, podGone, "x", 0, w.now) }, readNode, longestDelay / 2, longestDelay},
	} {
		w.nodeWriter = newNodeWriter()
		if d := longest(tt.fail, tt.of); d < tt.min || d > tt.max {
			t.Errorf("%s: longest delay %v; want %v to %v", name, d, tt.min, tt.max)
		}
	}

	// The Node is read again soon after a write that had no answer.
	w = newWriter(t)
	w.set(pressure(1))
	w.want("state", readNode, writeConditions)
	w.set(pressure(2, "EvictdMemoryPressure"))
	w.failed(writeTaints, later, "x", 0, w.now)
	w.unreachable = true
	w.recovered(w.now)
	w.now = w.now.Add(recoveryDelay)
	began := w.now
	w.now = w.want("after the outage", readNode, writeTaints, writeConditions)
	if d := w.now.Sub(began); d != unsureInterval {
		t.Errorf("next look after %v; want %v", d, unsureInterval)
	}
}

// The reason of a write that has failed remains while the Node is read again, and no longer than the
// Node needs the write.
func TestNodeReasonRemains(t *testing.T) {
	w := newWriter(t)
	why := func(when, want string) {
		t.Helper()
		due := w.now
		if w.next(w.now, &due); w.why() != want {
			t.Errorf("%s: reason %q; want %q", when, w.why(), want)
		}
	}
	read := func() {
		t.Helper()
		w.now = w.parts[readNode].notBefore
		if step, _ := w.step(); step != readNode {
			t.Errorf("request %v; want a read", step)
		}
	}
	w.set(pressure(1))
	w.now = w.want("state", readNode, writeConditions)
	w.step() // the read of a heartbeat
	why("heartbeat", "")
	w.failed(writeConditions, later, "no answer", 0, w.now)
	why("heartbeat that has failed", "no answer")
	read()
	why("before it is repeated", "no answer")
	w.now = w.parts[writeConditions].notBefore
	w.want("repeated", writeConditions)
	why("written", "")

	w.set(pressure(2, "EvictdMemoryPressure"))
	why("new state", "")
	w.node.taints = append(w.node.taints, rawTaint(memory+":NoSchedule")) // carried out
	w.failed(writeTaints, later, "lost answer", 0, w.now)
	why("taint without an answer", "lost answer")
	read()
	why("taint that is there", "")
	w.failed(writeConditions, later, "no answer", 0, w.now)
	why("conditions", "no answer")
}

// A taint that the API server writes after the request for it had no answer is removed, also if evictd
// has no conditions, which would have heartbeats.
func TestLateTaintIsRemoved(t *testing.T) {
	w := newWriter(t)
	w.set(&kube.NodeState{Number: 1})
	w.want("dry run", readNode)
	w.failed(writeTaints, later, "no answer", 0, w.now) // the taint of an order, which then ends
	w.now = w.parts[readNode].notBefore
	began := w.now
	w.now = w.want("end of the order", readNode)
	if d := w.now.Sub(began); d != unsureInterval {
		t.Fatalf("next look after %v; want %v", d, unsureInterval)
	}
	w.node.taints = append(w.node.taints, rawTaint(memory+":NoSchedule"))
	w.want("taint written late", readNode, writeTaints)
	if len(w.node.taints) > 0 {
		t.Errorf("taints %v; want none", taintsOf(w.node.taints))
	}
	if due := w.want("nothing to do"); !due.Equal(w.now.Add(time.Hour)) {
		t.Errorf("due at %v; want never", due)
	}
}

// Only what the Node really has counts: a taint that can't be decoded is another's.
func TestOwnTaint(t *testing.T) {
	for raw, want := range map[string]string{
		`{"key":"evictd.io/memory-pressure","effect":"NoSchedule","value":"x"}`: memory,
		`{"key":"evictd.io/memory-pressure","effect":"NoExecute"}`:              "",
		`{"key":"evictd.io/other","effect":"NoSchedule"}`:                       "",
		`7`: "",
	} {
		if got := ownTaint(json.RawMessage(raw)); got != want {
			t.Errorf("ownTaint(%s) = %q; want %q", raw, got, want)
		}
	}
}

// An evictd in dry run whose rights to write were taken away needs nothing of conditions that are
// left at False or Unknown, but of a taint and of a condition that is true.
func TestNodeLeftOver(t *testing.T) {
	for name, tt := range map[string]struct {
		memory corev1.ConditionStatus
		taints []string
		why    string
	}{
		"nothing": {memory: corev1.ConditionFalse},
		"true":    {memory: corev1.ConditionTrue, why: "no right to conditions"},
		"taint":   {memory: corev1.ConditionFalse, taints: []string{memory + ":NoSchedule"}, why: "no right to taints"},
	} {
		w := newWriter(t, tt.taints...)
		w.node.conditions = map[string]corev1.NodeCondition{
			"EvictdMemoryPressure": {Type: "EvictdMemoryPressure", Status: tt.memory},
			"EvictdDiskPressure":   {Type: "EvictdDiskPressure", Status: corev1.ConditionUnknown, Reason: stopped[0], Message: stopped[1]},
		}
		w.parts[writeTaints].missing, w.parts[writeConditions].missing = "no right to taints", "no right to conditions"
		w.set(&kube.NodeState{Number: 1})
		w.want(name, readNode)
		due := w.now
		a, clean := w.next(w.now, &due)
		if why := w.why(); why != tt.why || clean != (tt.why == "") || w.refused(&a) != (tt.why != "") {
			t.Errorf("%s: why %q, clean %t, refused %t; want why %q", name, why, clean, w.refused(&a), tt.why)
		}
		w.parts[writeTaints].missing, w.parts[writeConditions].missing = "", ""
		if got, _ := w.steps(); !slices.Contains(got, writeConditions) {
			t.Errorf("%s: requests %v with the rights; want the conditions written", name, got)
		}
	}
}

// A report that waits does not hasten a request that the API server has asked to delay.
func TestHastenKeepsRetryAfter(t *testing.T) {
	w := newWriter(t)
	w.failed(writeTaints, later, "x", 7*time.Second, w.now)
	if at := w.now.Add(6 * time.Second); w.hasten(at) || w.parts[writeTaints].notBefore.Before(w.now.Add(7*time.Second)) {
		t.Error("hastened before the API server's Retry-After")
	}
	w.failed(writeTaints, later, "x", 0, w.now.Add(8*time.Second))
	if !w.hasten(w.now.Add(8 * time.Second)) {
		t.Error("not hastened after it")
	}
}

// A write of the Node alone that had no answer is no outage of the API server.
func TestNodeAloneUnanswered(t *testing.T) {
	for _, step := range []nodeStep{readNode, writeTaints} {
		for _, others := range []bool{false, true} {
			r := NewReporter("n1", &orders{}, slog.New(slog.DiscardHandler))
			now := time.Now()
			began := now.Add(-writeTimeout)
			r.answered = began.Add(-time.Second)
			if others {
				r.answered = began.Add(time.Second)
			}
			r.finishNode(&nodeAction{step: step}, nil, &connection{client: &client{}}, context.DeadlineExceeded, began, now)
			if want := step == readNode || !others; r.unreachable != want {
				t.Errorf("step %d, others answered %t: outage %t; want %t", step, others, r.unreachable, want)
			}
		}
	}
}
