package kube

import (
	"fmt"
	"log/slog"
	"time"
)

// pending is an order that has not ended.
type pending struct {
	SavedOrder
	lift string // why the fence is being lifted, after which the order ends; "" if it is not
}

// next returns when the order changes by itself, and how: the stage that it reaches, or "" if
// its time is over.
func (p *pending) next(fenceTimeout time.Duration) (at time.Time, stage Stage) {
	at = p.Began.Add(time.Duration(p.Order.GraceSeconds)*time.Second + fenceTimeout)
	if p.Answer.final() && p.Answered.Add(fenceTimeout).After(at) {
		at = p.Answered.Add(fenceTimeout)
	}
	if p.Order.Stage != StageKilled {
		return at, ""
	}
	stage, after := StageEnded, EndedDelay
	if p.Order.Exclusive != "" {
		stage, after = StageWaiting, WaitingEventDelay
	}
	if due := p.Killed.Add(after); due.Before(at) {
		return due, stage
	}
	return at, ""
}

// killable reports whether a kill takes the order to StageKilled.
func (p *pending) killable() bool {
	switch p.Order.Stage {
	case StageStopping:
		return true
	case StageEnded:
		return p.Order.Exclusive != "" && !p.Answer.final() && !p.CgroupGone
	}
	return false
}

// notStarted reports whether no container of the pod had run when its order began: the order began
// with StageEnded, and no kill followed.
func (p *pending) notStarted() bool {
	return p.Order.Stage == StageEnded && p.Order.GraceSeconds == 0 && p.Killed.IsZero()
}

// longestWait is how long Run waits if no order is pending.
const longestWait = time.Hour

// due advances the orders whose time has come. It returns those whose fence has to be lifted
// and how long it takes until the next order is due.
func (o *Orders) due(now time.Time) (lifts []*pending, next time.Duration) {
	o.mu.Lock()
	defer o.unlock()
	next = longestWait
	for _, p := range o.byUID {
		at, stage := p.next(o.o.FenceTimeout)
		for !at.After(now) && stage != "" {
			o.advance(p, stage, now)
			at, stage = p.next(o.o.FenceTimeout)
		}
		if !at.After(now) && p.lift == "" {
			o.counts.TimedOut++
			o.void(p, p.overdue(o.o.FenceTimeout))
		}
		switch {
		case p.lift == "":
			next = min(next, at.Sub(now))
		case p.CgroupGone: // the fence is gone with it
			o.logLift(p, now)
			o.finish(p)
		default:
			o.logLift(p, now)
			lifts = append(lifts, p)
		}
	}
	return lifts, next
}

// overdue returns why an order has timed out.
func (p *pending) overdue(after time.Duration) string {
	switch {
	case !p.Answer.final() && p.Order.awaitsProcesses():
		return fmt.Sprintf("its processes did not end within %v, and it must not run twice (%s)", after, printable(p.Order.Exclusive))
	case p.Answer.final():
		return fmt.Sprintf("the pod's cgroup was not removed within %v after the answer %q", after, p.Answer)
	case p.Answer == "":
		return fmt.Sprintf("evictd-kube did not answer within %v", after)
	}
	return fmt.Sprintf("evictd-kube did not report the eviction within %v (last answer %q: %s)", after, p.Answer, p.Why)
}

func (o *Orders) logLift(p *pending, now time.Time) {
	if skipped, ok := o.lifted.Allow(now); ok {
		o.log(slog.LevelWarn, "evicted pod may run again: its eviction is not reported to the API server, and its fence is lifted unless the node shuts down",
			"pod", p.Order.key(), "reason", p.lift, "not_logged", skipped)
	}
}

// endLifted ends an order after its fence was lifted.
func (o *Orders) endLifted(p *pending) {
	o.mu.Lock()
	defer o.unlock()
	o.counts.Lifted++
	o.finish(p)
}

// advance sets the stage of an order.
func (o *Orders) advance(p *pending, stage Stage, now time.Time) {
	p.Order.Stage = stage
	o.changed = true
	o.send(p)
}

// end records that no process of the pod's containers is left.
func (o *Orders) end(p *pending, now time.Time) {
	p.Ended = true
	if p.Order.Stage != StageEnded {
		o.advance(p, StageEnded, now)
		o.urgent = o.session
		o.notify()
	}
}

// finish ends an order, and withdraws it unless it is void.
func (o *Orders) finish(p *pending) {
	delete(o.byUID, p.Order.UID)
	delete(o.byID, p.Order.ID)
	o.changed = true
	if p.lift == "" {
		o.withdraw(p)
	}
	wakeUp(o.answered)
}

// void withdraws an order whose fence has to be lifted.
func (o *Orders) void(p *pending, why string) {
	p.lift = why
	o.withdraw(p)
}

func (o *Orders) withdraw(p *pending) {
	if o.session != nil {
		o.session.message(&Message{Withdraw: &OrderID{p.Order.ID}})
	}
}

// report applies the answer to an order. The first final answer stands. Save is called for that
// one only: a peer may answer as often as it is allowed to send lines.
func (o *Orders) report(r *Report, now time.Time) {
	o.mu.Lock()
	defer o.unlock()
	p := o.byID[r.ID]
	if p == nil || p.lift != "" {
		o.counts.Unknown++
		return
	}
	if r.Answer == AnswerAsserted || r.Answer != p.Answer && !p.Answer.final() {
		o.counts.Answers[r.Answer]++
	}
	if p.Answer.final() {
		return
	}
	first := r.Answer != p.Answer
	p.Answer, p.Why = r.Answer, r.Why
	if r.Answer.final() {
		p.Answered, o.changed = now, true
		o.finals = append(o.finals, finalAnswer{p.Order.UID, r.Answer, now})
		wakeUp(o.answered)
	}
	switch {
	case r.Answer == AnswerDelayed && first:
		if skipped, ok := o.delayed.Allow(now); ok {
			o.log(slog.LevelWarn, "report of an eviction to the API server is delayed; evictd-kube tries again", "pod", p.Order.key(), "reason", r.Why, "not_logged", skipped)
		}
	case r.Answer == AnswerForbidden:
		o.forbid(p)
		o.notify()
	case r.Answer.final():
		o.log(slog.LevelInfo, "evictd-kube has reported an eviction", "pod", p.Order.key(), "answer", string(r.Answer), "reason", r.Why,
			"after_ms", now.Sub(p.Began).Milliseconds())
		if p.CgroupGone {
			o.finish(p)
		}
	}
}

// forbid ends an order whose report was forbidden.
func (o *Orders) forbid(p *pending) {
	o.forbidden.add(p.Order.UID)
	o.void(p, "the API server forbids the report: "+p.Why)
}
