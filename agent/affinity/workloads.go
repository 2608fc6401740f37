package affinity

import (
	"slices"
	"time"
)

const (
	// outcomeTimeout is when an eviction without an outcome counts as lost.
	outcomeTimeout = 2 * time.Minute
	// bindingWindow is how long after a pod was bound a violation counts as one at binding.
	bindingWindow = time.Minute
	// clockSkew is how much earlier than the eviction a replacement may seem to be created, by another clock in whole
	// seconds.
	clockSkew = 2 * time.Second
	// loopBackoff doubles with each replacement that violates at binding, to loopBackoffMax.
	loopBackoff, loopBackoffMax = time.Minute, time.Hour
	// oftenEvictions of a workload in oftenWindow have the back-off of a loop: of pods and their replacements, each of
	// which was placed correctly. The first eviction is one of them.
	oftenEvictions, oftenWindow = 6, time.Hour
	// loopMemory is how long an eviction is remembered after the last violation of the workload. It is longer than
	// any turn of a loop whose pods are not Pending for hours.
	loopMemory = 6 * time.Hour
)

// slot identifies what has at most one eviction in flight: the workload, or without one the name of the pod, or what it
// was generated from, which is also that of its replacement if something makes it again.
func slot(p *Pod) string {
	switch {
	case p.Workload != "":
		return p.Workload
	case p.GenerateName != "":
		return "pod/" + p.Namespace + "/" + p.GenerateName
	}
	return "pod/" + p.Namespace + "/" + p.Name
}

// binding identifies the namespace and the node of a pod without a controller that violated at its binding, empty for
// others. What makes such a pod again may give it another name each time: they have a back-off in common, and no more.
func binding(p *Pod) string {
	if p.Workload != "" || !p.AtBinding {
		return ""
	}
	return "binding/" + p.Namespace + "/" + p.Node
}

// noteBinding remembers the accepted eviction of a pod that violated at its binding.
func (r *run) noteBinding(key string, ordered, at time.Time) {
	b := r.workloads[key]
	if b == nil {
		b = &Backoff{}
		r.workloads[key] = b
	}
	b.OrderedAt, b.EvictedAt, b.Seen = ordered, at, r.now
}

// noteOften backs a workload off whose pods were evicted too often, because a label goes after each placement. Pods that
// are older than the first eviction don't count: of a large workload each is evicted once when many nodes lose a label.
func (b *Backoff) noteOften(at time.Time) {
	last := b.EvictedAt
	if b.OftenUntil.After(last) {
		last = b.OftenUntil
	}
	if at.Sub(last) >= oftenWindow {
		b.Began, b.Again, b.Often = at, nil, 0
		return
	}
	if !b.Replaced {
		return
	}
	old := func(t time.Time) bool { return at.Sub(t) >= oftenWindow }
	b.Again = append(slices.DeleteFunc(slices.Clone(b.Again), old), at)
	if b.Often > 0 || len(b.Again)+1 >= oftenEvictions {
		b.Often++
		b.OftenUntil = at.Add(doubled(loopBackoff, loopBackoffMax, b.Often))
	}
}

// loopOf returns the back-off of a loop that holds a pod back, nil if none does.
func (r *run) loopOf(c *candidate) *Backoff {
	for _, b := range []*Backoff{c.backoff, r.workloads[binding(c.pod)]} {
		if b != nil && (r.waiting(b.Until) || r.waiting(b.OftenUntil)) {
			return b
		}
	}
	return nil
}

// backoff returns what is remembered of a candidate's workload, and begins to.
func (r *run) backoff(c *candidate) *Backoff {
	key := slot(c.pod)
	b := r.workloads[key]
	if b == nil {
		b = &Backoff{}
		r.workloads[key] = b
	}
	c.backoff = b
	return b
}

// flying reports whether the pod's eviction has no outcome, or was accepted and the pod is not gone.
func (r *run) flying(c *candidate) bool {
	return c.backoff != nil && c.backoff.InFlight == c.pod.UID
}

