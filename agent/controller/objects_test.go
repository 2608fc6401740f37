package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

// objectOrder returns the order of an act that needs no device.
func objectOrder(a fence.Action) *order {
	o := offOrder("1")
	o.method = fence.Method{Name: "m", Action: a, Identity: fence.CheckNone}
	o.intent.Action, o.intent.Method = a, "m"
	return o
}

func TestCordon(t *testing.T) {
	for name, tt := range map[string]struct {
		action        fence.Action
		unschedulable bool
		owner         string // annotation before
		want          bool
		wantOwner     string
	}{
		"cordon":                              {fence.Cordon, false, "", true, fenceUID},
		"cordon again":                        {fence.Cordon, true, fenceUID, true, fenceUID},
		"cordon after a person":               {fence.Cordon, true, "", true, ""},
		"cordon after an earlier fence":       {fence.Cordon, true, "earlier", true, "earlier"},
		"cordon with an annotation left":      {fence.Cordon, false, "earlier", true, fenceUID},
		"uncordon":                            {fence.Uncordon, true, fenceUID, false, ""},
		"uncordon after a person did":         {fence.Uncordon, false, fenceUID, false, ""},
		"uncordon what a person cordoned":     {fence.Uncordon, true, "", true, ""},
		"uncordon what another fence did":     {fence.Uncordon, true, "earlier", true, "earlier"},
		"uncordon what nothing has cordoned":  {fence.Uncordon, false, "", false, ""},
		"uncordon, annotation of another one": {fence.Uncordon, false, "earlier", false, "earlier"},
	} {
		for _, annotations := range []map[string]string{nil, {"other": "x"}} {
			n := deadNode()
			n.Spec.Unschedulable, n.Annotations = tt.unschedulable, annotations
			if tt.owner != "" {
				n.Annotations = map[string]string{annotationCordon: tt.owner}
			}
			r, api := testReconciler(t, nil, interceptor.Funcs{}, n)
			kind, err := r.actOnObjects(t.Context(), objectOrder(tt.action))
			if err != nil || kind != fence.Succeeded {
				t.Errorf("%s: actOnObjects = %s, %v; want Succeeded", name, kind, err)
			}
			got := getNode(t, api)
			if got.Spec.Unschedulable != tt.want || got.Annotations[annotationCordon] != tt.wantOwner {
				t.Errorf("%s: unschedulable %t, owner %q; want %t, %q", name, got.Spec.Unschedulable, got.Annotations[annotationCordon], tt.want, tt.wantOwner)
			}
			if tt.owner == "" && got.Annotations["other"] != annotations["other"] {
				t.Errorf("%s: annotations = %v; want that others stay", name, got.Annotations)
			}
		}
	}
}

// A patch is repeated if the Node has changed since it was read, and its errors tell whether it may have been done.
func TestCordonErrors(t *testing.T) {
	conflict := refusePatch(t.Context(), nil, nil, nil)
	for name, tt := range map[string]struct {
		errs []error
		node string
		kind fence.OutcomeKind
	}{
		"conflict once":   {[]error{conflict}, nodeUID, fence.Succeeded},
		"conflict always": {[]error{conflict, conflict, conflict}, nodeUID, fence.Failed},
		"no right":        {[]error{apierrors.NewForbidden(corev1.Resource("nodes"), "n1", errors.New("no right"))}, nodeUID, fence.Failed},
		"API server ends": {[]error{apierrors.NewInternalError(errors.New("x"))}, nodeUID, fence.Unknown},
		"no answer":       {[]error{context.DeadlineExceeded}, nodeUID, fence.Unknown},
		"another Node":    {nil, "other", fence.Failed},
	} {
		n := deadNode()
		n.UID = types.UID(tt.node)
		errs := tt.errs
		r, api := testReconciler(t, nil, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
				if len(errs) > 0 {
					err := errs[0]
					errs = errs[1:]
					return err
				}
				return c.Patch(ctx, o, p, options...)
			},
		}, n)
		kind, err := r.actOnObjects(t.Context(), objectOrder(fence.Cordon))
		if kind != tt.kind || (err == nil) != (kind == fence.Succeeded) {
			t.Errorf("%s: actOnObjects = %s, %v; want %s", name, kind, err, tt.kind)
		}
		if got := getNode(t, api).Spec.Unschedulable; got != (kind == fence.Succeeded) {
			t.Errorf("%s: unschedulable %t", name, got)
		}
	}
}

// clean-pods deletes what the release would: not the pods of DaemonSets, static pods and those that tolerate the taint.
func TestCleanPods(t *testing.T) {
	r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), pod("db-0", "StatefulSet", nil), pod("agent", "DaemonSet", nil),
		pod("static", "Node", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "1"} }),
		pod("stays", "", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }),
		pod("elsewhere", "", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }))
	if kind, err := r.actOnObjects(t.Context(), objectOrder(fence.CleanPods)); kind != fence.Succeeded || err != nil {
		t.Fatalf("actOnObjects = %s, %v; want Succeeded", kind, err)
	}
	for name, want := range map[string]bool{"db-0": false, "agent": true, "static": true, "stays": true, "elsewhere": true} {
		err := api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, &corev1.Pod{})
		if got := err == nil; got != want {
			t.Errorf("pod %s: %v; want that it stays: %t", name, err, want)
		}
	}
}

// An action on objects opens no device, and is checked like one on a device.
func TestActOnObjects(t *testing.T) {
	for name, tt := range map[string]struct {
		check   error
		objects func(context.Context, *order) (fence.OutcomeKind, error)
		kind    fence.OutcomeKind
		message string
	}{
		"done":    {nil, func(context.Context, *order) (fence.OutcomeKind, error) { return fence.Succeeded, nil }, fence.Succeeded, ""},
		"refused": {errors.New("the Node n1 is Ready"), nil, fence.Refused, "the Node n1 is Ready"},
		"failed":  {nil, func(context.Context, *order) (fence.OutcomeKind, error) { return fence.Failed, errors.New("no right") }, fence.Failed, "no right"},
		"panic":   {nil, func(context.Context, *order) (fence.OutcomeKind, error) { panic("x") }, fence.Unknown, "panic: x"},
		"ends at the deadline": {nil, func(ctx context.Context, _ *order) (fence.OutcomeKind, error) {
			return fence.Unknown, hangs(ctx)
		}, fence.Unknown, "chassis control: context deadline exceeded"},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := testExecutor(t.Context(), nil) // a call of the device would panic
			e.check = func(context.Context, *order) error { return tt.check }
			e.objects = tt.objects
			e.pending("n1", fenceUID)
			e.act(objectOrder(fence.Cordon))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			outcomes, _, inFlight := e.pending("n1", fenceUID)
			if len(outcomes) != 1 || outcomes[0].Kind != tt.kind || outcomes[0].Message != tt.message || inFlight != "" {
				t.Errorf("%s: outcomes %+v, in flight %q; want %s %q", name, outcomes, inFlight, tt.kind, tt.message)
			}
		})
	}
}
