package affinity

import (
	"context"
	"fmt"
	"slices"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// leaseNamespace has the Leases of the kubelets.
	leaseNamespace = "kube-node-lease"
	// pageSize bounds the objects of one answer.
	pageSize = 500
)

// live reads from the API server, never from a cache.
type live struct{ client client.Client }

// get reads an object. found is false if there is none.
func (l live) get(ctx context.Context, key types.NamespacedName, into client.Object, kind string) (found bool, err error) {
	if err := l.client.Get(ctx, key, into); apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	return true, nil
}

// lease returns when the Lease of a node was renewed last, the zero time if it has none.
func (l live) lease(ctx context.Context, node string) (time.Time, error) {
	lease := &coordinationv1.Lease{}
	found, err := l.get(ctx, types.NamespacedName{Namespace: leaseNamespace, Name: node}, lease, "Lease")
	if err != nil || !found || lease.Spec.RenewTime == nil {
		return time.Time{}, err
	}
	return lease.Spec.RenewTime.Time, nil
}

// metadata reads the metadata of an object by its owner reference. The error says if it is another object by now.
func (l live) metadata(ctx context.Context, o owner) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(schema.FromAPIVersionAndKind(o.apiVersion, o.kind))
	if err := l.client.Get(ctx, types.NamespacedName{Namespace: o.namespace, Name: o.name}, m); err != nil {
		return nil, fmt.Errorf("read %s: %w", o, err)
	}
	return m, sameUID(o, m.UID)
}

func sameUID(o owner, uid types.UID) error {
	if uid != o.uid {
		return fmt.Errorf("read %s: it was replaced: its UID is %s, not %s", o, uid, o.uid)
	}
	return nil
}

// scale returns how many replicas a workload shall have, and which labels they have.
func (l live) scale(ctx context.Context, o owner) (desired int, selector labels.Selector, err error) {
	if o.kind == "Job" {
		return l.job(ctx, o)
	}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(o.apiVersion, o.kind))
	object.SetNamespace(o.namespace)
	object.SetName(o.name)
	answer, scale := &unstructured.Unstructured{}, &autoscalingv1.Scale{}
	answer.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	err = l.client.SubResource("scale").Get(ctx, object, answer)
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, scale)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read the replicas of %s: %w", o, err)
	}
	if err := sameUID(o, scale.UID); err != nil {
		return 0, nil, err
	}
	if selector, err = labels.Parse(scale.Status.Selector); err != nil {
		return 0, nil, fmt.Errorf("read the selector of %s: %w", o, err)
	}
	if selector.Empty() {
		return 0, nil, fmt.Errorf("read the selector of %s: it is empty", o)
	}
	return int(scale.Spec.Replicas), selector, nil
}

func (l live) job(ctx context.Context, o owner) (desired int, selector labels.Selector, err error) {
	job := &batchv1.Job{}
	if err := l.client.Get(ctx, types.NamespacedName{Namespace: o.namespace, Name: o.name}, job); err != nil {
		return 0, nil, fmt.Errorf("read %s: %w", o, err)
	}
	if err := sameUID(o, job.UID); err != nil {
		return 0, nil, err
	}
	if selector, err = metav1.LabelSelectorAsSelector(job.Spec.Selector); err != nil {
		return 0, nil, fmt.Errorf("read the selector of %s: %w", o, err)
	}
	desired = 1
	if p := job.Spec.Parallelism; p != nil {
		desired = int(*p)
	}
	// No more pods are started than completions are missing.
	if c := job.Spec.Completions; c != nil {
		desired = min(desired, max(0, int(*c-job.Status.Succeeded)))
	}
	return desired, selector, nil
}

// replicaSets returns the UIDs of the ReplicaSets of a workload.
func (l live) replicaSets(ctx context.Context, o owner, selector labels.Selector) ([]types.UID, error) {
	var uids []types.UID
	err := pages(ctx, func(options ...client.ListOption) (string, error) {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSetList"})
		err := l.client.List(ctx, list, append(options, client.InNamespace(o.namespace), client.MatchingLabelsSelector{Selector: selector})...)
		for i := range list.Items {
			if controllerOf(&list.Items[i]).uid == o.uid {
				uids = append(uids, list.Items[i].UID)
			}
		}
		return list.Continue, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the ReplicaSets of %s: %w", o, err)
	}
	return uids, nil
}

// readyPods counts the ready pods of controllers that a selector matches.
func (l live) readyPods(ctx context.Context, o owner, selector labels.Selector, controllers []types.UID) (int, error) {
	ready := 0
	err := pages(ctx, func(options ...client.ListOption) (string, error) {
		list := &corev1.PodList{}
		err := l.client.List(ctx, list, append(options, client.InNamespace(o.namespace), client.MatchingLabelsSelector{Selector: selector})...)
		for i := range list.Items {
			if p := &list.Items[i]; isReady(p) && slices.Contains(controllers, controllerOf(p).uid) {
				ready++
			}
		}
		return list.Continue, err
	})
	if err != nil {
		return 0, fmt.Errorf("list the pods of %s: %w", o, err)
	}
	return ready, nil
}

// budgets returns the selectors of the PodDisruptionBudgets of a namespace.
func (l live) budgets(ctx context.Context, namespace string) ([]labels.Selector, error) {
	var selectors []labels.Selector
	err := pages(ctx, func(options ...client.ListOption) (string, error) {
		list := &policyv1.PodDisruptionBudgetList{}
		if err := l.client.List(ctx, list, append(options, client.InNamespace(namespace))...); err != nil {
			return "", err
		}
		for i := range list.Items {
			s, err := metav1.LabelSelectorAsSelector(list.Items[i].Spec.Selector)
			if err != nil {
				return "", fmt.Errorf("PodDisruptionBudget %s: %w", list.Items[i].Name, err)
			}
			selectors = append(selectors, s)
		}
		return list.Continue, nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the PodDisruptionBudgets of namespace %s: %w", namespace, err)
	}
	return selectors, nil
}

func selects(budgets []labels.Selector, podLabels map[string]string) bool {
	return slices.ContainsFunc(budgets, func(s labels.Selector) bool { return s.Matches(labels.Set(podLabels)) })
}

// pages calls list for each page. It returns what continues the list, empty at its end.
func pages(ctx context.Context, list func(...client.ListOption) (string, error)) error {
	next := ""
	for {
		var err error
		if next, err = list(client.Limit(pageSize), client.Continue(next)); err != nil || next == "" {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
