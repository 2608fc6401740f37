package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Fired is an eviction for a hard memory threshold that a Table's verdict asked
// for and that has been carried out, or tried, since the step before.
type Fired struct {
	// Pod is the victim with the usage on which it was chosen.
	Pod *Pod
	// Threshold and Observation are what was decided on.
	Threshold   Threshold
	Observation signal.Observation
	Deficit     int64
	Expected    int64
	Time        time.Time
	DryRun      bool
}

// adopt takes what was fired since the step before for this step's own: into
// the books, and with the order that Step would have given.
func (d *decision) adopt() {
	for i := range d.in.Fired {
		f := &d.in.Fired[i]
		o := d.order(f.Pod, &f.Threshold, f.Observation)
		o.Deficit, o.Expected = f.Deficit, f.Expected
		d.out.Adopted = append(d.out.Adopted, o)
		// The crossing may be over before a step sees it.
		d.see(f.Threshold.Signal.Condition())
		d.answer(f)
		if f.DryRun {
			d.Pretended = append(d.Pretended, Pretended{UID: f.Pod.UID, Signal: f.Threshold.Signal})
			continue
		}
		// An earlier victim of that name had to be out of the books to be chosen.
		pod := entry{Pod: f.Pod, memory: f.Pod.Usage.Memory, freeable: f.Expected}
		d.Victims = slices.DeleteFunc(d.Victims, func(v Victim) bool { return v.UID == f.Pod.UID })
		d.Victims = append(d.Victims, newVictim(&pod, f.Threshold.Key(), &o, f.Time))
	}
}

// answer notes that the threshold for which a pod was killed is answered, so that
// this step, whose readings may be of another source, does not let it wait.
func (d *decision) answer(f *Fired) {
	for i := range d.marks {
		m := &d.marks[i]
		if m.key != f.Threshold.Key() {
			continue
		}
		if !m.met {
			m.timer, m.met = Timer{Threshold: m.key, Since: f.Time}, true
		}
		m.timer.Past = true
	}
}
