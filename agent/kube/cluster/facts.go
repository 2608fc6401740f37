package cluster

import (
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
)

const (
	// annotationMirror marks the API object of a static pod, whose UID is not that of
	// the pod that runs (pkg/kubelet/types/pod_update.go).
	annotationMirror = "kubernetes.io/config.mirror"
	// annotationExclusive is set to true by the author of a pod that must not run twice.
	annotationExclusive = "evictd.io/exclusive"
)

// relevant reports whether evictd needs facts about a pod: it is not the object of a
// static pod, and not in a terminal phase. evictd keeps the facts of a pod that has
// become terminal while the runtime lists it.
func relevant(p *corev1.Pod) bool {
	_, mirror := p.Annotations[annotationMirror]
	return !mirror && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// hasStarted reports whether the kubelet has created a container of the pod.
func hasStarted(p *corev1.Pod) bool {
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range statuses {
			if statuses[i].ContainerID != "" {
				return true
			}
		}
	}
	return false
}

// factsOf returns the facts about a pod.
func factsOf(p *corev1.Pod) *kube.Pod {
	f := &kube.Pod{
		UID: string(p.UID), Namespace: p.Namespace, Name: p.Name, Labels: p.Labels,
		PriorityClassName: p.Spec.PriorityClassName, Owner: ownerOf(p), QoS: evict.QoS(p.Status.QOSClass),
		Started: hasStarted(p), Exclusive: exclusive(p), RestartPolicy: string(p.Spec.RestartPolicy),
		Phase: string(p.Status.Phase), Overhead: amountsOf(p.Spec.Overhead),
	}
	if p.Spec.Priority != nil { // else 0, as for the kubelet
		f.Priority = *p.Spec.Priority
	}
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		// Pods of old clusters may have a negative one, which the API server reads as 1
		// (pkg/registry/core/pod/strategy.go).
		f.TerminationSeconds = new(*s)
		if *s < 0 {
			f.TerminationSeconds = new(int64(1))
		}
	}
	if p.DeletionTimestamp != nil {
		f.Deleted = p.DeletionTimestamp.UTC()
	}
	f.Bound = boundAt(p)
	if p.Spec.Resources != nil {
		f.Resources = podResourcesOf(p)
	}
	f.Containers = containersOf(p.Spec.Containers, p.Status.ContainerStatuses)
	f.InitContainers = containersOf(p.Spec.InitContainers, p.Status.InitContainerStatuses)
	for _, c := range p.Spec.EphemeralContainers {
		f.EphemeralContainers = append(f.EphemeralContainers, c.Name)
	}
	for _, t := range p.Spec.Tolerations {
		f.Tolerations = append(f.Tolerations, kube.Toleration{Key: t.Key, Operator: string(t.Operator), Value: t.Value, Effect: string(t.Effect)})
	}
	for i := range p.Spec.Volumes {
		if v, local := volumeOf(&p.Spec.Volumes[i]); local {
			f.Volumes = append(f.Volumes, v)
		}
	}
	return f
}

// boundAt returns when a pod was bound to its node. The API server sets the condition
// PodScheduled when it binds the pod (pkg/registry/core/pod/storage), and the kubelet if the pod
// was created with a node. Neither is the pod's author's.
func boundAt(p *corev1.Pod) time.Time {
	at := p.CreationTimestamp.Time
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at.UTC()
}

// groups has the API group of each kind of controller on which evictd decides.
var groups = map[string]string{"DaemonSet": "apps", "Job": "batch", "StatefulSet": "apps"}

// ownerOf returns the pod's controller. Its kind has the API group, as in kubectl, if evictd
// would else take it for the kind of Kubernetes. The API server accepts any text as its
// group, kind and name (ValidateOwnerReferences); no controller has a kind or name that is
// not one, and the pod then counts as one without a controller.
func ownerOf(p *corev1.Pod) kube.Owner {
	c := metav1.GetControllerOf(p)
	if c == nil || !kube.IsName(c.Kind) || !kube.IsName(c.Name) {
		return kube.Owner{}
	}
	kind := c.Kind
	group, _, found := strings.Cut(c.APIVersion, "/")
	if !found {
		group = "core"
	}
	if own := groups[kind]; own != "" && group != own {
		if kind += "." + group; !kube.IsName(kind) {
			return kube.Owner{}
		}
	}
	return kube.Owner{Kind: kind, Name: c.Name}
}

// containersOf returns the containers with their allocated resources.
func containersOf(cs []corev1.Container, statuses []corev1.ContainerStatus) (list []kube.Container) {
	for i := range cs {
		c := &cs[i]
		var allocated corev1.ResourceList
		var actual *corev1.ResourceRequirements
		for j := range statuses {
			if statuses[j].Name == c.Name {
				allocated, actual = statuses[j].AllocatedResources, statuses[j].Resources
			}
		}
		list = append(list, kube.Container{
			Name: c.Name, Resources: resourcesOf(c.Resources, allocated, actual),
			Sidecar: c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways,
		})
	}
	return list
}

