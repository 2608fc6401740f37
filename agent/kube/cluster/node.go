package cluster

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/kube"
)

const (
	// heartbeatInterval and heartbeatJitter bound the time between two writes of the conditions, and
	// between two reads of the Node, from 4 minutes to less than 5.
	heartbeatInterval, heartbeatJitter = 4 * time.Minute, 45 * time.Second
	// unsureInterval is that time after a write that had no answer: a paused API server may still
	// carry it out.
	unsureInterval = 10 * time.Second
	// taintKept is how long a taint remains that was written for an order, after the pod was reported
	// or the order has ended. evictd sends the condition within that time, if the node has it.
	taintKept = 10 * time.Second
	// taintDeadline bounds how long the report of an eviction waits for its taint, and taintTrust is
	// how old the knowledge may be that the Node has it. taintOutage bounds the wait while the API server
	// does not answer, which does not count for taintDeadline.
	taintDeadline, taintTrust = 2 * time.Second, time.Second
	taintOutage               = 30 * time.Second
	// taintRetry bounds the last attempt at a taint after taintDeadline.
	taintRetry = 500 * time.Millisecond
	// The back-off after a write that another one has overtaken, and the longest one after a refusal.
	firstRaceDelay, longestRaceDelay = 10 * time.Millisecond, time.Second
	longestRefusedDelay              = 5 * time.Minute
	// maxRaces is how many consecutive writes may be overtaken. After that it is a refusal in the form
	// of a race, as of a webhook.
	maxRaces = 20
	// lookInterval is the longest time between two reads of the Node while evictd has conditions, also
	// if these can't be written.
	lookInterval = 5 * time.Minute
)

// nodeStep is a request about the Node object.
type nodeStep int

const (
	noStep nodeStep = iota
	readNode
	writeTaints
	writeConditions
	nodeSteps
)

// nodeWriter decides which request about the Node object comes next, so that the Node gets the
// conditions and taints of evictd's last state and the taints of pending orders. The Reporter
// makes the requests, one at a time.
type nodeWriter struct {
	// given is set once evictd has sent a state or is gone, which is a nil state. Before, nothing
	// of evictd's on the Node is changed.
	given bool
	state *kube.NodeState
	// done is set when the state was written in full, answered when evictd was told what is in last.
	done, answered bool
	last           kube.NodeReport
	// ordered are the taints of orders that are not reported, and kept has until when those of others
	// remain.
	ordered map[string]bool
	kept    map[string]time.Time

	// object is the Node as it was last read and as it was written since; nil if it must be read.
	// read is when the request for it began, and uid that of the last one.
	object *nodeObject
	read   time.Time
	uid    string
	// known has the taints that the Node has, and since when at least that is known. A taint that
	// must be known since verify is looked for.
	known  map[string]time.Time
	verify time.Time
	// heartbeat is when the Node is read and the conditions are written again; zero for never.
	heartbeat time.Time
	// look is when the Node is read again if there is no heartbeat before.
	look time.Time
	// unsure is set if a write had no answer since the last one that was carried out, and unreachable
	// if the last request had none.
	unsure, unreachable bool
	busy                bool // a request is in flight
	// asked is until when the API server has asked to wait.
	asked time.Time
	parts [nodeSteps]nodePart
	// lacks are the rights that the user lacks, as they were logged, and lacksSince since when.
	lacks      string
	lacksSince time.Time
}

// nodePart is the state of one kind of request.
type nodePart struct {
	notBefore time.Time
	delay     time.Duration
	// why is the reason if the last request failed, in one line with the remedy; "" if it did not.
	why string
	// missing is the right that the user lacks for it, as why, and refused is set if the API server
	// has refused the last request.
	missing string
	refused bool
	// waits is set if the Node, as it was last known, needs the request. The state may be another one since.
	waits bool
	races int // consecutive requests that others have overtaken
}

// blocked returns why a request can't be made or has failed.
func (p *nodePart) blocked() string {
	if p.missing != "" {
		return p.missing
	}
	return p.why
}

// stuck reports whether a request can't be carried out for a long time.
func (p *nodePart) stuck() bool { return p.missing != "" || p.refused }

func newNodeWriter() nodeWriter {
	return nodeWriter{ordered: map[string]bool{}, kept: map[string]time.Time{}, known: map[string]time.Time{}}
}

// set sets the state of evictd. One that is gone after it was stopped remains stopped.
func (n *nodeWriter) set(s *kube.NodeState) {
	if s == nil && n.state != nil && n.state.Stopped {
		s = &kube.NodeState{Number: n.state.Number, Stopped: true}
	}
	n.given, n.state = true, s
	n.done, n.answered = false, false
	if n.final() {
		clear(n.kept)
	}
}

