package fence

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxChanges bounds the changes of one step. A change that is left follows in the next step.
const maxChanges = 8

// reasonLeaseRenewed is the reason of [ConditionWaiting] of a node that runs and is not Ready, which may last.
const reasonLeaseRenewed = "LeaseRenewed"

// minWake is the least time to the next step.
const minWake = time.Millisecond

// run is one call of Step.
type run struct {
	s      *State
	in     *Inputs
	now    time.Time
	orders Orders
	// on are the new readings that report on.
	on []Reading
	// proven says that there was a proof before the new readings.
	proven bool
	// acted says that the fence acted before.
	acted bool
	// back are devices that answer and did not before.
	back []string
	// unpowered is a BMC that answers although the outlets of the level in use are off, empty if none does.
	unpowered string
	// storageOn is a device of Isolation that reads on, empty if none does.
	storageOn string
}

// Step returns the state after the inputs, and the orders that follow. The controller saves the state before it
// carries out the orders, and calls Step again when an act or a reading has ended, when the Node, its Lease or what
// is bound to it changes, and at Wake. A Read of a device whose reading has not ended is not begun twice. The times
// of outcomes and readings are those of the controller's clock, as now is. Step does not change s.
func Step(s State, in Inputs, now time.Time) (State, Orders) {
	now = now.Truncate(time.Microsecond)
	s = s.clone()
	s.bound()
	if !s.FinishedAt.IsZero() {
		return s, Orders{}
	}
	r := run{s: &s, in: &in, now: now}
	if !in.Node.Found || in.Node.UID != s.Target.UID {
		r.nodeGone()
		return s, r.finish()
	}
	r.proven, r.acted = s.Proof != nil, s.Acting()
	r.setBack()
	r.takeOutcomes()
	r.takeReadings()
	r.takeStorageReadings()
	r.takeKdump()
	for range maxChanges {
		if !r.advance() {
			break
		}
	}
	r.releaseDump()
	return s, r.finish()
}

// clone returns a copy of s that shares nothing that Step changes.
func (s State) clone() State {
	if s.Intent != nil {
		i := *s.Intent
		s.Intent = &i
	}
	// Acts and history are only appended to.
	s.Acts, s.History = slices.Clip(s.Acts), slices.Clip(s.History)
	s.Readings = slices.Clone(s.Readings)
	s.Conditions = slices.Clone(s.Conditions)
	if s.Storage != nil {
		f := *s.Storage
		f.Readings = slices.Clone(f.Readings)
		s.Storage = &f
	}
	if s.Kdump != nil {
		k := *s.Kdump
		k.Heard = slices.Clone(k.Heard)
		s.Kdump = &k
	}
	return s
}

// bound corrects numbers of an edited NodeFence that no Step makes: below zero they are no index, and no shift.
func (s *State) bound() {
	for _, n := range []*int32{&s.Level, &s.Attempt, &s.Retries, &s.OnRepeats} {
		*n = max(*n, 0)
	}
	if i := s.Intent; i != nil {
		i.Level, i.Index = max(i.Level, 0), max(i.Index, 0)
	}
	invalid := func(a Act) bool { return a.Level < 0 || a.Index < 0 }
	if slices.ContainsFunc(s.Acts, invalid) {
		s.Acts = slices.DeleteFunc(slices.Clone(s.Acts), invalid)
	}
}

// advance makes one change of the state, or orders what the state waits for. It reports whether the state changed so
// that more may follow at once.
func (r *run) advance() bool {
	s := r.s
	switch {
	case !s.FinishedAt.IsZero():
		return false
	case r.contradicted():
		return true
	case r.confirm():
		return true
	case s.Intent != nil:
		if r.now.Before(s.Intent.Deadline.Time) {
			r.wake(s.Intent.Deadline.Time)
		} else {
			r.wake(r.now.Add(r.timings().ProofInterval.Duration))
		}
		return false
	case s.Step == Recovery:
		return r.recover()
	case s.Phase == Released:
		return r.afterRelease()
	case r.drills():
		return r.drill()
	case r.alive():
		return r.nodeAlive()
	}
	s.HealthySince = metav1.MicroTime{}
	switch {
	case s.is(ConditionVerificationFailed):
		return false // a person decides
	case s.Phase == Proving:
		return r.prove()
	case s.Phase == OffProven:
		return r.verify()
	case s.Phase == Releasing:
		return r.release()
	case s.Status == New:
		return r.begin()
	case s.Status == Error:
		return r.afterError()
	case s.Step == Isolation:
		return r.isolate()
	case s.Status == Running:
		return r.powerOff()
	}
	return false // dry run that has ended
}

