package affinity

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/evictd/evictd/agent/affinity"
)

const (
	// checkTimeout bounds the reads before an eviction.
	checkTimeout = 15 * time.Second
	// evictTimeout bounds the request, which waits for admission webhooks. The API server ends it after 60 s.
	evictTimeout = 65 * time.Second
	// maxWait is how long an order may wait for its turn. With the times above it is less than the two minutes after
	// which Step takes an eviction for lost and may order another one of the workload.
	maxWait = 30 * time.Second
)

// evictor sends evictions.
type evictor struct {
	live      live
	workloads *workloads
	leases    leases
	// rest is a client of the group of pods.
	rest rest.Interface
	// config returns the configuration that applies now.
	config func() affinity.Config
	// fenced returns the nodes with a fence that has not ended.
	fenced func(context.Context) (map[string]bool, error)
}

// order is an eviction with the node that was decided on.
type order struct {
	affinity.Eviction
	nodeUID types.UID
	// expires is when it must not be begun any more.
	expires time.Time
}

// evict reads again what was decided on, and sends the eviction if it still holds. A panic is an error of the request.
func (e *evictor) evict(ctx context.Context, o *order) (out affinity.Outcome) {
	out = affinity.Outcome{ID: o.ID, Pod: o.Pod.UID}
	defer func() {
		if p := recover(); p != nil {
			out.Kind, out.Message, out.At = affinity.RequestError, fmt.Sprintf("the eviction panicked: %v", p), time.Now()
		}
	}()
	if time.Now().After(o.expires) {
		out.Kind, out.Message, out.At = affinity.Changed, "the eviction waited for too long", time.Now()
		return out
	}
	out.Kind, out.Message = e.check(ctx, o)
	if out.Kind == "" {
		err := e.send(ctx, &o.Pod)
		out.Kind, out.RetryAfter = outcomeOf(err)
		if err != nil {
			out.Message = err.Error()
		}
	}
	out.At = time.Now()
	return out
}

// check reads pod, Node, Lease and workload, and last the pod again. The kind is empty if the eviction may be sent.
func (e *evictor) check(ctx context.Context, o *order) (affinity.OutcomeKind, string) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	pod, kind, message := e.checkPod(ctx, &o.Pod)
	if kind != "" {
		return kind, message
	}
	reason, err := e.checkNode(ctx, o, pod)
	if err == nil && reason == "" {
		if reason, err = e.checkLease(ctx, o.Pod.Node); err == nil && reason != "" {
			return affinity.NotRenewed, reason
		}
	}
	if err == nil && reason == "" && controllerOf(pod).uid != "" {
		reason, err = e.workloads.confirm(ctx, controllerOf(pod), pod.Labels, o.Pod.Workload)
	}
	switch {
	case err != nil:
		return affinity.RequestError, err.Error()
	case reason != "":
		return affinity.Changed, reason
	}
	// The reads of the rest may have taken long.
	_, kind, message = e.checkPod(ctx, &o.Pod)
	return kind, message
}

// checkPod reads a pod. The kind is empty if it is what was decided on, and evictions are not switched off.
func (e *evictor) checkPod(ctx context.Context, decided *affinity.Pod) (*corev1.Pod, affinity.OutcomeKind, string) {
	pod := &corev1.Pod{}
	found, err := e.live.get(ctx, types.NamespacedName{Namespace: decided.Namespace, Name: decided.Name}, pod, "Pod")
	config := e.config()
	switch {
	case !config.Enforce:
		return nil, affinity.Changed, "evictions have been switched off"
	case err != nil:
		return nil, affinity.RequestError, err.Error()
	case !found:
		return nil, affinity.Gone, ""
	case pod.UID != decided.UID:
		return nil, affinity.Gone, fmt.Sprintf("pod has UID %s by now", pod.UID)
	}
	if reason := changedPod(pod, decided, config.EvictBare); reason != "" {
		return nil, affinity.Changed, reason
	}
	return pod, "", ""
}

// changedPod returns how a pod differs from what was decided on, empty if it does not. evictBare is that of the
// configuration.
func changedPod(pod *corev1.Pod, decided *affinity.Pod, evictBare bool) string {
	text, annotated := pod.Annotations[affinity.Annotation]
	was, wasAnnotated := decided.Requirement.Pod.Annotations[affinity.Annotation]
	o := controllerOf(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return "the pod is terminating"
	case pod.Spec.NodeName != decided.Node:
		return fmt.Sprintf("the pod is on Node %q by now", pod.Spec.NodeName)
	case affinity.Completed(pod):
		return "the pod has completed"
	case annotated != wasAnnotated || text != was:
		return "the annotation " + affinity.Annotation + " was changed"
	case affinity.Mirror(pod), o.kind == "DaemonSet", (o.uid == "") != (decided.Workload == ""):
		return "the pod has another controller"
	case o.uid == "" && !evictBare && !isEvictedBare(pod):
		return "the pod has no controller, and is not to be evicted without one any more"
	}
	return ""
}

// checkNode returns why a pod is not evicted from its node, empty if there is no reason.
func (e *evictor) checkNode(ctx context.Context, o *order, pod *corev1.Pod) (string, error) {
	node := &corev1.Node{}
	found, err := e.live.get(ctx, types.NamespacedName{Name: o.Pod.Node}, node, "Node")
	switch {
	case err != nil:
		return "", err
	case !found || node.UID != o.nodeUID:
		return fmt.Sprintf("Node %s was deleted or replaced", o.Pod.Node), nil
	}
	fenced, err := e.fenced(ctx)
	if err != nil {
		return "", err
	}
	if reason := unfit(affinity.NodeOf(node, fenced[node.Name])); reason != "" {
		return reason, nil
	}
	requirement, err := affinity.NewSchedulingRequirement(pod)
	if err != nil {
		return "the annotation " + affinity.Annotation + " is not valid by now", nil
	}
	if requirement.Violates(node, e.config().EnforceIgnored).Match {
		return fmt.Sprintf("the pod fits Node %s again", node.Name), nil
	}
	return "", nil
}

// checkLease returns that a node does not renew its Lease, empty if it does.
func (e *evictor) checkLease(ctx context.Context, node string) (string, error) {
	renewed, err := e.live.lease(ctx, node)
	if err != nil || e.leases.fresh(node, renewed, time.Now(), e.config().Debounce) {
		return "", err
	}
	return fmt.Sprintf("the Lease of Node %s was renewed at %s: its labels may be out of date", node, renewed.UTC().Format(time.RFC3339)), nil
}

// send sends the request once: client-go would repeat one that is refused with Retry-After up to ten times. It has no
// resourceVersion, with which the API server does not repeat its own conflicts, and no gracePeriodSeconds: the pod's own
// applies.
func (e *evictor) send(ctx context.Context, p *affinity.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, evictTimeout)
	defer cancel()
	body := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	}
	return e.rest.Post().Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").MaxRetries(0).
		Body(body).Do(ctx).Error()
}
