package affinity

import (
	"fmt"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/affinity"
)

// owner is the controller of a pod, as its ownerReferences name it.
type owner struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

// workload returns the identity for [affinity.Pod.Workload].
func (o owner) workload() string {
	return affinity.WorkloadID(o.kind, o.namespace, o.name, o.uid)
}

func (o owner) String() string { return fmt.Sprintf("%s %s/%s", o.kind, o.namespace, o.name) }

// noOwner is that of a pod without a controller.
var noOwner = unique.Make(owner{})

// pod is what is kept of a pod. It is not changed after it was made, except in its place.
type pod struct {
	affinity.PodKey
	version string // resourceVersion
	node    string
	owner   unique.Handle[owner]
	created time.Time
	// bound is when it was bound to its node.
	bound time.Time
	// shape is nil for a pod that requires nothing that is enforced.
	shape *shape
	// generateName is kept with a shape, of a pod without a controller only.
	generateName string
	// labels are kept with a shape only.
	labels map[string]string
	// ready means bound, Ready and not terminating.
	ready, mirror, completed, terminating, evictBare bool
	// place is the index in the list of its node.
	place int
}

// GetObjectMeta implements metav1.ObjectMetaAccessor: the reflector uses it for the key of an object.
func (p *pod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.version}
}

func (p *pod) key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

func (p *pod) controller() controllerKey {
	return controllerKey{p.Namespace, p.owner.Value().uid}
}

func (p *pod) daemonSet() bool { return p.owner.Value().kind == "DaemonSet" }

// newPod returns what is kept of a pod. It shares no memory with it.
func newPod(p *corev1.Pod, s *shapes) *pod {
	o := controllerOf(p)
	out := &pod{
		PodKey:  affinity.PodKey{Namespace: intern(p.Namespace), Name: p.Name, UID: p.UID},
		version: p.ResourceVersion, node: intern(p.Spec.NodeName), created: p.CreationTimestamp.Time,
		owner: unique.Make(o), mirror: affinity.Mirror(p), completed: affinity.Completed(p), terminating: p.DeletionTimestamp != nil,
		ready:     isReady(p),
		bound:     affinity.BoundAt(p),
		evictBare: isEvictedBare(p),
	}
	_, annotated := p.Annotations[affinity.Annotation]
	// The DaemonSet controller gives each pod an affinity to its node, which would be one shape a pod.
	if annotated || hasRequired(p) && o.kind != "DaemonSet" {
		out.shape = s.of(p)
		out.labels = keptLabels(p.Labels)
		if o.uid == "" {
			out.generateName = intern(p.GenerateName)
		}
	}
	if !annotated && out.shape != nil && out.shape.err != nil {
		out.shape = nil // no annotation that could be reported
	}
	return out
}

// maxLabels bounds the labels that are kept of a pod, in bytes.
const maxLabels = 16 << 10

// keptLabels returns the labels, none if they have too many bytes: no PodDisruptionBudget then seems to select the pod,
// so that all replicas must be ready.
func keptLabels(all map[string]string) map[string]string {
	kept, size := make(map[string]string, len(all)), 0
	for k, v := range all {
		if size += len(k) + len(v); size > maxLabels {
			return nil
		}
		kept[intern(k)] = intern(v)
	}
	return kept
}

func intern(s string) string { return unique.Make(s).Value() }

// controllerOf returns the controller of a pod, the zero owner if it has none.
func controllerOf(o metav1.Object) owner {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		return owner{}
	}
	return owner{ref.APIVersion, ref.Kind, o.GetNamespace(), ref.Name, ref.UID}
}

// isEvictedBare reports whether the annotation of a pod has it evicted without a controller.
func isEvictedBare(p *corev1.Pod) bool { return p.Annotations[affinity.AnnotationEvictBare] == "true" }

// isReady reports whether a pod counts as a replica that is ready.
func isReady(p *corev1.Pod) bool {
	if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || affinity.Completed(p) {
		return false
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func hasRequired(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil
}
