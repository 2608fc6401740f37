package cluster

import (
	"context"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/kube"
)

const (
	// maxAssertions is how often a report that the kubelet has undone is written again, and
	// maxWrites is how often it is written in all.
	maxAssertions = 5
	maxWrites     = 1 + maxAssertions
	// maxMarks is how often the condition DisruptionTarget is written without the phase: for an hour in
	// which it is set back every two minutes.
	maxMarks = 30
	// The back-off between two requests for one order.
	firstDelay, longestDelay = 100 * time.Millisecond, 30 * time.Second
	// annotateDelay is when the annotation follows a first write without it. The controllers of
	// StatefulSets and DaemonSets have deleted the pod by then, as a rule.
	annotateDelay = 500 * time.Millisecond
	// repeatDelay is when AnswerReported follows AnswerAsserted, which would replace it before
	// it is sent.
	repeatDelay = time.Second
)

// task is an order that is carried out.
type task struct {
	order kube.Order
	// ctx is that of the requests for the order, and cancel ends it when the order is withdrawn.
	ctx    context.Context
	cancel context.CancelFunc
	// number is the place of the order among all, by which the oldest has precedence.
	number uint64
	// inFlight has the requests for the order that are in flight, by their kind.
	inFlight [deletePod + 1]int
	// sent is the number of the newest write of the phase that was sent, and sentAt the resource version
	// of the pod's state at that time; 0 if it was not known.
	sent   int
	sentAt uint64
	// firstSent is when the first write of the phase was given to the connection; zero before.
	firstSent time.Time
	// written is the number of the last write of the phase that the API server has confirmed. plain is
	// set if that was the first one, without the annotation, and the next one is due at annotateAt.
	written    int
	plain      bool
	annotateAt time.Time
	// version is the resource version of an object that has that write; 0 if none is known.
	version uint64
	// shown is set if the pod was seen as a write of the phase leaves it, whose answer may have been lost.
	shown bool
	// disrupted is set when the condition DisruptionTarget was written, marks is how often that was done without
	// the phase, and markVersion the resource version that the object had then; 0 if it is not known.
	disrupted   bool
	marks       int
	markVersion uint64
	// deletion is the answer that a deletion by this Reporter has; "" before.
	deletion kube.Answer
	// look is set if the pod must be read before anything else is done, and large if its status
	// can't be written for its size.
	look, large bool
	// answer is the last answer, why its reason, and ended is set if nothing else will be done.
	answer kube.Answer
	why    string
	ended  bool
	// announced has the reasons of the events that were emitted.
	announced map[string]bool
	// notBefore is when the next request may start, delay the back-off before the next one, and
	// unreachable is set if the last request had no answer.
	notBefore   time.Time
	delay       time.Duration
	unreachable bool
	// conflicts are those since the last write that has succeeded.
	conflicts int
	// late is how many writes were not answered in time since the last one that has succeeded.
	late int
	// forbidden is when the API server first refused the present request; zero if it did not.
	forbidden time.Time
	// repeat is when the answer is sent again; zero for never.
	repeat time.Time
	// arrived is when evictd has given the order, taintWait since when its report waits for its taint,
	// and taintDeadline until when if the API server answers; zero before. taintLast is set for the last
	// attempt at it, tainted if the report does not wait any more, and taintKept if it needs the taint
	// no more.
	arrived, taintWait, taintDeadline time.Time
	taintLast, tainted, taintKept     bool
}

// kind is the kind of a request for an order.
type kind int

const (
	nothing kind = iota
	readPod
	setCondition // the condition DisruptionTarget alone
	setPhase
	deletePod
)

// action is what is done next for an order: a request, or an answer without one.
type action struct {
	kind  kind
	write int // of setPhase
	// plain is set for a first write without the annotation, and annotate for the one that adds it.
	plain, annotate bool
	grace           int64 // of deletePod
	answer          kube.Answer
	why             string
	ended           bool
}

// busy reports whether a request must wait for another one of the same order. The phase does
// not wait for the condition, which is a part of the same patch, nor for the answer to a write
// that the watch has shown already. A repeated write is waited for, because the watch may have
// shown the first attempt, and the API server may carry out the second one after a later write.
func (t *task) busy(a action) bool {
	for k, n := range t.inFlight {
		if n == 0 || a.kind == setPhase && kind(k) == setCondition {
			continue
		}
		if shown := a.write > t.sent && t.delay == 0; a.kind == setPhase && kind(k) == setPhase && shown {
			continue
		}
		return true
	}
	return false
}

// reported reports whether the pod is reported or deleted, or will not be.
func (t *task) reported() bool { return t.written > 0 || t.deletion != "" || t.ended }

