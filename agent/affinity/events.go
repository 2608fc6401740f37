package affinity

import (
	"fmt"
	"strings"
	"time"
)

// The reasons of events. They begin alike, so that a field selector finds them.
const (
	EventViolated   = "NodeAffinityViolated"   // Warning, once a violation
	EventEvicted    = "NodeAffinityEvicted"    // Normal
	EventWouldEvict = "NodeAffinityWouldEvict" // Normal, once a violation, in dry run
	EventNotEvicted = "NodeAffinityNotEvicted" // Warning: a hold that a person can end
	EventStorm      = "NodeAffinityStorm"      // Warning, at the oldest pod that the storm holds back
	EventLoop       = "NodeAffinityLoop"       // Warning: scheduling is not restricted, or a label changes too often
	EventInvalid    = "NodeAffinityInvalid"    // Warning: the annotation does not parse; it is not Step's
)

// EventReasons returns all reasons of events of pods. The kubelet's own reason NodeAffinity is not among them.
func EventReasons() []string {
	return []string{EventViolated, EventEvicted, EventWouldEvict, EventNotEvicted, EventStorm, EventLoop, EventInvalid}
}

const (
	// eventPeriod and maxEvents bound the events of violations and holds. What is left follows in the next period.
	eventPeriod, maxEvents = time.Minute, 60
	// repeatPeriod is when a hold is reported again, and changePeriod when another hold of the same pod is.
	repeatPeriod, changePeriod = time.Hour, 5 * time.Minute
	// maxEventMessage is the length limit of the message of an Event in Kubernetes.
	maxEventMessage = 1024
	// reportedRefusals is when a refusal that may pass by itself is reported: the delay has reached its limit.
	reportedRefusals = 7
)

// report reports what was found.
func (r *run) report() {
	for _, c := range r.candidates {
		r.announce(c)
		switch c.v.Held {
		case HoldStorm:
			r.reportStorm(c)
		case HoldWorkloadNotReady, HoldWorkloadUnknown:
			r.reportNotReady(c)
		case HoldLoop:
			r.reportLoop(c, r.loopOf(c))
		default:
			r.reportHold(c)
		}
	}
	if r.wouldEvict {
		r.wake(r.now.Add(soon))
	}
}

// reportLoop reports a loop, or a label that changes too often.
func (r *run) reportLoop(c *candidate, b *Backoff) {
	until, cause := b.Until, fmt.Sprintf("%d replacements in a row were bound to a node that violated already: configure "+
		"the scheduler extender or the webhook of evictd-controller", b.Loops)
	if !r.waiting(b.Until) {
		until, cause = b.OftenUntil, fmt.Sprintf("at least %d evictions since %s: the label changes too often",
			b.Often+oftenEvictions-1, b.Began.UTC().Format(time.RFC3339))
	}
	r.repeat(c, &b.LoopReported, EventLoop, fmt.Sprintf("not evicted until %s: %s", until.UTC().Format(time.RFC3339), cause))
}

// announce reports a violation that has lasted for the debounce.
func (r *run) announce(c *candidate) {
	if c.v.Announced || !c.current || c.v.Held == HoldCompleted || c.v.Held == HoldTerminating ||
		r.waiting(c.v.Steady.Add(r.in.Config.Debounce)) || r.eventsSpent() {
		return
	}
	c.v.Announced = r.bounded(c, EventViolated, fmt.Sprintf("node %s: %s", c.pod.Node, reasons(c.pod)))
}

