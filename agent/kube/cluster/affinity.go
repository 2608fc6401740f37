package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/kube"
)

const (
	// reasonAffinity and affinityPrefix are the reason and the begin of the message of a pod that the kubelet rejects
	// (pkg/kubelet/lifecycle/predicate.go).
	reasonAffinity, affinityPrefix = "NodeAffinity", "Predicate NodeAffinity failed: "
	// affinityDeadline is the time from the binding of a pod to the write that rejects it. The kubelet starts the pod
	// in the same time, and reports that later if the API server is slow.
	affinityDeadline = 10 * time.Second
	// affinityPerWorkload pods of a workload are rejected in affinityWindow, and affinityPerMinute pods of the node in
	// a minute. A ReplicaSet replaces a Failed pod within 30 ms: without these bounds, and without a scheduler that
	// heeds the annotation, it would do so without end.
	affinityPerWorkload, affinityWindow = 2, time.Hour
	affinityPerMinute                   = 10
	// criticalPriority is that of system-cluster-critical, by which the kubelet, too, finds critical pods
	// (pkg/kubelet/types/pod_update.go).
	criticalPriority = 2000000000
	// annotationSource is where the kubelet has a pod from (pkg/kubelet/types/pod_update.go).
	annotationSource = "kubernetes.io/config.source"
	// fencingTaint is that of agent/controller on a Node that is being fenced.
	fencingTaint = "evictd.io/fencing"
	// shutdownCondition is evictd's condition of a Node that it shuts down, which has the taint shutdownTaint.
	shutdownCondition, shutdownTaint = "EvictdNodeShutdown", "evictd.io/node-shutdown"
)

// leaveTaints are those of a Node that is fenced, emptied or shut down: its pods are left to that.
var leaveTaints = []string{
	fencingTaint, shutdownTaint, corev1.TaintNodeOutOfService, "node.cloudprovider.kubernetes.io/shutdown",
	"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted",
}

// exempt reports whether a pod is never rejected, whatever its annotation is: it has ended or is being deleted, it is
// critical, or its owner or the kubelet would run it on this node again.
func exempt(p *corev1.Pod) bool {
	source, sourced := p.Annotations[annotationSource]
	_, mirror := p.Annotations[annotationMirror]
	controller := metav1.GetControllerOf(p)
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil
	critical := p.Spec.Priority != nil && *p.Spec.Priority >= criticalPriority ||
		strings.HasPrefix(p.Spec.PriorityClassName, "system-")
	again := controller != nil && (controller.Kind == "DaemonSet" || controller.Kind == "Node")
	return ended || critical || again || mirror || sourced && source != "api"
}

// left returns why a pod is left to the execution half without a look at its node: a result of affinity admission,
// empty if it is not.
func left(p *corev1.Pod, now time.Time) string {
	since := now.Sub(boundAt(p))
	switch {
	case exclusive(p) != "":
		return kube.AffinityExclusive
	case !untouched(p):
		return kube.AffinityStarted
	case since > affinityDeadline, since < -affinityDeadline: // the clocks differ: the time is not known
		return kube.AffinityLate
	}
	return ""
}

// untouched reports whether the kubelet has reported no container of a pod that was created.
func untouched(p *corev1.Pod) bool {
	return (p.Status.Phase == corev1.PodPending || p.Status.Phase == "") && unstarted(p)
}

// unstarted is untouched in any phase.
func unstarted(p *corev1.Pod) bool {
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			if s.ContainerID != "" || s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil || s.RestartCount > 0 {
				return false
			}
		}
	}
	return true
}

// leavesPods reports whether the pods of a Node are left to something else: to fencing, a drain or a shutdown. The
// labels of a Node that is not Ready may be out of date.
func leavesPods(n *corev1.Node) bool {
	is := func(kind corev1.NodeConditionType) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
	}
	return n.DeletionTimestamp != nil || n.Spec.Unschedulable || !is(corev1.NodeReady) || is(shutdownCondition) ||
		slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(leaveTaints, t.Key) })
}

// mismatch compares an annotation with a Node. It returns the message of the rejection, empty if the Node matches. The
// error is that of an annotation that does not parse, which rejects no pod.
func mismatch(annotation string, n *corev1.Node) (message string, err error) {
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{affinity.Annotation: annotation}
	required, err := affinity.NewRequirement(pod)
	if err != nil {
		return "", err
	}
	verdict := required.MatchExecution(n)
	if verdict.Match {
		return "", nil
	}
	message = affinityPrefix + "the node does not match " + affinity.Annotation
	if len(verdict.Reasons) > 0 {
		message = affinityPrefix + verdict.Reasons[0].Message()
	}
	if more := len(verdict.Reasons) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return message, nil
}

// workloadOf returns what makes pods like this one. Without a controller that is what has chosen the name, or its
// begin.
func workloadOf(p *corev1.Pod) string {
	if c := metav1.GetControllerOf(p); c != nil {
		return p.Namespace + "/" + string(c.UID)
	}
	name := p.GenerateName
	if name == "" {
		name = p.Name
	}
	return p.Namespace + "//" + name
}

// affinityLimits bounds the rejections of a node.
type affinityLimits struct {
	minute    []time.Time
	workloads map[string][]time.Time
}

// take takes room for a rejection, which is not given back if it fails. It returns the result of affinity admission if
// there is none.
func (l *affinityLimits) take(workload string, now time.Time) string {
	passed := func(window time.Duration) func(time.Time) bool {
		return func(at time.Time) bool { return now.Sub(at) >= window }
	}
	l.minute = slices.DeleteFunc(l.minute, passed(time.Minute))
	for key, times := range l.workloads {
		if times = slices.DeleteFunc(times, passed(affinityWindow)); len(times) == 0 {
			delete(l.workloads, key)
		} else {
			l.workloads[key] = times
		}
	}
	switch {
	case len(l.workloads[workload]) >= affinityPerWorkload:
		return kube.AffinityWorkload
	case len(l.minute) >= affinityPerMinute:
		return kube.AffinityRate
	}
	if l.workloads == nil {
		l.workloads = map[string][]time.Time{}
	}
	l.minute, l.workloads[workload] = append(l.minute, now), append(l.workloads[workload], now)
	return ""
}