// resourcesOf returns the requests and limits that the kubelet decides by: during a
// resize the requests that it has allocated and the limits that it has applied
// (pkg/kubelet/allocation). Only CPU and memory can be resized.
func resourcesOf(spec corev1.ResourceRequirements, allocated corev1.ResourceList, actual *corev1.ResourceRequirements) kube.Resources {
	r := kube.Resources{Requests: amountsOf(spec.Requests), Limits: amountsOf(spec.Limits)}
	resized := func(into *kube.Amounts, from corev1.ResourceList) {
		if q, ok := from[corev1.ResourceCPU]; ok {
			into.CPU = text(q)
		}
		if q, ok := from[corev1.ResourceMemory]; ok {
			into.Memory = text(q)
		}
	}
	resized(&r.Requests, allocated)
	if actual != nil && len(allocated) > 0 {
		resized(&r.Limits, actual.Limits)
	}
	return r
}

// podResourcesOf returns the pod-level requests and limits by which the kubelet decides. p has
// pod-level resources.
func podResourcesOf(p *corev1.Pod) kube.Resources {
	spec, status := p.Spec.Resources, corev1.ResourceRequirements{}
	if p.Status.Resources != nil {
		status.Limits = podLevel(p.Status.Resources.Limits, spec.Limits, p.Spec.Overhead)
	}
	return resourcesOf(*spec, podLevel(p.Status.AllocatedResources, spec.Requests, p.Spec.Overhead), &status)
}

// podLevel returns the pod-level amounts that amounts of the pod's status are about. The kubelet
// reports those of the whole pod (pkg/kubelet/kubelet_pods.go, since 1.36): with the overhead, and
// also of a resource that only containers have.
func podLevel(status, spec, overhead corev1.ResourceList) corev1.ResourceList {
	l := corev1.ResourceList{}
	for name := range spec {
		q, ok := status[name]
		if !ok {
			continue
		}
		q = q.DeepCopy() // Sub may change what q points to
		if q.Sub(overhead[name]); q.Sign() >= 0 {
			l[name] = q
		}
	}
	return l
}

func amountsOf(l corev1.ResourceList) (a kube.Amounts) {
	for name, into := range map[corev1.ResourceName]*string{
		corev1.ResourceCPU: &a.CPU, corev1.ResourceMemory: &a.Memory, corev1.ResourceEphemeralStorage: &a.EphemeralStorage,
	} {
		if q, ok := l[name]; ok {
			*into = text(q)
		}
	}
	return a
}

// maxQuantity is the largest quantity that evictd accepts.
var maxQuantity = *resource.NewQuantity(math.MaxInt64, resource.DecimalSI)

// text returns a quantity as evictd accepts it. The API server accepts 1e30 as well.
func text(q resource.Quantity) string {
	if q.Cmp(maxQuantity) > 0 {
		return maxQuantity.String()
	}
	return q.String()
}

// volumeOf returns a volume on the node's own filesystem; local is false for others.
func volumeOf(v *corev1.Volume) (_ kube.Volume, local bool) {
	switch {
	case v.EmptyDir != nil:
		f := kube.Volume{Name: v.Name, Type: evict.EmptyDir, Medium: string(v.EmptyDir.Medium)}
		if q := v.EmptyDir.SizeLimit; q != nil {
			f.SizeLimit = text(*q)
		}
		return f, true
	case v.HostPath != nil:
		return kube.Volume{Name: v.Name, Type: evict.HostPath}, true
	case v.ConfigMap != nil:
		return kube.Volume{Name: v.Name, Type: evict.ConfigMap}, true
	}
	return kube.Volume{}, false
}

// exclusive returns the reason why two instances of a pod must not run at the same time;
// "" if they may.
func exclusive(p *corev1.Pod) string {
	// Those of other API groups run their pods once, too.
	if c := metav1.GetControllerOf(p); c != nil {
		switch c.Kind {
		case "StatefulSet":
			return kube.ExclusiveStatefulSet
		case "Job":
			return kube.ExclusiveJob
		}
	}
	if p.Annotations[annotationExclusive] == "true" {
		return kube.ExclusiveAnnotation
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return kube.ExclusiveClaim
		}
	}
	if len(p.Spec.ResourceClaims) > 0 {
		return kube.ExclusiveResourceClaim
	}
	for _, cs := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range cs {
			for _, port := range cs[i].Ports {
				if port.HostPort != 0 {
					return kube.ExclusiveHostPort
				}
			}
			for name := range cs[i].Resources.Limits {
				if extended(name) {
					return kube.ExclusiveExtended
				}
			}
		}
	}
	return ""
}

// extended reports whether a resource is an extended one: its name has a domain other
// than kubernetes.io (pkg/apis/core/v1/helper/helpers.go). Its limit is its request.
func extended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io")
}