// reportHold reports the holds of a pod that a person can end.
func (r *run) reportHold(c *candidate) {
	text, once := "", true
	switch c.v.Held {
	case HoldBare:
		text = "no controller would replace the pod: delete it, or annotate it with " + AnnotationEvictBare + "=true"
	case HoldNoNodeFits:
		text = "no other Ready node that takes pods matches its nodeSelector, affinity and annotation and has only taints " +
			"that it tolerates"
	case HoldRefused, HoldNodeStale:
		v := &c.v
		if v.Refusals < reportedRefusals && v.Refused != ManyBudgets && v.Refused != Forbidden {
			return
		}
		once = false
		text = fmt.Sprintf("the eviction was refused or not sent %d times in a row, last %s: %s", v.Refusals, v.Refused, v.RefusedMessage)
	default:
		return
	}
	if c.v.ReportedHold == c.v.Held {
		if once || r.waiting(c.v.Reported.Add(repeatPeriod)) {
			return
		}
	} else if c.v.ReportedHold != "" && r.waiting(c.v.Reported.Add(changePeriod)) {
		return
	}
	if !r.eventsSpent() && r.bounded(c, EventNotEvicted, "not evicted: "+text) {
		c.v.Reported, c.v.ReportedHold = r.now, c.v.Held
	}
}

// reportStorm reports a storm at the first pod that it holds back.
func (r *run) reportStorm(c *candidate) {
	s := r.s.Storms[c.stormKey]
	if r.recent(s.Reported) {
		return
	}
	cause := fmt.Sprintf("no node has the label %s, which the pod requires", show(c.stormKey))
	if c.stormKey == clusterStorm {
		cause = fmt.Sprintf("pods violate on more than %d of %d nodes (%d %%)",
			r.allowedNodes(), len(r.nodes), r.in.Config.StormPercentage)
	}
	r.repeat(c, &s.Reported, EventStorm, "not evicted: "+cause+
		"; evictions go on when that ends, or when storm_confirmed in ConfigMap cluster-affinity-config is "+s.ID)
	r.s.Storms[c.stormKey] = s
}

// reportNotReady reports a workload that holds its pods back for longer than Config.ProgressTimeout.
func (r *run) reportNotReady(c *candidate) {
	b := c.backoff
	if b == nil || r.waiting(b.NotReadySince.Add(r.in.Config.ProgressTimeout)) || r.recent(b.NotReadyReported) {
		return
	}
	text := "the replicas of its workload could not be read"
	if w, known := r.in.Workloads[c.pod.Workload]; known {
		text = fmt.Sprintf("%d of %d replicas of its workload are Ready, and it has no PodDisruptionBudget",
			w.Ready, w.Desired)
	}
	r.repeat(c, &b.NotReadyReported, EventNotEvicted, fmt.Sprintf("not evicted for %s: %s",
		r.now.Sub(b.NotReadySince).Round(time.Second), text))
}

// recent reports whether the last report is younger than repeatPeriod, and wakes at its end.
func (r *run) recent(last time.Time) bool { return !last.IsZero() && r.waiting(last.Add(repeatPeriod)) }

// repeat reports once in repeatPeriod.
func (r *run) repeat(c *candidate, last *time.Time, reason, message string) {
	if r.recent(*last) {
		return
	}
	if r.bounded(c, reason, message) {
		*last = r.now
	}
}

// bounded adds a Warning if maxEvents allows one more, and reports whether it did.
func (r *run) bounded(c *candidate, reason, message string) bool {
	if r.eventsSpent() {
		return false
	}
	r.s.Events++
	r.event(c.v.Pod, true, reason, message)
	return true
}

// eventsSpent reports whether maxEvents allows no more in this period, and wakes in the next.
func (r *run) eventsSpent() bool {
	return r.s.Events >= maxEvents && r.waiting(r.s.EventsSince.Add(eventPeriod))
}

func (r *run) event(pod PodKey, warning bool, reason, message string) {
	r.orders.Events = append(r.orders.Events, Event{
		Pod: pod, Warning: warning, Reason: reason, Message: cut(oneLine(message), maxEventMessage),
	})
}

// reasons describes what a pod requires and its node lacks.
func reasons(p *Pod) string {
	var list []string
	size := 0
	for _, reason := range p.Verdict.Reasons {
		if size += len(reason.Message()); size > maxEventMessage {
			break
		}
		list = append(list, reason.Message())
	}
	if len(list) == 0 {
		return "the node does not match"
	}
	return strings.Join(list, "; ")
}
