package fence

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// setBack corrects times of the state that lie further ahead than a Step puts them: the clock was set back since, or that of
// the controller before was ahead. The fence would else wait for as long as that, also after a person's word that the machine
// is off. What has happened did so before now, so that from now on each wait is as long as it ever is, and none is shorter.
// The deadline of an intent stays: the controller that executes it may live. So does what the storm policy remembers.
func (r *run) setBack() {
	s, t := r.s, r.timings()
	act := s.Plan.longestAct() // an act of unknown outcome counts until its deadline
	for _, x := range []struct {
		at    *metav1.MicroTime
		ahead time.Duration // at most
	}{
		{&s.Since, 0}, {&s.Untainted, 0}, {&s.HealthySince, 0},
		{&s.LastAct, act}, {&s.LastOn, act}, {&s.LateUntil, act + t.Settle.Duration},
		{&s.PowerAt, t.PowerDelay.Duration}, {&s.NextAttempt, t.backoff(s.Retries)},
		{&s.Deadline, max(t.TotalTimeout.Duration, t.ReturnTimeout.Duration)},
	} {
		notAfter(x.at, r.now.Add(x.ahead))
	}
	ended := r.now.Add(act)
	if slices.ContainsFunc(s.Acts, func(a Act) bool { return a.Outcome.Ended.After(ended) }) {
		s.Acts = slices.Clone(s.Acts)
		for i := range s.Acts {
			notAfter(&s.Acts[i].Outcome.Ended, ended)
		}
	}
	if s.Storage != nil {
		notAfter(&s.Storage.On, ended)
	}
	for i := range s.Conditions {
		if at := &s.Conditions[i].LastTransitionTime; at.After(r.now) {
			*at = metav1.NewTime(r.now.Truncate(time.Second))
		}
	}
	if s.Proof != nil && s.Proof.At.After(r.now) {
		p := *s.Proof
		p.At, p.Readings = metav1.NewMicroTime(r.now), slices.Clone(p.Readings)
		for i := range p.Readings {
			notAfter(&p.Readings[i].Started, r.now)
			notAfter(&p.Readings[i].Ended, r.now)
		}
		s.Proof = &p
	}
}

// notAfter makes a time that is later than another one that.
func notAfter(at *metav1.MicroTime, latest time.Time) {
	if at.After(latest) {
		*at = metav1.NewMicroTime(latest)
	}
}

// longestAct returns the longest time that an act of the plan may take.
func (p *Plan) longestAct() time.Duration {
	longest := defaultDeadline
	for _, l := range slices.Concat(p.Isolation, p.PowerManagement, p.Recovery) {
		for _, m := range l.Methods {
			longest = max(longest, deadline(m))
		}
	}
	return longest
}
