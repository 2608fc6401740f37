package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// annotationRemediatedNode names the node of a medik8s remediation that is not named like it, because there are
	// several templates of its kind.
	annotationRemediatedNode = "remediation.medik8s.io/node-name"
	// annotationExternalRemediation is set on a Machine by a MachineHealthCheck of OpenShift with the strategy
	// external-baremetal.
	annotationExternalRemediation = "host.metal3.io/external-remediation"
)

// remediatorObjects are the objects by which other remediators work on nodes. They are in any namespace, or in none.
type remediatorObjects struct {
	live liveReader
	// installed returns the kinds that the API server has. If fresh is false, it may have asked some time ago.
	installed func(ctx context.Context, fresh bool) ([]remediatorKind, error)
}

// errNotServed says that the API server does not have a kind any more, or not in the version that it had.
var errNotServed = errors.New("the kind was removed, or has other versions")

// objectError says that a remediator has an object for the node.
type objectError struct {
	kind, namespace, name string
	// state is what the object says, empty if it is enough that it exists.
	state string
}

func (e *objectError) Error() string {
	name := e.name
	if e.namespace != "" {
		name = e.namespace + "/" + name
	}
	if e.kind == kindMachine {
		return fmt.Sprintf("Machine %s of the node %s: another remediator works on the node; it is fenced when that has ended, "+
			"or the Machine is gone", name, e.state)
	}
	return fmt.Sprintf("%s %s is for the node: another remediator, or maintenance, works on it; it is fenced when the object is gone, "+
		"or says that the remediation has ended", e.kind, name)
}

// check returns an [objectError] if a remediator has an object for a node, and another error if the objects of a kind
// that the API server has can't be listed.
func (r *remediatorObjects) check(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := r.checkKinds(ctx, node, false)
	if errors.Is(err, errNotServed) {
		// An object that exists is listed in a version that is served now.
		err = r.checkKinds(ctx, node, true)
	}
	return err
}

// checkKinds is check with the kinds that are known, or those that the API server is asked for now if fresh is true. Its
// error is errNotServed if one of them is not known any more.
func (r *remediatorObjects) checkKinds(ctx context.Context, node string, fresh bool) error {
	kinds, err := r.installed(ctx, fresh)
	if err != nil {
		return err
	}
	machines := make(map[types.NamespacedName]bool) // of the node
	var found *objectError
	var errs []error
	for i := range kinds {
		k := &kinds[i]
		errs = append(errs, r.live.remediatorObjects(ctx, k, func(o *unstructured.Unstructured) {
			if state, works := k.works(o, node, machines); works && found == nil {
				found = &objectError{k.kind, o.GetNamespace(), o.GetName(), state}
			}
		}))
		// A hold also interrupts a release, which an error does not.
		if found != nil {
			return found
		}
	}
	return errors.Join(errs...)
}

// works reports whether an object says that a remediator works on a node, and what a Machine says. Machines of the node
// are added to those that are known.
func (k *remediatorKind) works(o *unstructured.Unstructured, node string, machines map[types.NamespacedName]bool) (state string, works bool) {
	switch k.kind {
	case kindMachine:
		if name, _, _ := unstructured.NestedString(o.Object, "status", "nodeRef", "name"); name != node {
			return "", false
		}
		machines[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = true
		state = machineState(o)
		return state, state != ""
	case kindMaintenance:
		// It has the phase Succeeded when the node is drained: the maintenance lasts until the object is deleted.
		name, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
		return "", name == node
	}
	if !remediates(o, node, machines) {
		return "", false
	}
	// While it is being deleted, its remediator undoes what it did to the node.
	ended := k.ends && o.GetDeletionTimestamp() == nil && conditionIsFalse(o, "Processing", "status", "conditions")
	return "", !ended
}

// remediates reports whether a remediation is for a node. It has the name of the node, unless an annotation names that;
// one of a MachineHealthCheck has the name of the Machine, and the Machine as an owner.
func remediates(o *unstructured.Unstructured, node string, machines map[types.NamespacedName]bool) bool {
	named := o.GetAnnotations()[annotationRemediatedNode]
	if named == node || named == "" && (o.GetName() == node || machines[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}]) {
		return true
	}
	return slices.ContainsFunc(o.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		return ref.Kind == kindMachine && machines[types.NamespacedName{Namespace: o.GetNamespace(), Name: ref.Name}]
	})
}

// machineState returns what a Machine says of a remediation that was asked for, empty if none was. That
// HealthCheckSucceeded is False is not enough: a MachineHealthCheck says so also while too many machines are unhealthy
// and it does nothing.
func machineState(o *unstructured.Unstructured) string {
	// The conditions of v1beta1 in v1beta2 and those of v1beta2 in v1beta1 are in fields of their own.
	paths := [][]string{{"status", "conditions"}, {"status", "v1beta2", "conditions"}, {"status", "deprecated", "v1beta1", "conditions"}}
	if o.GetDeletionTimestamp() != nil {
		return "is being deleted"
	}
	if _, set := o.GetAnnotations()[annotationExternalRemediation]; set {
		return "has the annotation " + annotationExternalRemediation
	}
	for _, name := range []string{"OwnerRemediated", "ExternallyRemediated"} {
		if slices.ContainsFunc(paths, func(path []string) bool { return conditionIsFalse(o, name, path...) }) {
			return "has the condition " + name + "=False"
		}
	}
	return ""
}

// conditionIsFalse reports whether a list of conditions has one with the status False.
func conditionIsFalse(o *unstructured.Unstructured, name string, path ...string) bool {
	list, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	conditions, _ := list.([]any)
	return slices.ContainsFunc(conditions, func(item any) bool {
		c, _ := item.(map[string]any)
		return c["type"] == name && c["status"] == string(metav1.ConditionFalse)
	})
}

// remediatorObjects calls f with each object of a kind.
func (l liveReader) remediatorObjects(ctx context.Context, k *remediatorKind, f func(*unstructured.Unstructured)) error {
	empty := func() *unstructured.UnstructuredList {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: k.group, Version: k.version, Kind: k.kind + "List"})
		return list
	}
	err := pagesOf(ctx, l.reader, empty, func(list *unstructured.UnstructuredList) {
		for i := range list.Items {
			f(&list.Items[i])
		}
	})
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		err = fmt.Errorf("%w: %w", errNotServed, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("list %s.%s: %w: apply %s", k.resource, k.group, err, k.manifest)
	}
	return fmt.Errorf("list %s.%s: %w", k.resource, k.group, err)
}
