package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/kube"
)

const (
	// maxArrivals is how many pods wait for their decision, and maxRejected how many rejected pods are watched for the
	// kubelet's undoing, for rejectedKept each.
	maxArrivals, maxRejected = 64, 64
	rejectedKept             = 5 * time.Minute
	// maxConflicts is how often a pod that another client changes at the same time is tried again. The kubelet writes
	// the status of a new pod a few times.
	maxConflicts = 5
)

// counter counts the results of affinity admission. [kube.Feed] implements it.
type counter interface{ CountAffinity(result string) }

// Rejector is the admission half of node affinity during execution: it rejects a pod that comes to the node as the
// kubelet rejects one, if the pod's annotation does not match the Node and nothing of the pod has started. It decides
// once about a pod, when the watch first shows it, and never about one of a list: such a pod may have been there
// before.
type Rejector struct {
	reporter *Reporter
	counter  counter
	log      *slog.Logger
	wake     chan struct{}

	mu       sync.Mutex
	arrivals []arrival
	rejected map[string]*rejection // by UID
	// limits bounds the rejections, and dryLimits those of a dry run, which leaves all of limits to what is enforced
	// later.
	limits, dryLimits affinityLimits
	refusal           string // the last refusal of the API server, as it was logged; empty after a rejection
}

// arrival is a pod that waits for its decision.
type arrival struct {
	uid, namespace, name, annotation string
	// decided is when the watch has shown the pod: the time in the annotation of the rejection.
	decided time.Time
	// sent is set if a rejection was sent, answered or not.
	sent bool
	// tries and conflicts count those that failed, and notBefore is the time of the next one.
	tries, conflicts int
	notBefore        time.Time
}

// isRejected reports whether a pod has the rejection of this arrival.
func (a *arrival) isRejected(p *corev1.Pod) bool {
	s := stateOf(p)
	return a.sent && s.writes(a.decided) > 0 && p.Status.Reason == reasonAffinity
}

// rejection is a pod that was rejected.
type rejection struct {
	arrival
	message string
	// writes is how often the rejection was written. again is set if it must be written again, and version is then the
	// resource version of the pod that was seen.
	writes  int
	again   bool
	version string
	// failures counts writes that the API server could not do, and retryAt is the time of the next one.
	failures int
	retryAt  time.Time
}

// NewRejector returns a Rejector with the connection and the events of a Reporter.
func NewRejector(reporter *Reporter, counter counter, log *slog.Logger) *Rejector {
	counter.CountAffinity("")
	return &Rejector{reporter: reporter, counter: counter, log: log, wake: make(chan struct{}, 1), rejected: map[string]*rejection{}}
}

// Run decides about the pods that come to the node until ctx ends, one at a time: the bounds count what was decided.
func (r *Rejector) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		a, again, wait := r.take(time.Now())
		switch {
		case ctx.Err() != nil:
			return
		case again != nil:
			r.assert(ctx, again)
		case a != nil:
			r.count(ctx, a)
		default:
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
			case <-timer.C:
			}
		}
	}
}

// take returns what is done next: a pod to decide on, or a rejection that the kubelet has undone. If there is neither,
// it returns the time until a pod is tried again.
func (r *Rejector) take(now time.Time) (a *arrival, again *rejection, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wait = affinityDeadline
	for _, j := range r.rejected {
		if left := j.retryAt.Sub(now); j.again && left > 0 {
			wait = min(wait, left)
		} else if j.again {
			j.again = false
			return nil, j, 0
		}
	}
	for i := range r.arrivals {
		if left := r.arrivals[i].notBefore.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		next := r.arrivals[i]
		r.arrivals = slices.Delete(r.arrivals, i, i+1)
		return &next, nil, 0
	}
	return nil, nil, wait
}