// alive reports whether the node is Ready and its Lease is renewed. The clock of the node may have been set back, as
// that of a machine whose battery is empty is after it was off: the renewTime need not be later.
func (r *run) alive() bool {
	l := r.in.Lease
	return r.in.Node.Ready == ReadyTrue && l.Known && l.Found && !microTime(l.Renewed).Time.Equal(r.s.Target.LeaseRenewed.Time) &&
		!l.UnchangedSince.IsZero() && r.now.Sub(l.UnchangedSince) < r.timings().Grace.Duration
}

// dead reports whether the node is still [Suspect].
func (r *run) dead() bool {
	n, l := r.in.Node, r.in.Lease
	if Suspect(n, l, r.timings(), r.now) {
		r.clear(ConditionWaiting)
		return true
	}
	switch {
	case n.Ready == ReadyTrue:
		r.set(ConditionWaiting, "NodeReady", "the node is Ready")
	case !l.Known:
		r.set(ConditionWaiting, "LeaseUnknown", "the node's Lease could not be read")
	case !l.Found:
		r.set(ConditionWaiting, "NoLease", "the node has no Lease; confirm that it is off with the annotation evictd.io/confirm-off")
	case microTime(l.Renewed).Time.Equal(r.s.Target.LeaseRenewed.Time):
		r.set(ConditionWaiting, "LeaseNotWatched", "the node's Lease is not yet watched for "+r.timings().Grace.Duration.String())
		r.wake(staleAt(l, r.timings()))
	default:
		r.set(ConditionWaiting, reasonLeaseRenewed, "the node's Lease was renewed, although it is not Ready: it runs")
		r.wake(staleAt(l, r.timings()))
	}
	return false
}

// nodeGone ends the fence of a Node object that was deleted or replaced. Its taints are moot and no act follows.
func (r *run) nodeGone() {
	what := "the Node object is gone"
	if r.in.Node.Found {
		what = fmt.Sprintf("the Node object was replaced: its UID is %s, not %s", r.in.Node.UID, r.s.Target.UID)
	}
	r.s.Result = NodeGone
	r.s.FinishedAt = metav1.NewMicroTime(r.now)
	r.to(r.s.Step, Done, r.s.Phase, warning(ReasonNodeGone, what+"; nothing is done to its devices any more"))
}

// recovered ends the fence of a node that is Ready again.
func (r *run) recovered(step StepName, message string) {
	r.s.Result = Recovered
	r.s.FinishedAt = metav1.NewMicroTime(r.now)
	r.s.HealthySince = metav1.MicroTime{}
	r.s.NextAttempt = metav1.MicroTime{}
	r.clear(ConditionStormHold, ConditionWaiting, ConditionGaveUp, ConditionNodeDidNotReturn)
	r.drillEnded()
	r.to(step, Done, r.s.Phase, normal(ReasonRecovered, message))
}

// wake asks for the next step at t, or at once if t has passed.
func (r *run) wake(t time.Time) {
	if earliest := r.now.Add(minWake); t.Before(earliest) {
		t = earliest
	}
	if r.orders.Wake.IsZero() || t.Before(r.orders.Wake) {
		r.orders.Wake = t
	}
}

// finish returns the orders with what holds in each step: the taints, and a wake while the fence is not finished.
func (r *run) finish() Orders {
	s := r.s
	r.recordStorm()
	if len(s.Readings) == 0 {
		s.Readings = nil // as it is after JSON: the controller saves a state that differs
	}
	if f := s.Storage; f != nil && len(f.Readings) == 0 {
		f.Readings = nil
	}
	if !s.FinishedAt.IsZero() {
		r.orders.Wake = time.Time{}
		return r.orders
	}
	r.orders.Taints = Taints{Quarantine: !s.DryRun, OutOfService: !s.DryRun && s.Phase == Releasing && s.Step != Recovery}
	r.wake(r.now.Add(r.timings().Settle.Duration))
	return r.orders
}

func (r *run) timings() Timings { return r.s.Plan.Timings }