// superseded reports whether the outcome of a request no longer counts, because the phase was
// written since, or is being written.
func (t *task) superseded(a action) bool {
	switch a.kind {
	case setCondition:
		return t.written > 0 || t.inFlight[setPhase] > 0
	case setPhase:
		return a.write < t.sent
	}
	return false
}

// next returns what is done next for an order. p is the pod; nil if its state is not known.
func (t *task) next(p *podState) action {
	switch {
	case t.ended:
		return action{}
	case p == nil, t.look:
		return action{kind: readPod}
	case p.mirror != "":
		return action{answer: kube.AnswerForbidden, ended: true, why: "the pod is static: the kubelet does not read the status of its object, and would run it again"}
	}
	mayRun := t.order.Exclusive != "" && (t.order.Stage == kube.StageKilled || t.order.Stage == kube.StageWaiting)
	if !mayRun {
		t.noteWrites(p)
	}
	switch {
	case t.deletion != "":
		return action{answer: t.deletion}
	case p.deleting:
		return t.terminating(p, mayRun)
	case t.written == 0 && !p.disrupted && p.phase == corev1.PodFailed && p.reason:
		// A pod that evictd has killed has no reason in the kubelet's verdict.
		return action{answer: kube.AnswerTerminating, ended: true, why: "the pod had failed for a reason of its own before its eviction was reported"}
	case t.large:
		return t.remove(mayRun)
	}
	switch t.order.Stage {
	case kube.StageEnded:
		return t.report(p)
	case kube.StageStopping:
		if t.order.Exclusive == "" {
			return t.report(p)
		}
		return t.stop(p)
	}
	if t.written > 0 && !mayRun { // at StageStopping
		return t.report(p)
	}
	return t.mark(p)
}

// noteWrites takes the number of the last write from the pod: the answer may have been lost, or have
// gone to an earlier evictd-kube. Who may update the pod can write any number: after a write by this
// Reporter only that one counts, in a state that is newer than the one in which it was sent.
func (t *task) noteWrites(p *podState) {
	n := p.writes(t.order.Decided)
	known := t.sent == 0 || n == t.sent && (p.version == 0 || p.version > t.sentAt)
	if known && p.disrupted && n > t.written {
		t.written, t.sent = n, max(t.sent, n)
		t.version = max(t.version, p.version)
	}
	t.plain = t.plain && t.written == 1
	t.noteShown(p)
}

// noteShown records that a write of the phase has taken effect. One without the annotation shows in nothing else, and the
// controllers of such pods may delete the object before its answer comes, or after that has come too late.
func (t *task) noteShown(p *podState) {
	t.shown = t.shown || t.sent > 0 && p.disrupted && p.phase == corev1.PodFailed && p.reason
}

// terminating returns the answer about a pod that is being deleted. Controllers delete terminal
// pods, and an earlier evictd-kube may have deleted this one with its grace period. The object of a
// pod that was reported may exist for some milliseconds more, or until the kubelet has ended the pod.
func (t *task) terminating(p *podState, mayRun bool) action {
	byUs := t.order.Exclusive != "" && (t.order.GraceSeconds > 0 || t.unfenced()) && p.disrupted
	switch {
	case t.undone(p) && !mayRun:
		return action{kind: setPhase, write: t.written + 1}
	case t.written > 0:
		return action{answer: kube.AnswerReported, ended: p.terminated && !p.sandbox}
	case byUs, t.shown:
		return action{answer: kube.AnswerReported, ended: true}
	}
	return action{answer: kube.AnswerTerminating, ended: true}
}

// report writes the phase, or writes it again after the kubelet has undone it.
func (t *task) report(p *podState) action {
	switch {
	case t.written == 0 && p.phase == corev1.PodSucceeded:
		return action{answer: kube.AnswerTerminating, ended: true, why: "the pod had succeeded before its eviction was reported"}
	case t.written == 0 && t.unfenced():
		return t.stop(p)
	case t.written == 0:
		return action{kind: setPhase, write: 1, plain: t.plainFirst(p)}
	case t.undone(p):
		return action{kind: setPhase, write: t.written + 1}
	case t.plain && !(p.completed() && p.terminated):
		return action{kind: setPhase, write: t.written + 1, annotate: true}
	}
	return action{answer: kube.AnswerReported}
}

// unfenced reports whether the kubelet can start a container of a killed pod of a StatefulSet before it
// sees the report. That controller deletes a pod that has failed at once, and makes another one, but not
// before the object of one that another has deleted is gone, which is after its containers. The
// controllers of other pods make another one at the deletion already.
func (t *task) unfenced() bool {
	return t.order.Stage == kube.StageEnded && t.order.Exclusive == kube.ExclusiveStatefulSet && !t.order.Fenced
}