// retry puts a pod that could not be decided on at the end of the queue, behind the others. Its time is the time from
// its arrival, however often it is tried.
func (r *Rejector) retry(a *arrival, err error) {
	a.notBefore = time.Now().Add(max(firstDelay<<min(a.tries, 10), retryAfter(err)))
	if end := a.decided.Add(affinityDeadline); a.notBefore.After(end) {
		a.notBefore = end
	}
	a.tries++
	r.log.Debug("could not decide whether the node admits a pod; trying again", "pod", a.namespace+"/"+a.name, "error", oneLine(err.Error()))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrivals = append(r.arrivals, *a)
}

// arrived queues a pod that the watch shows for the first time.
func (r *Rejector) arrived(p *corev1.Pod) {
	annotation, ok := p.Annotations[affinity.Annotation]
	if r == nil || !ok || exempt(p) {
		return
	}
	now := time.Now()
	result := left(p, now)
	r.mu.Lock()
	switch {
	case result != "":
	case len(annotation) > affinity.MaxAnnotation:
		result = kube.AffinityInvalid
	case len(r.arrivals) >= maxArrivals:
		result = kube.AffinityRate
	default:
		r.arrivals = append(r.arrivals, arrival{
			uid: string(p.UID), namespace: p.Namespace, name: p.Name, annotation: strings.Clone(annotation), decided: now,
		})
		r.notify()
	}
	r.mu.Unlock()
	if result != "" {
		r.counter.CountAffinity(result)
	}
}

// observe takes the state of a pod from the watch.
func (r *Rejector) observe(p *corev1.Pod) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.rejected[string(p.UID)]; j != nil {
		r.see(j, listedOf(p))
	}
}

// see has a rejection written again that the kubelet has undone.
func (r *Rejector) see(j *rejection, p *listed) {
	// The watch may show a write before its answer is there.
	if n := p.state.writes(j.decided); n >= j.writes && n < maxWrites && !p.state.deleting && p.state.undone() && p.unstarted {
		j.writes, j.again, j.version = n, true, p.version
		r.notify()
	}
}

// replace takes the states of all pods of the node, after a time without a watch.
func (r *Rejector) replace(pods map[string]*listed) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, j := range r.rejected {
		if p := pods[uid]; p != nil {
			r.see(j, p)
		} else {
			delete(r.rejected, uid)
		}
	}
}

// gone forgets a pod that has left the API.
func (r *Rejector) gone(uid string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.rejected, uid)
}

func (r *Rejector) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// count decides about a pod and counts the result, unless it is tried again.
func (r *Rejector) count(ctx context.Context, a *arrival) {
	result, again := r.decide(ctx, a)
	if again {
		return
	}
	if result != "" {
		r.counter.CountAffinity(result)
	}
	r.log.Debug("decided whether the node admits a pod with a node affinity during execution", "pod", a.namespace+"/"+a.name, "result", result)
}

// decide returns the result of affinity admission; empty for a pod that is gone or exempt. After a conflict, and a
// request that may succeed later, the pod is tried again when the others had their turn, until affinityDeadline.
func (r *Rejector) decide(parent context.Context, a *arrival) (result string, again bool) {
	end := a.decided.Add(affinityDeadline)
	if !time.Now().Before(end) {
		return r.late(parent, a), false
	}
	ctx, cancel := context.WithDeadline(parent, end)
	defer cancel()
	result, err := r.try(ctx, a)
	if err == nil {
		return result, false
	}
	if c := r.reporter.link(); c != nil {
		c.renew(c.files.explain(err))
	}
	switch outcomeOf(err) {
	case podGone:
		return "", false
	case refused, forbidden, tooLarge:
		r.refuse(a, err)
		return kube.AffinityRefused, false
	case conflict:
		if a.conflicts++; a.conflicts > maxConflicts {
			return r.late(parent, a), false
		}
	}
	r.retry(a, err)
	return "", true
}

// late returns the result for a pod whose time or tries have passed. A write without an answer may have succeeded.
func (r *Rejector) late(ctx context.Context, a *arrival) string {
	c, p := r.reporter.link(), &corev1.Pod{}
	if a.sent && c != nil && c.read(ctx, p, "pods", a.namespace, a.name) == nil && a.isRejected(p) {
		r.note(a, p.Status.Message)
		return kube.AffinityRejected
	}
	return kube.AffinityLate
}