// endFlights ends the evictions whose pod is gone or takes too long to go, and those that are lost. The pod of one that
// was accepted goes even if its label has come back.
func (r *run) endFlights() {
	violating := make(map[string]*candidate, len(r.workloads))
	for _, c := range r.candidates {
		// An outcome may have begun to remember the workload.
		if c.backoff = r.workloads[slot(c.pod)]; c.backoff == nil {
			continue
		}
		c.backoff.Seen = r.now
		if r.flying(c) {
			violating[slot(c.pod)] = c
		}
	}
	r.busyNodes, r.busyWorkloads = map[string]bool{}, map[string]bool{}
	limit := max(r.in.Config.ProgressTimeout, outcomeTimeout)
	for _, c := range r.candidates {
		if !c.pod.Terminating || c.pod.Completed || !r.waiting(c.v.TerminatingSince.Add(limit)) {
			continue
		}
		r.busyWorkloads[slot(c.pod)] = true
		// The process before this one may have evicted it. A pod that is deleted later holds back no pods of others.
		if c.v.TerminatingSince.Sub(r.s.Began) <= outcomeTimeout {
			r.busyNodes[c.pod.Node] = true
		}
	}
	for key, b := range r.workloads {
		if b.InFlight == "" {
			continue
		}
		c := violating[key]
		switch {
		case !b.Accepted && !r.waiting(b.OrderedAt.Add(outcomeTimeout)):
			r.refuse(b, c, Outcome{Pod: b.InFlight, Kind: RequestError, Message: "no outcome", At: r.now})
		case b.Accepted && (c == nil && !r.in.Present[b.InFlight] || !r.waiting(b.EvictedAt.Add(limit))):
			b.InFlight, b.ID = "", ""
		}
		if b.InFlight == "" {
			continue
		}
		r.busyNodes[b.Node], r.busyWorkloads[key] = true, true
		if !b.Accepted {
			r.requests++
		}
	}
}

// findLoops backs a workload off whose replacement was bound to a node that violated already. A replacement that
// violates later was placed correctly and ends the loop.
func (r *run) findLoops() {
	placed := map[*Backoff]bool{}
	for _, c := range r.candidates {
		r.findBindingLoop(c)
		b := c.backoff
		if b == nil || b.EvictedAt.IsZero() || b.LoopOf.Equal(b.EvictedAt) || r.flying(c) || c.pod.Terminating ||
			c.v.Since.Before(b.OrderedAt) {
			continue
		}
		bound := c.pod.Bound
		if bound.IsZero() {
			bound = c.pod.Created
		}
		// The pod's times are of other clocks. What was seen of its binding needs none.
		replacement := !c.pod.Created.Before(b.EvictedAt.Add(-clockSkew))
		switch {
		case c.pod.AtBinding, replacement && c.v.Since.Sub(bound) <= bindingWindow:
			r.countLoop(b)
		case replacement && !c.pod.Bound.IsZero():
			placed[b] = true
		}
	}
	for b := range placed {
		if !b.LoopOf.Equal(b.EvictedAt) {
			b.Loops, b.Until = 0, time.Time{}
			if b.Often == 0 {
				b.LoopReported = time.Time{}
			}
		}
	}
}

// findBindingLoop does so for the pods of a [binding].
func (r *run) findBindingLoop(c *candidate) {
	b := r.workloads[binding(c.pod)]
	if b == nil {
		return
	}
	b.Seen = r.now
	if !b.LoopOf.Equal(b.EvictedAt) && !r.flying(c) && !c.pod.Terminating && !c.v.Since.Before(b.OrderedAt) {
		r.countLoop(b)
	}
}

func (r *run) countLoop(b *Backoff) {
	b.Loops++
	b.LoopOf = b.EvictedAt
	b.Until = r.now.Add(doubled(loopBackoff, loopBackoffMax, b.Loops))
}

// notReadyWorkload reports whether a workload without a PodDisruptionBudget lacks a replica.
func (r *run) notReadyWorkload(c *candidate) bool {
	w, known := r.in.Workloads[c.pod.Workload]
	return known && c.pod.Workload != "" && !w.Budget && w.Ready < w.Desired && r.noteNotReady(c)
}

// unknownWorkload reports whether the replicas of the workload could not be read.
func (r *run) unknownWorkload(c *candidate) bool {
	_, known := r.in.Workloads[c.pod.Workload]
	return !known && c.pod.Workload != "" && r.noteNotReady(c)
}

// noteNotReady remembers since when a workload is not ready. It returns true.
func (r *run) noteNotReady(c *candidate) bool {
	key := slot(c.pod)
	if !r.notReady[key] {
		r.notReady[key] = true
		b := r.backoff(c)
		if b.NotReadySince.IsZero() {
			b.NotReadySince = r.now
		}
		r.waiting(b.NotReadySince.Add(r.in.Config.ProgressTimeout))
	}
	return true
}

// keptWorkloads returns those that something is remembered of.
func (r *run) keptWorkloads() map[string]Backoff {
	kept := make(map[string]Backoff, len(r.workloads))
	for _, c := range r.candidates {
		if b := c.backoff; b != nil {
			b.Seen = r.now
		}
	}
	for key, b := range r.workloads {
		if !r.notReady[key] {
			b.NotReadySince = time.Time{}
		}
		remembered := b.InFlight != "" || !b.DoubtedAt.IsZero() || b.Seen.Equal(r.now) || r.now.Before(b.RefusedUntil) ||
			!b.EvictedAt.IsZero() && r.now.Sub(b.Seen) < loopMemory
		if remembered {
			kept[key] = *b
		}
	}
	return kept
}

// doubled returns first, doubled for each of count after the first, at most longest.
func doubled(first, longest time.Duration, count int) time.Duration {
	d := first
	for range count - 1 {
		if d *= 2; d >= longest {
			return longest
		}
	}
	return d
}
