package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptrace"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/evictd/evictd/agent/kube"
)

// started is a request that runs on a goroutine of its own.
type started func(context.Context, *connection)

// candidate is a request that may start.
type candidate struct {
	t *task
	a action
}

// schedule answers the orders that need no request, and returns the requests that start now:
// writes of the status before deletions before those about the Node before events, and the oldest
// order first. A request about the Node that an order waits for comes first. It returns when it must
// be called again if nothing happens before.
func (r *Reporter) schedule(now time.Time) (list []started, next time.Time) {
	next = now.Add(checkInterval)
	if r.connection != nil && !r.checking && now.Before(r.checkAfter) {
		next = r.checkAfter
	}
	node, urgent := r.scheduleNode(now, &next)
	var candidates []candidate
	for _, t := range r.tasks {
		if c, ok := r.candidate(t, now, &next); ok {
			candidates = append(candidates, c)
		}
	}
	if r.connection == nil {
		return nil, next
	}
	if urgent {
		list = r.addNode(list, node)
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.a.kind, b.a.kind), cmp.Compare(a.t.number, b.t.number))
	})
	for _, c := range candidates {
		slow := c.t.timeout(c.a) > writeTimeout
		if r.inFlight < maxInFlight && (!slow || r.slowInFlight < maxSlowInFlight) {
			list = append(list, r.start(c.t, c.a))
		}
	}
	list = r.addNode(list, node)
	if !r.checking && !now.Before(r.checkAfter) && r.inFlight < maxInFlight {
		r.checking = true
		r.inFlight++
		list = append(list, r.check)
	}
	return r.addEvents(list, now, &next), next
}

// candidate answers an order if it needs no request, else returns the request that may start
// now. It moves next to the time at which something becomes due.
func (r *Reporter) candidate(t *task, now time.Time, next *time.Time) (c candidate, ok bool) {
	var p *podState
	if s, ok := r.pods[t.order.UID]; ok {
		p = &s
	}
	a := t.next(p)
	if t.busy(a) {
		return c, false
	}
	due := t.notBefore
	if a.kind == nothing {
		due = t.repeat
	} else if a.annotate && t.annotateAt.After(due) {
		due = t.annotateAt
	}
	r.announceWaiting(t, now)
	switch {
	case now.Before(due):
		if due.Before(*next) {
			*next = due
		}
	case r.awaitsTaint(t, a, now, next):
	case a.kind != nothing:
		return candidate{t, a}, true
	default:
		r.apply(t, a, now)
	}
	return c, false
}

// announceWaiting emits an event about a pod whose processes do not end.
func (r *Reporter) announceWaiting(t *task, now time.Time) {
	if t.order.Stage == kube.StageWaiting && !t.ended {
		r.announce(t, reasonWaiting, fmt.Sprintf("The pod is not marked Failed before its killed processes have ended, because it must not run twice (%s)", t.order.Exclusive), now)
	}
}

// apply reports an answer unless it was reported.
func (r *Reporter) apply(t *task, a action, now time.Time) {
	t.ended = t.ended || a.ended
	if a.answer == "" || a.answer == t.answer && a.answer != kube.AnswerAsserted {
		return
	}
	t.answer, t.why, t.repeat = a.answer, a.why, time.Time{}
	r.answers.Report(&kube.Report{ID: t.order.ID, Answer: a.answer, Why: a.why})
	pod := t.order.Namespace + "/" + t.order.Name
	switch a.answer {
	case kube.AnswerAsserted:
		t.repeat = now.Add(repeatDelay)
		r.log.Info("kubelet had undone the report of an eviction; reported it again", "pod", pod, "write", t.written)
	case kube.AnswerForbidden:
		r.log.Warn("eviction of a pod can't be reported; evictd does not evict it any more", "pod", pod, "error", a.why)
	case kube.AnswerDelayed: // logged by postpone
	case kube.AnswerReported, kube.AnswerDeleted:
		r.announceEviction(t, now)
		fallthrough
	default:
		args := []any{"pod", pod, "answer", string(a.answer), "reason", a.why}
		if !t.firstSent.IsZero() {
			args = append(args, "sent", t.firstSent.Format(time.RFC3339Nano)) // slog would cut it to milliseconds
		}
		r.log.Info("answered an order to report an eviction", args...)
	}
}

// announceEviction emits the events of an eviction.
func (r *Reporter) announceEviction(t *task, now time.Time) {
	r.announce(t, reasonEvicted, t.order.Message, now)
	if resource := t.order.Annotations[annotationStarved]; resource != "" && !now.Before(r.nodeEventAfter) {
		r.nodeEventAfter = now.Add(nodeEventInterval)
		r.enqueue(queuedEvent{eventObject: nodeEvent(r.node, resource, now)})
	}
}

// announce emits an event about the pod of an order once.
func (r *Reporter) announce(t *task, reason, note string, now time.Time) {
	if t.announced[reason] {
		return
	}
	t.announced[reason] = true
	r.enqueue(queuedEvent{eventObject: podEvent(r.node, &t.order, reason, note, now)})
}