// refuse logs a refusal of the API server once, until a rejection succeeds: each new pod may have the same.
func (r *Rejector) refuse(a *arrival, err error) {
	text := oneLine(err.Error())
	r.mu.Lock()
	known := r.refusal != ""
	r.refusal = text
	r.mu.Unlock()
	if !known {
		r.log.Warn("could not reject a pod that does not match the node; such pods run until evictd-controller evicts them",
			"pod", a.namespace+"/"+a.name, "error", text)
	}
}

// try decides by the Node and the pod as they are now.
func (r *Rejector) try(ctx context.Context, a *arrival) (result string, err error) {
	c := r.reporter.link()
	if c == nil {
		return "", errors.New("not connected to the API server")
	}
	n, p := &corev1.Node{}, &corev1.Pod{}
	if err := c.read(ctx, n, "nodes", "", r.reporter.node); err != nil {
		return "", err
	}
	if message, err := mismatch(a.annotation, n); err != nil || message == "" {
		return matched(err), nil
	}
	if err := c.read(ctx, p, "pods", a.namespace, a.name); err != nil {
		return "", err
	}
	annotation, ok := p.Annotations[affinity.Annotation]
	if string(p.UID) == a.uid && a.isRejected(p) { // by a write without an answer
		r.note(a, p.Status.Message)
		return kube.AffinityRejected, nil
	}
	if string(p.UID) != a.uid || !ok || exempt(p) {
		return "", nil
	}
	message, err := mismatch(annotation, n)
	if err != nil || message == "" {
		return matched(err), nil
	}
	if result := left(p, time.Now()); result != "" {
		return result, nil
	}
	if leavesPods(n) {
		return kube.AffinityNode, nil
	}
	return r.reject(ctx, c, a, p, message)
}

// matched returns the result for an annotation without a mismatch.
func matched(err error) string {
	if err != nil {
		return kube.AffinityInvalid
	}
	return kube.AffinityMatched
}

// reject marks a pod Failed if it is still as it was read.
func (r *Rejector) reject(ctx context.Context, c *connection, a *arrival, p *corev1.Pod, message string) (result string, err error) {
	dryRun := !r.reporter.enforces()
	limits := &r.limits
	if dryRun {
		limits = &r.dryLimits
	}
	if !a.sent {
		if result := limits.take(workloadOf(p), time.Now()); result != "" {
			return result, nil
		}
	}
	if dryRun {
		r.log.Info("would reject a pod that does not match the node", "pod", a.namespace+"/"+a.name, "message", message, "dry_run", true)
		return kube.AffinityWouldReject, nil
	}
	a.sent = true
	if err := c.reject(ctx, a, p.ResourceVersion, message, 1); err != nil {
		return "", err
	}
	r.note(a, message)
	return kube.AffinityRejected, nil
}

// note records, logs and announces a rejection.
func (r *Rejector) note(a *arrival, message string) {
	now := time.Now()
	r.mu.Lock()
	r.refusal = ""
	for uid, j := range r.rejected {
		if now.Sub(j.decided) > rejectedKept {
			delete(r.rejected, uid)
		}
	}
	if len(r.rejected) < maxRejected {
		r.rejected[a.uid] = &rejection{arrival: *a, message: message, writes: 1}
	}
	r.mu.Unlock()
	r.log.Info("rejected a pod that does not match the node", "pod", a.namespace+"/"+a.name, "message", message,
		"after", now.Sub(a.decided).Round(time.Millisecond).String())
	e := newEvent(r.reporter.node, reasonAffinity, message, a.uid, corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: a.namespace, Name: a.name, UID: types.UID(a.uid),
	}, now)
	e.Action = "Reject"
	r.reporter.announceRejection(e)
}
