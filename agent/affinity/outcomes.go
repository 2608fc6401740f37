package affinity

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// retryDelay is the delay after the first refusal. It doubles to retryDelayMax, which is also that of a pod with
	// several PodDisruptionBudgets.
	retryDelay, retryDelayMax = 5 * time.Second, 5 * time.Minute
	// changedDelayMax is that of evictions that were not sent because pod or node had changed, or the node's Lease is not
	// renewed: the controller has to look at a Lease again while it remembers the last time.
	changedDelayMax = 80 * time.Second
	// jitterPercentage of the delay, by pod and number of refusals, is added to it, or at its limit subtracted.
	jitterPercentage = 20
)

// takeOutcomes ends the evictions that have an outcome.
func (r *run) takeOutcomes() {
	if len(r.in.Outcomes) == 0 {
		return
	}
	pods := make(map[types.UID]*candidate, len(r.in.Outcomes))
	for _, o := range r.in.Outcomes {
		pods[o.Pod] = nil
	}
	for _, c := range r.candidates {
		if _, ok := pods[c.pod.UID]; ok {
			pods[c.pod.UID] = c
		}
	}
	flights := make(map[string]*Backoff)
	for _, b := range r.workloads {
		if b.InFlight != "" && !b.Accepted {
			flights[b.ID] = b
		}
	}
	outcomes := slices.Clone(r.in.Outcomes)
	slices.SortFunc(outcomes, func(a, b Outcome) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	for _, o := range outcomes {
		if o.At.IsZero() || o.At.After(r.now) {
			o.At = r.now
		}
		b, c := flights[o.ID], pods[o.Pod]
		delete(flights, o.ID)
		switch {
		case o.Kind == Accepted:
			r.accept(b, c, o)
		case b != nil:
			r.refuse(b, c, o)
		}
	}
	slices.SortFunc(r.s.Evicted, time.Time.Compare)
}

// accept takes an eviction that was accepted. One that counted as lost, or whose violation is forgotten, still counts
// in the rate, and is in flight where no other of the workload is.
func (r *run) accept(b *Backoff, c *candidate, o Outcome) {
	if c != nil && b == nil {
		if late := r.backoff(c); late.InFlight == "" {
			b = late
			b.InFlight, b.ID, b.OrderedAt, b.Node, b.Pod = o.Pod, o.ID, o.At, c.pod.Node, c.pod.PodKey
		} else if late.ID == o.ID {
			return // taken already
		}
	}
	r.s.Evicted = append(r.s.Evicted, o.At)
	if b != nil {
		b.noteOften(o.At)
		b.Accepted, b.EvictedAt = true, o.At
		b.Refusals, b.RefusedUntil = 0, time.Time{}
		if b.Binding != "" {
			r.noteBinding(b.Binding, b.OrderedAt, o.At)
		}
	}
	if c != nil {
		c.v.InFlight, c.v.Refusals, c.v.Next, c.v.Refused, c.v.RefusedMessage = "", 0, time.Time{}, "", ""
		r.event(c.v.Pod, false, EventEvicted, fmt.Sprintf("evicted from node %s after %s: %s",
			c.pod.Node, o.At.Sub(c.v.Since).Round(time.Millisecond), reasons(c.pod)))
	}
}

// settleDoubts takes an eviction whose request failed as accepted if its pod terminates, or is gone, soon after that.
func (r *run) settleDoubts() {
	violating := make(map[types.UID]*candidate)
	for _, c := range r.candidates {
		violating[c.pod.UID] = c
	}
	for _, b := range r.workloads {
		if b.DoubtedAt.IsZero() || b.InFlight != "" {
			continue
		}
		c := violating[b.Pod.UID]
		switch {
		case !r.waiting(b.DoubtedAt.Add(outcomeTimeout)):
			b.DoubtedAt = time.Time{}
		case c != nil && c.pod.Terminating, c == nil && !r.in.Present[b.Pod.UID]:
			at := b.DoubtedAt
			b.InFlight, b.DoubtedAt = b.Pod.UID, time.Time{}
			r.accept(b, c, Outcome{ID: b.ID, Pod: b.Pod.UID, Kind: Accepted, At: at})
		}
	}
	slices.SortFunc(r.s.Evicted, time.Time.Compare)
}

// refuse ends an eviction that was not accepted. The candidate is nil if the pod no longer violates.
func (r *run) refuse(b *Backoff, c *candidate, o Outcome) {
	b.InFlight, b.ID = "", ""
	if o.Kind == Gone || o.Kind == Changed || o.Kind == NotRenewed {
		// The caches are behind what was read live. They have the time of a debounce to follow.
		if c != nil {
			c.v.InFlight, c.v.Steady = "", r.now
			c.v.Next = o.At.Add(max(retryDelay, o.RetryAfter))
		}
		if c != nil && o.Kind != Gone { // it may last
			c.v.refused(o)
		}
		if c != nil && o.Kind == NotRenewed && c.v.Next.Before(o.At.Add(r.in.Config.Debounce)) {
			c.v.Next = o.At.Add(r.in.Config.Debounce) // the hold is NodeStale all of the time
		}
		return
	}
	if o.Kind == RequestError && b.Pod.UID == o.Pod {
		b.DoubtedAt = o.At
	}
	b.Refusals++
	b.RefusedUntil = o.At.Add(delay(o, b.Refusals))
	if until := o.At.Add(min(max(retryDelay, o.RetryAfter), retryDelayMax)); o.Kind == Throttled && until.After(r.s.PausedUntil) {
		r.s.PausedUntil = until
	}
	if c == nil {
		return
	}
	c.v.InFlight = ""
	c.v.refused(o)
}

// refused counts an eviction that was refused or not sent, and sets when it is tried again.
func (v *Violation) refused(o Outcome) {
	v.Refusals++
	v.Refused, v.RefusedMessage = o.Kind, cut(oneLine(o.Message), maxMessage)
	v.Next = o.At.Add(delay(o, v.Refusals))
}

// delay returns the time to the next attempt after a number of refusals.
func delay(o Outcome, refusals int) time.Duration {
	d := doubled(retryDelay, retryDelayMax, refusals)
	switch o.Kind {
	case ManyBudgets:
		d = retryDelayMax
	case Changed, NotRenewed:
		d = min(d, changedDelayMax)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%d", o.Pod, refusals)
	jitter := time.Duration(h.Sum64() % uint64(d*jitterPercentage/100+1))
	if d+jitter <= retryDelayMax {
		d += jitter
	} else {
		d -= jitter
	}
	return max(d, o.RetryAfter)
}
