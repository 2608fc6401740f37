package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
)

// cordonAttempts bounds the patches of a Node that changes between reading and writing.
const cordonAttempts = 3

// actOnObjects carries out an action on objects of the cluster. What the API server answered with an error was not
// done; without an answer the outcome is unknown.
func (r *reconciler) actOnObjects(ctx context.Context, o *order) (fence.OutcomeKind, error) {
	var err error
	switch o.intent.Action {
	case fence.Cordon, fence.Uncordon:
		err = r.setSchedulable(ctx, o)
	case fence.CleanPods:
		err = r.cleanPods(ctx, o)
	default:
		return fence.Refused, fmt.Errorf("action %q is not one on objects", o.intent.Action)
	}
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return fence.Succeeded, nil
	case errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError:
		return fence.Failed, err
	}
	return fence.Unknown, err
}

// setSchedulable cordons or uncordons a Node.
func (r *reconciler) setSchedulable(ctx context.Context, o *order) error {
	var err error
	for range cordonAttempts {
		var n *corev1.Node
		if n, err = r.observer.live.node(ctx, o.node); err != nil {
			return err
		}
		if n == nil || string(n.UID) != o.target.UID {
			return apierrors.NewNotFound(corev1.Resource("nodes"), o.node)
		}
		var patch []byte
		if patch, err = cordonPatch(n, o.intent.Action == fence.Cordon, o.fence); err != nil || patch == nil {
			return err
		}
		// The API server answers 422 to a patch whose test of resourceVersion fails.
		err = r.writer.Patch(ctx, n, client.RawPatch(types.JSONPatchType, patch))
		if !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s Node %s: %w", o.intent.Action, o.node, err)
	}
	r.log.Info("schedulability of Node set", "node", o.node, "fence", o.fence, "action", o.intent.Action)
	return nil
}

// cordonPatch returns the JSON Patch that makes a Node unschedulable or schedulable, nil if there is nothing to do. A
// Node that is unschedulable without the annotation of this fence was made so by another program or a person: it stays.
func cordonPatch(n *corev1.Node, cordon bool, uid string) ([]byte, error) {
	owner, owned := n.Annotations[annotationCordon]
	path := "/metadata/annotations/" + strings.ReplaceAll(annotationCordon, "/", "~1")
	ops := []patchOp{{Op: "test", Path: "/metadata/resourceVersion", Value: n.ResourceVersion}}
	switch {
	case cordon && n.Spec.Unschedulable, !cordon && owner != uid:
		return nil, nil
	case cordon && len(n.Annotations) == 0:
		ops = append(ops, patchOp{"add", "/metadata/annotations", map[string]string{annotationCordon: uid}},
			patchOp{"add", "/spec/unschedulable", true})
	case cordon:
		ops = append(ops, patchOp{"add", path, uid}, patchOp{"add", "/spec/unschedulable", true})
	case owned:
		ops = append(ops, patchOp{Op: "remove", Path: path})
		if n.Spec.Unschedulable {
			ops = append(ops, patchOp{Op: "remove", Path: "/spec/unschedulable"})
		}
	}
	return json.Marshal(ops)
}

// cleanPods deletes the pods of a node that was released.
func (r *reconciler) cleanPods(ctx context.Context, o *order) error {
	pods, err := r.observer.live.pods(ctx, o.node)
	if err != nil {
		return err
	}
	var l fence.Load
	for i := range pods {
		l.Pods = append(l.Pods, podFacts(&pods[i]))
	}
	return r.deletePods(ctx, o.node, l.Evicted())
}

// deletePods deletes pods without grace. A pod of the same name with another UID stays.
func (r *reconciler) deletePods(ctx context.Context, node string, pods []fence.Pod) error {
	var errs []error
	for i := range pods {
		if !r.executor.leads() {
			errs = append(errs, errNotLeading)
			break
		}
		pod := &pods[i]
		o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		uid := types.UID(pod.UID)
		err := r.writer.Delete(ctx, o, client.GracePeriodSeconds(0), client.Preconditions{UID: &uid})
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("delete pod %s/%s of Node %s: %w", pod.Namespace, pod.Name, node, err))
		default:
			r.log.Info("pod deleted", "node", node, "namespace", pod.Namespace, "pod", pod.Name, "uid", pod.UID)
		}
	}
	return errors.Join(errs...)
}

// deleteAttachments deletes VolumeAttachments, so that their CSI drivers detach the volumes. One of the same name with
// another UID stays.
func (p *pass) deleteAttachments(ctx context.Context, attachments []fence.Attachment) error {
	var errs []error
	for i := range attachments {
		if !p.executor.leads() {
			errs = append(errs, errNotLeading)
			break
		}
		a := &attachments[i]
		uid := types.UID(a.UID)
		err := p.writer.Delete(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: a.Name}},
			client.Preconditions{UID: &uid})
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("delete VolumeAttachment %s of Node %s: %w", a.Name, p.name, err))
		default:
			p.log.Info("VolumeAttachment deleted", "node", p.name, "attachment", a.Name, "uid", a.UID)
		}
	}
	return errors.Join(errs...)
}
