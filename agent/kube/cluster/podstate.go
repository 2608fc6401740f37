package cluster

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
)

const (
	// annotationEvicted is changed by each write of the phase. The kubelet takes a change of the
	// status alone back, and ends a terminal pod only if something beside the status changes
	// (pkg/kubelet/config/config.go, checkAndUpdatePod).
	annotationEvicted = "evictd.io/evicted"
	// reasonDisrupted is the reason of the condition DisruptionTarget. The kubelet's is
	// TerminationByKubelet.
	reasonDisrupted = "TerminationByEvictd"
	// maxStates bounds the pods whose states are kept, beside those of orders.
	maxStates = 2 * kube.MaxPods
	// maxMark and maxMirror bound what is kept of a pod's annotations: a time and a number, and
	// a UID or a hash.
	maxMark, maxMirror = 40, 64
)

// podState is what the Reporter keeps of each pod of the node: as much as it decides on.
type podState struct {
	// version is the resource version of the object; 0 if it is not a number.
	version    uint64
	generation int64
	phase      corev1.PodPhase
	// mark is the annotation annotationEvicted if it can be one of evictd's.
	mark string
	// mirror is the static pod's UID, or another text, if this is the object of a static pod.
	mirror string
	// restarts is set if the kubelet restarts containers whatever their exit code.
	restarts bool
	// replaced is set if the pod's controller deletes it as soon as it has failed, to make another one.
	replaced bool
	deleting bool
	// reason is set if the status has one.
	reason bool
	// disrupted is set if the condition DisruptionTarget is that of evictd.
	disrupted bool
	// terminated is set if no container can run any more, and sandbox if the kubelet reports that the
	// pod has a sandbox.
	terminated, sandbox bool
}

// stateOf returns the state of a pod.
func stateOf(p *corev1.Pod) podState {
	s := podState{
		version: versionOf(p), generation: p.Generation, phase: p.Status.Phase,
		restarts: p.Spec.RestartPolicy == "" || p.Spec.RestartPolicy == corev1.RestartPolicyAlways,
		replaced: isReplaced(p), deleting: p.DeletionTimestamp != nil, reason: p.Status.Reason != "", terminated: terminated(p),
	}
	if mark := p.Annotations[annotationEvicted]; len(mark) <= maxMark {
		s.mark = strings.Clone(mark)
	}
	if mirror := p.Annotations[annotationMirror]; len(mirror) <= maxMirror {
		s.mirror = strings.Clone(mirror)
	} else {
		s.mirror = "too long"
	}
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		switch isTrue := c.Status == corev1.ConditionTrue; c.Type {
		case corev1.DisruptionTarget:
			s.disrupted = s.disrupted || isTrue && c.Reason == reasonDisrupted
		case corev1.PodReadyToStartContainers:
			s.sandbox = isTrue
		}
	}
	return s
}

// isReplaced reports whether a pod is that of a StatefulSet or a DaemonSet, whose controllers delete a
// failed pod within some 100 ms.
func isReplaced(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && (owner.Kind == "StatefulSet" || owner.Kind == "DaemonSet") && strings.HasPrefix(owner.APIVersion, "apps/")
}

// completed reports whether a pod has ended: an order about it is not to be expected.
func (s *podState) completed() bool {
	return s.phase == corev1.PodSucceeded || s.phase == corev1.PodFailed
}

// versionOf returns the resource version of a pod; 0 if it is not a number. Kubernetes 1.35 and
// later promise that it is one and that it grows (KEP-5504); with etcd it was so before.
func versionOf(p *corev1.Pod) uint64 {
	version, err := strconv.ParseUint(p.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// olderThan reports whether a state of a pod is known to be older than another one of it.
func (s *podState) olderThan(other *podState) bool {
	return s.version != 0 && s.version < other.version
}

// reported updates the state by the answer to a write of the phase, which has the metadata of the
// pod alone. Without a version it can't be compared with later events, and is not taken.
func (s *podState) reported(p *corev1.Pod, mark string) {
	version := versionOf(p)
	if s.version == 0 || version <= s.version {
		return
	}
	s.version, s.generation, s.mark, s.deleting = version, p.Generation, mark, p.DeletionTimestamp != nil
	s.phase, s.reason, s.disrupted = corev1.PodFailed, true, true
}

// terminated reports whether no container of a pod can run any more. In a pod that has ended
// while it was initialized, the other containers wait and were never started.
func terminated(p *corev1.Pod) bool {
	ended := p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
	some := false
	for _, cs := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range cs {
			c := &cs[i]
			switch {
			case c.State.Terminated != nil:
				some = true
			case c.State.Running != nil, !ended, c.RestartCount > 0, c.LastTerminationState.Terminated != nil:
				return false
			}
		}
	}
	return some && len(p.Status.ContainerStatuses) >= len(p.Spec.Containers) && len(p.Status.InitContainerStatuses) >= len(p.Spec.InitContainers)
}

// undone reports whether the kubelet has taken back the phase or the reason of a report, and
// still ends the pod. A kubelet that has noticed the end of all containers by itself writes a verdict
// without a reason, and reads the pod for the last time when it has stopped the sandbox, up to a
// second later (pkg/kubelet/pod_workers.go, podWorkerLoop). What it writes without a sandbox stays: it
// would take back another report every ten seconds.
func (s *podState) undone() bool {
	return (s.phase != corev1.PodFailed || !s.reason) && (!s.terminated || s.sandbox)
}

// writes returns how many times the report of an order was written to the pod, by the number
// in its annotation; 0 for none.
func (s *podState) writes(decided time.Time) int {
	text, ok := strings.CutPrefix(s.mark, markPrefix(decided))
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0
	}
	return min(n, maxWrites)
}

// markOf returns the value of annotationEvicted at a write of an order.
func markOf(o *kube.Order, write int) string { return markPrefix(o.Decided) + strconv.Itoa(write) }

func markPrefix(decided time.Time) string {
	return decided.UTC().Format("2006-01-02T15:04:05.000Z07:00") + "/"
}