// final reports whether evictd maintains no condition any more that follows what it measures:
// nothing will follow for the orders that have ended.
func (n *nodeWriter) final() bool {
	return n.given && (!n.maintains() || n.state.Stopped)
}

// maintains reports whether evictd has conditions that need heartbeats.
func (n *nodeWriter) maintains() bool { return n.state != nil && len(n.state.Conditions) > 0 }

// keepTaint keeps the taint of an order that needs it no more for a while.
func (n *nodeWriter) keepTaint(key string, now time.Time) {
	if kube.IsTaint(key) && !n.final() {
		n.kept[key] = now.Add(taintKept)
	}
}

// wantedTaints returns the taints that the Node should have, and moves next to when that changes.
func (n *nodeWriter) wantedTaints(now time.Time, next *time.Time) map[string]bool {
	want := map[string]bool{}
	for key := range n.ordered {
		want[key] = true
	}
	for key, until := range n.kept {
		if !now.Before(until) {
			delete(n.kept, key)
			continue
		}
		want[key] = true
		if until.Before(*next) {
			*next = until
		}
	}
	if n.state != nil {
		for _, c := range n.state.Conditions {
			if c.Status {
				want[kube.NodeConditions[c.Type].Taint] = true
			}
		}
	}
	return want
}

// nodeAction is the next request about the Node.
type nodeAction struct {
	step       nodeStep
	taints     taintChange
	conditions []corev1.NodeCondition
	heartbeat  bool // conditions are all that evictd maintains
}

// next returns the next request, and moves due to the time at which one becomes due. clean reports
// whether the Node has all that it should have.
func (n *nodeWriter) next(now time.Time, due *time.Time) (a nodeAction, clean bool) {
	want := n.wantedTaints(now, due)
	if n.busy || !n.given && len(want) == 0 {
		return a, false
	}
	beat := !now.Before(n.heartbeat) && (n.maintains() || !n.heartbeat.IsZero())
	if n.mustRead(beat, now) {
		return nodeAction{step: n.ready(readNode, now, due)}, false
	}
	a.taints = n.object.changeTaints(want, n.given, now)
	if n.given {
		a.conditions, a.heartbeat = n.object.changeConditions(n.state, beat, now), beat
	}
	n.parts[writeTaints].waits = len(a.taints.patch) > 0
	n.parts[writeConditions].waits = len(a.conditions) > 0 && !n.leftOver(a.conditions)
	clean = len(a.taints.patch) == 0 && (len(a.conditions) == 0 || n.leftOver(a.conditions) && n.parts[writeConditions].stuck())
	switch {
	case len(a.taints.patch) > 0 && n.ready(writeTaints, now, due) != noStep:
		a.step = writeTaints
	case n.unverified() && n.ready(readNode, now, due) != noStep:
		a.step = readNode
	case len(a.conditions) > 0:
		a.step = n.ready(writeConditions, now, due)
	}
	dueAt(n.heartbeat, now, due)
	if n.maintains() {
		dueAt(n.look, now, due)
	}
	return a, clean
}

// mustRead reports whether the Node must be read before anything is written. beat is set if a
// heartbeat is due.
func (n *nodeWriter) mustRead(beat bool, now time.Time) bool {
	return n.object == nil || beat && n.read.Before(n.heartbeat) || n.maintains() && !now.Before(n.look)
}

// dueAt moves due to a time that is still to come.
func dueAt(at, now time.Time, due *time.Time) {
	if at.After(now) && at.Before(*due) {
		*due = at
	}
}

// unverified reports whether the Node must be read because an order needs its taint.
func (n *nodeWriter) unverified() bool {
	for key := range n.ordered {
		if n.known[key].Before(n.verify) && n.read.Before(n.verify) {
			return true
		}
	}
	return false
}

// ready returns a step if it may start now, and else moves due to when it may.
func (n *nodeWriter) ready(step nodeStep, now time.Time, due *time.Time) nodeStep {
	p := &n.parts[step]
	if p.missing != "" {
		return noStep // until the rights are checked again
	}
	if now.Before(p.notBefore) {
		if p.notBefore.Before(*due) {
			*due = p.notBefore
		}
		return noStep
	}
	return step
}

// tainted reports whether the Node is known to have a taint since a time.
func (n *nodeWriter) tainted(key string, since time.Time) bool {
	at, ok := n.known[key]
	return ok && !at.Before(since)
}

// cannotTaint reports whether taints can't be written, for longer than a report can wait.
func (n *nodeWriter) cannotTaint() bool {
	return n.parts[writeTaints].missing != "" || n.parts[writeTaints].refused || n.parts[readNode].refused
}

