package evict

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

const (
	// At most maxRefusals pods are refused in refusalInterval: a controller that binds its pods
	// to the node itself replaces each of them at once, and does not heed a taint.
	maxRefusals, refusalInterval = 10, 10 * time.Second
	// refusalRetryAfter is how long a refused pod is not refused again.
	refusalRetryAfter = time.Minute
	// startedWithin is how long after its arrival a pod that has started is refused. The kubelet
	// refuses on arrival only: a pod that ran before refusals began, or while they were suspended, stays.
	startedWithin = time.Minute
	// startedAfter is how long a pod that was refused before it started is not killed if it
	// starts: the kubelet stops it when it sees the report.
	startedAfter = 2 * time.Second
)

// Refusal is a pod that was refused because it arrived under memory pressure.
type Refusal struct {
	UID string    `json:"uid"`
	At  time.Time `json:"at"`
	// Started is set if containers of the pod ran, so that it was killed.
	Started bool `json:"started,omitempty"`
}

// refuseArrivals evicts the BestEffort pods that have come to the node since it has
// MemoryPressure, as the kubelet refuses them when they arrive (Admit). A DaemonSet's pods stay,
// because its controller would make them again, and so do those that the policy exempts, and
// those that run and came more than startedWithin ago. A pod of which no container has started is
// reported alone. Until the pods are listed it is not known which have started.
func (d *decision) refuseArrivals() {
	if d.in.PodsUnknown {
		return
	}
	since := d.pressureSince()
	d.forgetRefusals(since.IsZero())
	if since.IsZero() || !d.policy.RefuseArrivals {
		return
	}
	var found []*podEntry // in the order of their UIDs; those that have not started are not measured
	for i := range d.in.Arrivals {
		found = append(found, &podEntry{Pod: &d.in.Arrivals[i]})
	}
	waiting := len(found)
	for i := range d.pods {
		if e := &d.pods[i]; e.Arrived.After(since) && !e.Ending && !d.isIneligible(e.UID, d.now) {
			found = append(found, e)
		}
	}
	slices.SortFunc(found[:waiting], compareUIDs)
	slices.SortFunc(found[waiting:], compareUIDs)
	for i, e := range found {
		started := i >= waiting
		if !d.refuses(e.Pod, since, started) {
			continue
		}
		o := refusal(e)
		if started {
			d.evict(e, ThresholdKey{Signal: signal.MemoryAvailable}, o)
		} else {
			d.out.Refuse = append(d.out.Refuse, o)
		}
		d.Refusals = append(d.Refusals, Refusal{UID: e.UID, At: d.now, Started: started})
	}
}

// refuses reports whether a pod is refused now. started is set if containers of it run.
func (d *decision) refuses(pod *Pod, since time.Time, started bool) bool {
	// The owner counts, and not the label of the DaemonSet controller: an arrival has facts.
	if !pod.Arrived.After(since) || pod.DaemonSet || Admit([]signal.Condition{signal.MemoryPressure}, pod) {
		return false
	}
	if age := d.now.Sub(pod.Arrived); started && (age < 0 || age >= startedWithin) {
		return false
	}
	if reason, _ := d.policy.exempt(pod); reason != "" {
		return false
	}
	recent := 0
	for _, r := range d.Refusals {
		if r.UID == pod.UID && (r.Started == started || d.in.DryRun || d.now.Sub(r.At) < startedAfter) {
			return false
		}
		if d.now.Sub(r.At) < refusalInterval {
			recent++
		}
	}
	return recent < maxRefusals
}

// forgetRefusals removes the refusals after which a pod may be refused again. In dry run each pod
// is refused once until the pressure ends, or it is gone.
func (d *decision) forgetRefusals(over bool) {
	d.Refusals = slices.DeleteFunc(d.Refusals, func(r Refusal) bool {
		age := d.now.Sub(r.At)
		there := d.findPod(r.UID) != nil || slices.ContainsFunc(d.in.Arrivals, func(p Pod) bool { return p.UID == r.UID })
		if d.in.DryRun && there && !over {
			return false
		}
		return age >= refusalRetryAfter || age < 0
	})
}

// refusal returns the order for a pod that is refused, with the kubelet's reason and message
// (pkg/kubelet/eviction/eviction_manager.go: Admit).
func refusal(pod *podEntry) Order {
	return Order{
		UID: pod.UID, Pod: pod.Key(), Expected: pod.freeable, Cause: CauseAdmission, Hard: true, Grace: MinGrace, Reason: ReasonEvicted,
		Message: fmt.Sprintf("The node had condition: %v. ", []signal.Condition{signal.MemoryPressure}),
	}
}

// PressureSince returns since when the node has MemoryPressure, as it is published; zero if it
// does not have it.
func (p *Policy) PressureSince(s *State, now time.Time) time.Time {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Condition == signal.MemoryPressure && now.Sub(c.LastSeen) < p.TransitionPeriod {
			return c.Since
		}
	}
	return time.Time{}
}

func (d *decision) pressureSince() time.Time { return d.policy.PressureSince(&d.State, d.now) }

// underMemoryPressure reports whether the node has MemoryPressure, as it is published.
func (d *decision) underMemoryPressure() bool { return !d.pressureSince().IsZero() }