// start returns the request for an order.
func (r *Reporter) start(t *task, a action) started {
	t.inFlight[a.kind]++
	if a.kind == setPhase {
		t.sent, t.sentAt = max(t.sent, a.write), r.pods[t.order.UID].version
	}
	r.inFlight++
	order, generation, timeout := t.order, r.pods[t.order.UID].generation, t.timeout(a)
	slow := timeout > writeTimeout
	if slow {
		r.slowInFlight++
	}
	return func(ctx context.Context, c *connection) {
		requestCtx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		if a.kind == setPhase {
			requestCtx = httptrace.WithClientTrace(requestCtx, &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) { r.noteSent(t, i) }})
		}
		defer context.AfterFunc(ctx, cancel)()
		p, err := c.request(requestCtx, &order, a, generation, timeout)
		r.mu.Lock()
		defer r.mu.Unlock()
		t.inFlight[a.kind]--
		r.inFlight--
		if slow {
			r.slowInFlight--
		}
		r.notify()
		if r.tasks[order.ID] != t || ctx.Err() != nil || t.superseded(a) {
			return // withdrawn, or stopping
		}
		now := time.Now()
		if err == nil && p != nil && !r.learn(t, a, p) {
			r.left(t, now)
			return
		}
		r.finish(t, a, c, err, now)
	}
}

// noteSent records when the first write of the phase was given to the connection. The watch may
// show the write before its answer comes.
func (r *Reporter) noteSent(t *task, i httptrace.WroteRequestInfo) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if i.Err == nil && t.firstSent.IsZero() {
		t.firstSent = now
	}
}

// learn takes the state of an order's pod from the answer to a request. It returns false if the
// name of the pod is that of another one now.
func (r *Reporter) learn(t *task, a action, p *corev1.Pod) bool {
	uid := t.order.UID
	switch a.kind {
	case setCondition:
		t.markVersion = max(t.markVersion, versionOf(p))
	case setPhase:
		t.version = max(t.version, versionOf(p))
		if s, ok := r.pods[uid]; ok {
			mark := markOf(&t.order, a.write)
			if a.plain {
				mark = s.mark
			}
			s.reported(p, mark)
			r.pods[uid] = s
		}
	case readPod:
		s := stateOf(p)
		if static := s.mirror != "" && s.mirror == uid; !static && string(p.UID) != uid {
			return false
		}
		if !t.ended { // else it has left the API since
			r.keep(uid, s)
		}
	}
	return true
}

// finish records the outcome of a request for an order.
func (r *Reporter) finish(t *task, a action, c *connection, err error, now time.Time) {
	result := outcomeOf(err)
	r.noteAnswer(err, now)
	t.unreachable = false
	if result == forbidden {
		result = r.noteForbidden(t, now)
	} else {
		t.forbidden = time.Time{}
	}
	if result == tooLarge && a.kind == deletePod {
		// There is no room for the time of the deletion. The API server writes that first, also with
		// a grace period of 0, so nobody can delete the pod.
		result = later
	}
	switch result {
	case succeeded:
		if a.kind != readPod { // which says nothing about writes
			t.delay, t.notBefore, t.conflicts, t.late = 0, time.Time{}, 0, 0
			r.recovered(now)
		}
		if a.plain && t.written == 0 {
			t.plain, t.annotateAt = true, now.Add(annotateDelay)
		}
	case podGone:
		r.left(t, now)
		return
	case later:
		if errors.Is(err, context.DeadlineExceeded) {
			t.noteLate(a)
		}
		r.postpone(t, c, err, now)
		return
	case conflict:
		t.look = true
		if t.conflicts++; t.conflicts > 1 {
			r.postpone(t, c, err, now)
		} else {
			t.wait(now, 0)
		}
		return
	case refused:
		if t.written > 0 {
			r.log.Warn("kubelet has undone the report of an eviction, and it can't be reported again", "pod", t.order.Namespace+"/"+t.order.Name, "error", oneLine(err.Error()))
			r.apply(t, action{answer: kube.AnswerReported, ended: true}, now)
			return
		}
	}
	answer := t.done(a, result)
	if result == refused {
		answer.why = oneLine(err.Error())
	}
	r.apply(t, answer, now)
}

// noteForbidden records a 403, and returns what it means for the order.
func (r *Reporter) noteForbidden(t *task, now time.Time) outcome {
	r.recheckRights(now)
	if t.forbidden.IsZero() {
		t.forbidden = now
		return later
	}
	if now.Sub(t.forbidden) < r.ForbiddenDelay {
		return later
	}
	return refused
}

// postpone repeats a request later, and reports that once until one succeeds.
func (r *Reporter) postpone(t *task, c *connection, err error, now time.Time) {
	t.wait(now, retryAfter(err))
	t.tainted, t.taintLast, t.taintWait, t.taintDeadline = false, false, time.Time{}, time.Time{} // the next attempt waits again
	var answer apierrors.APIStatus
	t.unreachable = !errors.As(err, &answer)
	err = c.files.explain(err)
	if c.renew(err) {
		t.unreachable = true // until there are new credentials
	}
	level := slog.LevelWarn
	if r.unreachable || t.answer == kube.AnswerDelayed { // one line for all orders
		level = slog.LevelDebug
	}
	r.log.Log(context.Background(), level, "could not report the eviction of a pod; trying again", "pod", t.order.Namespace+"/"+t.order.Name, "error", err)
	r.unreachable = r.unreachable || t.unreachable
	if t.answer == "" || t.answer == kube.AnswerMarked {
		r.apply(t, action{answer: kube.AnswerDelayed, why: oneLine(err.Error())}, now)
	}
}