// plainFirst reports whether the first write has no annotation. With one the kubelet ends the pod at
// once and blanks the reason first, and the controllers of such pods delete the object in the same
// moment. Without a fence the kubelet must end it at once, because it would start the pod again.
func (t *task) plainFirst(p *podState) bool {
	return t.order.Stage == kube.StageEnded && t.order.Fenced && p.replaced && p.version != 0
}

// undone reports whether the kubelet has taken back the last write and may be contradicted. A state
// follows that write if it is newer, or has its annotation, which others may have changed since. After
// a write without the annotation no older state of the pod is kept ([Reporter.keep]), except by a list that the
// API server has answered from before that write; this, and an answer without a version, cost one more write.
func (t *task) undone(p *podState) bool {
	newer := t.version != 0 && p.version > t.version
	follows := t.plain || newer || p.writes(t.order.Decided) >= t.written
	return t.written > 0 && follows && t.written < maxWrites && p.undone()
}

// stop ends a pod that must not run twice and has a grace period, or no fence: its object must remain
// until its processes have ended.
func (t *task) stop(p *podState) action {
	if !t.disrupted && !p.disrupted {
		return action{kind: setCondition}
	}
	return action{kind: deletePod, grace: t.grace()}
}

// remove deletes a pod whose status can't be written for its size, but not while processes of one that
// must not run twice may run: a controller may replace it at its deletion.
func (t *task) remove(mayRun bool) action {
	if mayRun {
		return action{}
	}
	return action{kind: deletePod, grace: t.grace()}
}

// grace returns the grace period of a deletion. With at least 1 the object remains until the
// kubelet has ended the pod. That of a killed pod has passed.
func (t *task) grace() int64 {
	if t.order.Stage == kube.StageStopping {
		return max(1, t.order.GraceSeconds)
	}
	return 1
}

// mark sets the condition of a killed pod if the kubelet reports it under its own verdict.
func (t *task) mark(p *podState) action {
	switch {
	case p.restarts, p.phase == corev1.PodSucceeded:
		return action{}
	case (t.disrupted || p.disrupted) && !t.unmarked(p):
		return action{answer: kube.AnswerMarked}
	}
	return action{kind: setCondition}
}

// unmarked reports whether someone has set the condition back. The disruption controller does so with
// each pod that has not ended two minutes later (pkg/controller/disruption/disruption.go,
// syncStalePodDisruption), and the processes of a killed pod may hang for longer.
func (t *task) unmarked(p *podState) bool {
	return t.markVersion != 0 && p.version > t.markVersion && !p.disrupted && t.marks < maxMarks
}

// done records the outcome of a request.
func (t *task) done(a action, result outcome) action {
	switch result {
	case succeeded:
		return t.achieved(a)
	case podGone:
		return action{answer: kube.AnswerGone, ended: true}
	case tooLarge:
		t.large = true
	case refused:
		return action{answer: kube.AnswerForbidden, ended: true}
	}
	return action{}
}

// achieved records a request that has succeeded, and returns the answer.
func (t *task) achieved(a action) action {
	switch a.kind {
	case readPod:
		t.look = false
	case setCondition:
		t.disrupted = true
		t.marks++
		return action{answer: kube.AnswerMarked}
	case setPhase:
		t.written, t.disrupted = max(t.written, a.write), true
		if a.write > 1 && !a.annotate {
			return action{answer: kube.AnswerAsserted}
		}
		return action{answer: kube.AnswerReported}
	case deletePod:
		t.deletion = kube.AnswerReported
		if t.large {
			t.deletion = kube.AnswerDeleted
		}
		return action{answer: t.deletion}
	}
	return action{}
}

// timeout returns the bound of a request.
func (t *task) timeout(a action) time.Duration {
	if a.kind != setCondition && a.kind != setPhase {
		return writeTimeout
	}
	return lateTimeouts[min(t.late, len(lateTimeouts)-1)]
}

// noteLate records that a write of the status was not answered in time. Before the last attempt
// the pod is read, because the API server may answer nothing at all. If only the write takes so
// long, the pod's status can't be written for its size.
func (t *task) noteLate(a action) {
	if a.kind != setCondition && a.kind != setPhase {
		return
	}
	t.late++
	t.look = t.look || t.late == len(lateTimeouts)
	t.large = t.large || t.late > len(lateTimeouts)
}

// wait delays the next request for the order, with jitter, and at least as long as the API
// server asks for.
func (t *task) wait(now time.Time, asked time.Duration) {
	t.delay = min(max(firstDelay, 2*t.delay), longestDelay)
	d := t.delay/2 + rand.N(t.delay/2)
	if asked = min(asked, longestDelay); asked > 0 {
		d = max(d, asked+rand.N(asked/4))
	}
	t.notBefore = now.Add(d)
}
