package affinity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/affinity"
)

// TestCheck: an eviction is sent only if pod, Node and Lease are what was decided on.
func TestCheck(t *testing.T) {
	type world struct {
		pod    *corev1.Pod
		node   *corev1.Node
		lease  *coordinationv1.Lease
		config affinity.Config
		// fails is the kind that can't be read.
		fails string
		// late changes pod and configuration once the Lease was read, the last of the Node's reads.
		late func(*world)
		// fenced has the nodes with a fence.
		fenced map[string]bool
	}
	taint := func(key string) func(*world) {
		return func(w *world) { w.node.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}} }
	}
	for name, tt := range map[string]struct {
		change func(*world)
		want   affinity.OutcomeKind
		reason string
	}{
		"as decided":   {func(*world) {}, "", ""},
		"switched off": {func(w *world) { w.config.Enforce = false }, affinity.Changed, "switched off"},
		"bare no more": {func(w *world) { w.config.EvictBare = false }, affinity.Changed, "no controller"},
		"bare by its annotation": {func(w *world) {
			w.config.EvictBare, w.pod.Annotations[affinity.AnnotationEvictBare] = false, "true"
		}, "", ""},
		"bare, other value": {func(w *world) {
			w.config.EvictBare, w.pod.Annotations[affinity.AnnotationEvictBare] = false, "false"
		}, affinity.Changed, "no controller"},
		"switched off late": {func(w *world) { w.late = func(w *world) { w.config.Enforce = false } }, affinity.Changed, "switched off"},
		"bare no more late": {func(w *world) { w.late = func(w *world) { w.config.EvictBare = false } }, affinity.Changed, "no controller"},
		"annotation late": {func(w *world) {
			w.late = func(w *world) { w.pod.Annotations[affinity.Annotation] += " " }
		}, affinity.Changed, "annotation"},
		"replaced late": {func(w *world) { w.late = func(w *world) { w.pod.UID = "other" } }, affinity.Gone, "other"},
		"pod gone":      {func(w *world) { w.pod = nil }, affinity.Gone, ""},
		"pod replaced":  {func(w *world) { w.pod.UID = "other" }, affinity.Gone, "other"},
		"terminating": {func(w *world) {
			w.pod.DeletionTimestamp, w.pod.Finalizers = new(metav1.Now()), []string{"example.com/x"}
		}, affinity.Changed, "terminating"},
		"pod moved":         {func(w *world) { w.pod.Spec.NodeName = "b" }, affinity.Changed, `Node "b"`},
		"pod completed":     {func(w *world) { w.pod.Status.Phase = corev1.PodSucceeded }, affinity.Changed, "completed"},
		"annotation":        {func(w *world) { w.pod.Annotations[affinity.Annotation] += " " }, affinity.Changed, "annotation"},
		"no annotation":     {func(w *world) { w.pod.Annotations = nil }, affinity.Changed, "annotation"},
		"mirror":            {func(w *world) { w.pod.Annotations[corev1.MirrorPodAnnotationKey] = "x" }, affinity.Changed, "controller"},
		"adopted":           {func(w *world) { w.pod.OwnerReferences = testPod("p", "a", "web", "").OwnerReferences }, affinity.Changed, "controller"},
		"pod unreadable":    {func(w *world) { w.fails = "*v1.Pod" }, affinity.RequestError, "read Pod default/p"},
		"node gone":         {func(w *world) { w.node = nil }, affinity.Changed, "deleted"},
		"node replaced":     {func(w *world) { w.node.UID = "other" }, affinity.Changed, "replaced"},
		"label back":        {func(w *world) { w.node.Labels["licence"] = "valid" }, affinity.Changed, "fits Node a again"},
		"not Ready":         {func(w *world) { w.node.Status.Conditions[0].Status = corev1.ConditionUnknown }, affinity.Changed, "not Ready"},
		"cordoned":          {func(w *world) { w.node.Spec.Unschedulable = true }, affinity.Changed, "cordoned"},
		"fenced":            {taint("evictd.io/fencing"), affinity.Changed, "fenced"},
		"fence begun":       {func(w *world) { w.fenced = map[string]bool{"a": true} }, affinity.Changed, "fenced"},
		"fence of another":  {func(w *world) { w.fenced = map[string]bool{"b": true} }, "", ""},
		"fences unknown":    {func(w *world) { w.fails = "fences" }, affinity.RequestError, "fences"},
		"cloud shutdown":    {taint("node.cloudprovider.kubernetes.io/shutdown"), affinity.Changed, "shuts down"},
		"autoscaler":        {taint("ToBeDeletedByClusterAutoscaler"), affinity.Changed, "emptied"},
		"shutdown of ours":  {taint("evictd.io/node-shutdown"), affinity.Changed, "shuts down"},
		"another taint":     {taint("example.com/x"), "", ""},
		"node unreadable":   {func(w *world) { w.fails = "*v1.Node" }, affinity.RequestError, "read Node"},
		"Lease old":         {func(w *world) { w.lease.Spec.RenewTime.Time = time.Now().Add(-time.Minute) }, affinity.NotRenewed, "Lease"},
		"Lease from future": {func(w *world) { w.lease.Spec.RenewTime.Time = time.Now().Add(time.Hour) }, affinity.NotRenewed, "Lease"},
		"no Lease":          {func(w *world) { w.lease = nil }, affinity.NotRenewed, "Lease"},
		"Lease unreadable":  {func(w *world) { w.fails = "*v1.Lease" }, affinity.RequestError, "read Lease"},
	} {
		w := &world{pod: testPod("p", "a", "web", valid), node: testNode("a", "expired"), config: affinity.Config{Enforce: true, EvictBare: true}}
		w.pod.OwnerReferences = nil
		w.lease = &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "a"}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())},
		}
		var s shapes
		decided := newPod(w.pod, &s)
		tt.change(w)
		builder := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme)
		for _, o := range []client.Object{w.pod, w.node, w.lease} {
			if o != client.Object((*corev1.Pod)(nil)) && o != client.Object((*corev1.Node)(nil)) && o != client.Object((*coordinationv1.Lease)(nil)) {
				builder.WithObjects(o)
			}
		}
		changed := false
		builder.WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if fmt.Sprintf("%T", o) == w.fails {
					return fmt.Errorf("connection refused")
				}
				err := c.Get(ctx, key, o, options...)
				if p, ok := o.(*corev1.Pod); ok && changed {
					w.pod.DeepCopyInto(p)
				}
				if _, ok := o.(*coordinationv1.Lease); ok && w.late != nil {
					w.late(w)
					changed = true
				}
				return err
			},
		})
		l := live{builder.Build()}
		e := &evictor{live: l, workloads: newWorkloads(l, slog.New(slog.DiscardHandler)), config: func() affinity.Config { return w.config }}
		e.fenced = func(context.Context) (map[string]bool, error) {
			if w.fails == "fences" {
				return nil, errors.New("fences")
			}
			return w.fenced, nil
		}
		kind, reason := e.check(t.Context(), &order{nodeUID: "uid-a", Eviction: affinity.Eviction{Pod: affinity.Pod{
			PodKey: affinity.PodKey{Namespace: "default", Name: "p", UID: "uid-p"}, Node: "a", Requirement: decided.shape.requirement,
		}}})
		if kind != tt.want || !strings.Contains(reason, tt.reason) {
			t.Errorf("%s: check() = %q, %q; want %q, %q", name, kind, reason, tt.want, tt.reason)
		}
	}
}

// A Lease that looks old may be that of a node whose clock differs: it counts once it is renewed.
func TestLeases(t *testing.T) {
	var l leases
	now := time.Now()
	old := now.Add(-time.Hour)
	for i, tt := range []struct {
		renewed time.Time
		want    bool
	}{{now.Add(-affinity.LeaseDuration), true}, {old, false}, {old, false}, {old.Add(10 * time.Second), true}, {old.Add(10 * time.Second), false}} {
		if got := l.fresh("a", tt.renewed, now, 0); got != tt.want {
			t.Errorf("%d: fresh(%s) = %t; want %t", i, now.Sub(tt.renewed), got, tt.want)
		}
	}
	if l.fresh("b", old, now, 0) {
		t.Error("the Lease of another node counts")
	}
	// A renewal long after the doubt may itself be long ago.
	later := now.Add(time.Hour)
	if l.fresh("b", now.Add(10*time.Second), later, 30*time.Second) {
		t.Error("a renewal within the last hour counts as one of now")
	}
	if !l.fresh("b", now.Add(20*time.Second), later.Add(30*time.Second), 30*time.Second) || len(l.doubts) > 0 {
		t.Errorf("a renewal after the doubt does not count, or %d doubts are left", len(l.doubts))
	}
}