// leftOver reports whether conditions that are to be written say only that evictd maintains them no
// more, while none of them is true on the Node: nothing depends on that.
func (n *nodeWriter) leftOver(list []corev1.NodeCondition) bool {
	return n.final() && !slices.ContainsFunc(list, func(c corev1.NodeCondition) bool {
		return c.Status != corev1.ConditionUnknown || n.object.conditions[string(c.Type)].Status == corev1.ConditionTrue
	})
}

// refused reports whether what remains to be written can't be for a long time.
func (n *nodeWriter) refused(a *nodeAction) bool {
	for step, waits := range map[nodeStep]bool{readNode: n.object == nil, writeTaints: len(a.taints.patch) > 0, writeConditions: len(a.conditions) > 0 && !n.leftOver(a.conditions)} {
		if waits && n.parts[step].stuck() {
			return true
		}
	}
	return false
}

// why returns the reasons why the Node does not have all that it should have. After a write that has
// failed, the Node must be read first, and the reason remains.
func (n *nodeWriter) why() string {
	var reasons []string
	for step := range n.parts {
		p := &n.parts[step]
		reason := p.blocked()
		if reason != "" && (p.waits || nodeStep(step) == readNode) && !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	return strings.Join(reasons, "; ")
}

// achieved records a request that the API server has carried out. read is the Node, of a read.
func (n *nodeWriter) achieved(a *nodeAction, read *nodeObject, began, now time.Time) {
	n.parts[a.step] = nodePart{missing: n.parts[a.step].missing}
	switch a.step {
	case readNode:
		n.object, n.read, n.uid, n.look = read, began, read.uid, now.Add(lookInterval)
		clear(n.known)
		for _, raw := range read.taints {
			if key := ownTaint(raw); key != "" {
				n.known[key] = began
			}
		}
		switch {
		case n.maintains():
		case n.unsure: // else what is carried out late would stay
			n.unsure, n.heartbeat = false, now.Add(unsureInterval)
		default:
			n.heartbeat = time.Time{}
		}
		return
	case writeTaints:
		n.object.taints = a.taints.after
		for _, key := range a.taints.removed {
			delete(n.known, key)
		}
		for _, key := range a.taints.added {
			n.known[key] = began
		}
	case writeConditions:
		for _, c := range a.conditions {
			n.object.conditions[string(c.Type)] = c
		}
		if a.heartbeat { // else only those that have changed were written
			n.heartbeat = now.Add(heartbeatInterval + rand.N(heartbeatJitter))
		}
	}
	if n.unsure {
		n.unsure, n.heartbeat = false, now.Add(unsureInterval)
	}
}

// overtaken records that another client has changed the Node since it was read.
func (n *nodeWriter) overtaken(step nodeStep, now time.Time) {
	n.object = nil
	n.parts[step].races++
	delay := min(firstRaceDelay<<min(n.parts[step].races-1, 10), longestRaceDelay)
	n.parts[readNode].notBefore = now.Add(delay/2 + rand.N(delay/2))
}

// failed records a request that has failed, and returns whether the reason is new. asked is how long
// the API server asks to wait.
func (n *nodeWriter) failed(step nodeStep, result outcome, why string, asked time.Duration, now time.Time) (changed bool) {
	p := &n.parts[step]
	longest := longestRefusedDelay
	if p.refused = result != later && result != podGone; !p.refused {
		longest = longestDelay
	}
	p.delay = min(max(firstDelay, 2*p.delay), longest)
	wait := p.delay/2 + rand.N(p.delay/2)
	if asked = min(asked, longestDelay); asked > 0 {
		wait = max(wait, asked+rand.N(asked/4))
		n.asked = now.Add(asked)
	}
	p.notBefore = now.Add(wait)
	if step != readNode && result == later { // it may have been carried out
		n.object, n.unsure = nil, true
		n.parts[readNode].notBefore = p.notBefore
	}
	changed = p.why != why
	p.why = why
	return changed
}

// hasten lets requests start at once whose failure may have passed, and reports whether there are
// some. None is while the API server asks to wait.
func (n *nodeWriter) hasten(now time.Time) (any bool) {
	if now.Before(n.asked) {
		return false
	}
	for i := range n.parts {
		if p := &n.parts[i]; !p.refused && now.Before(p.notBefore) {
			p.notBefore, any = now, true
		}
	}
	return any
}

// delayed reports whether the last request for taints has failed and is not repeated yet.
func (n *nodeWriter) delayed(now time.Time) bool {
	return !n.busy && (now.Before(n.parts[readNode].notBefore) || now.Before(n.parts[writeTaints].notBefore))
}

// recovered lets requests that had no answer be repeated soon.
func (n *nodeWriter) recovered(now time.Time) {
	if !n.unreachable {
		return
	}
	n.unreachable = false
	soon := now.Add(rand.N(recoveryDelay))
	for i := range n.parts {
		if p := &n.parts[i]; !p.refused && soon.Before(p.notBefore) {
			p.notBefore = soon
		}
	}
}
