package fence

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// defaultDeadline bounds an act of a method without a deadline.
const defaultDeadline = time.Minute

// clockJitter is by how much the start of a wait may vary, which is counted back from now.
const clockJitter = time.Second

// takeOutcomes records the outcome of the intent. An intent that is neither in flight nor has an outcome may still be
// executed by a controller that lost the leadership: it is waited for until its deadline, and then its outcome is
// unknown.
func (r *run) takeOutcomes() {
	s := r.s
	for _, o := range r.in.Outcomes {
		switch {
		case s.Intent != nil && o.Intent == s.Intent.ID:
			r.end(o)
		case slices.ContainsFunc(s.Acts, func(a Act) bool { return a.ID == o.Intent }) && s.Proof == nil:
			// A second outcome. The act may have ended later than recorded.
			r.lastAct(r.ended(o))
		}
	}
	i := s.Intent
	switch {
	case i == nil:
		return
	case r.in.InFlight == i.ID:
		s.IntentSeen, s.IntentSeenBy = metav1.MicroTime{}, ""
		return
	case s.IntentSeen.IsZero() || s.IntentSeenBy != r.in.Executor:
		s.IntentSeen, s.IntentSeenBy = metav1.NewMicroTime(r.now), r.in.Executor
	}
	// Another controller that runs at the same time would else begin the wait again with each of its writes, and a clock
	// that is set forward would end it.
	if seen := microTime(r.in.IntentSince); !r.in.IntentSince.IsZero() && seen.Sub(s.IntentSeen.Time).Abs() > clockJitter {
		s.IntentSeen = seen
	}
	until := s.IntentSeen.Add(i.Deadline.Sub(i.Issued.Time))
	if i.Deadline.After(until) {
		until = i.Deadline.Time
	}
	if r.now.Before(until) {
		r.wake(until)
		return
	}
	r.end(Outcome{Intent: i.ID, Kind: Unknown, Ended: metav1.NewMicroTime(r.now),
		Message: "no outcome was reported by " + i.Executor + "; it may have been done, or be done later"})
}

// ended returns when an act ended: not after now, and now if the outcome has no time.
func (r *run) ended(o Outcome) time.Time {
	if o.Ended.IsZero() || o.Ended.After(r.now) {
		return r.now
	}
	return o.Ended.Truncate(time.Microsecond)
}

// end moves the intent to the acts.
func (r *run) end(o Outcome) {
	s := r.s
	i := *s.Intent
	ended := r.ended(o)
	if o.Kind == Unknown && i.Deadline.After(ended) {
		ended = i.Deadline.Time
	}
	o.Ended = metav1.NewMicroTime(ended)
	s.Intent, s.IntentSeen, s.IntentSeenBy = nil, metav1.MicroTime{}, ""
	s.Acts = append(s.Acts, Act{Intent: i, Outcome: o})
	r.lastAct(ended)
	e := normal(ReasonActEnded, fmt.Sprintf("%s by %s: %s", i.Action, i.Method, o.Kind))
	if o.Kind != Succeeded {
		e.Warning = true
		e.Message += ": " + o.Message
	}
	r.note(e)
}

// lastAct records that an act ended. Readings that did not begin after it are no proof.
func (r *run) lastAct(ended time.Time) {
	if ended.After(r.s.LastAct.Time) {
		r.s.LastAct = metav1.NewMicroTime(ended)
	}
	r.s.Readings = slices.DeleteFunc(r.s.Readings, func(x Reading) bool { return !x.Started.After(r.s.LastAct.Time) })
}

// issue makes the method's action the intent, and orders it. In dry run it is reported and counts as done.
func (r *run) issue(index int, m Method) {
	s := r.s
	i := r.intent(index, m)
	do := fmt.Sprintf("switch %s by %s (attempt %d)", m.Action, m.Name, s.Attempt)
	if m.Action.OnObjects() {
		do = fmt.Sprintf("run %s by %s (attempt %d)", m.Action, m.Name, s.Attempt)
	}
	e := normal(ReasonActStarted, r.would(do))
	e.Warning = m.Action == Off || m.Action == CleanPods
	if s.Step == PowerManagement && m.Action == Off && s.FirstOff.IsZero() {
		s.FirstOff = i.Issued
	}
	r.note(e)
	if s.DryRun {
		r.record(i, Succeeded, "dry run")
		return
	}
	s.Intent = &i
	if m.Executor == InJob {
		s.Jobs = append(s.Jobs, JobName(s.UID, i.ID))
	}
	if late := i.Deadline.Add(r.timings().Settle.Duration); !m.Action.OnObjects() && late.After(s.LateUntil.Time) {
		s.LateUntil = metav1.NewMicroTime(late)
	}
	ordered := i
	r.orders.Act = &ordered
	r.wake(i.Deadline.Time)
}

// skip records an act that is not sent.
func (r *run) skip(index int, m Method, message string) {
	r.record(r.intent(index, m), Refused, message)
	r.note(warning(ReasonActNotSent, fmt.Sprintf("%s by %s: %s", m.Action, m.Name, message)))
}

// intent returns the act of a method in this attempt.
func (r *run) intent(index int, m Method) Intent {
	s := r.s
	return Intent{
		ID:      fmt.Sprintf("%s-%d-%d-%d", strings.ToLower(string(s.Step)), s.Attempt, s.Level, index),
		Attempt: s.Attempt, Step: s.Step, Level: s.Level, Index: int32(index),
		Method: m.Name, Action: m.Action, Executor: r.in.Executor,
		Issued: metav1.NewMicroTime(r.now), Deadline: metav1.NewMicroTime(r.now.Add(deadline(m))),
	}
}

// JobName returns the name of the Job that executes an act or a reading of a fence. The id is that of the intent, or
// that of the reading.
func JobName(fence, id string) string {
	fence = strings.ReplaceAll(fence, "-", "")
	return "fence-" + fence[:min(12, len(fence))] + "-" + id
}

// record adds an act without execution.
func (r *run) record(i Intent, kind OutcomeKind, message string) {
	r.s.Acts = append(r.s.Acts, Act{Intent: i, Outcome: Outcome{Intent: i.ID, Kind: kind, Message: message, Ended: i.Issued}})
}

func deadline(m Method) time.Duration {
	if m.Deadline.Duration <= 0 {
		return defaultDeadline
	}
	return m.Deadline.Duration
}

// acted reports whether an act was issued.
func (s *State) acted() bool { return s.Intent != nil || !s.LastAct.IsZero() }
