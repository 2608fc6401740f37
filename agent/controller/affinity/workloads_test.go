package affinity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/affinity"
)

// scaled is a client of a namespace with a Deployment web of 2 replicas, whose ReplicaSets are old and new.
type scaled struct {
	objects []client.Object
	// fails is the type that can't be read.
	fails string
	uid   types.UID
}

func newScaled() *scaled {
	s := &scaled{uid: "uid-web"}
	for _, name := range []string{"old", "new"} {
		s.objects = append(s.objects, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "uid-web", Controller: new(true)}},
		}})
	}
	return s
}

// pod adds a pod of a ReplicaSet.
func (s *scaled) pod(name, set string, ready bool) *corev1.Pod {
	p := testPod(name, "a", set, valid)
	p.Labels["app"] = "web"
	if !ready {
		p.Status.Conditions = nil
	}
	s.objects = append(s.objects, p)
	return p
}

func (s *scaled) budget(labels map[string]string) {
	s.objects = append(s.objects, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("budget-", len(s.objects))},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
	})
}

func (s *scaled) workloads() *workloads {
	fails := func(o any) error {
		if s.fails != "" && strings.Contains(fmt.Sprintf("%T", o), s.fails) {
			return errors.New("connection refused")
		}
		return nil
	}
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(s.objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			return errors.Join(fails(o), c.Get(ctx, key, o, options...))
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			return errors.Join(fails(list), c.List(ctx, list, options...))
		},
		SubResourceGet: func(_ context.Context, _ client.Client, _ string, o, answer client.Object, _ ...client.SubResourceGetOption) error {
			if err := fails(answer); err != nil || o.GetName() != "web" || o.GetNamespace() != "default" {
				return errors.Join(err, errors.New("not found"))
			}
			answer.(*unstructured.Unstructured).Object = map[string]any{
				"metadata": map[string]any{"name": "web", "uid": string(s.uid)}, "spec": map[string]any{"replicas": int64(2)},
				"status": map[string]any{"replicas": int64(2), "selector": "app=web"},
			}
			return nil
		},
	}).Build()
	return newWorkloads(live{c}, slog.New(slog.DiscardHandler))
}

func ownerOf(set string) owner {
	return owner{"apps/v1", replicaSet, "default", set, types.UID("uid-" + set)}
}

const webWorkload = "Deployment default/web uid-web"

// TestConfirm: before an eviction, the replicas of both ReplicaSets of a rollout count, and only theirs.
func TestConfirm(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*scaled)
		// want is a part of the reason or of the error.
		want string
		err  string
	}{
		"all ready":   {func(s *scaled) { s.pod("p2", "old", true) }, "", ""},
		"rollout":     {func(s *scaled) { s.pod("p2", "new", true) }, "", ""},
		"one missing": {func(*scaled) {}, "1 of 2 replicas ready", ""},
		"one unready": {func(s *scaled) { s.pod("p2", "new", false) }, "1 of 2 replicas ready", ""},
		"one goes": {func(s *scaled) {
			p := s.pod("p2", "old", true)
			p.DeletionTimestamp, p.Finalizers = new(metav1.Now()), []string{"example.com/x"}
		}, "1 of 2 replicas ready", ""},
		"lost to node pressure": {func(s *scaled) {
			s.pod("p2", "old", true).Status.Phase, s.pod("p3", "new", false).Status.Phase = corev1.PodFailed, corev1.PodPending
		}, "1 of 2 replicas ready", ""},
		"on a node that is fenced": {func(s *scaled) {
			s.pod("p2", "old", true).Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		}, "1 of 2 replicas ready", ""},
		"workload deleted, pods left": {func(s *scaled) { s.objects = s.objects[2:] }, "", "not found"},
		"of another":                  {func(s *scaled) { s.pod("p2", "foreign", true) }, "1 of 2 replicas ready", ""},
		"budget":                      {func(s *scaled) { s.budget(map[string]string{"app": "web"}) }, "", ""},
		"budget of others":            {func(s *scaled) { s.budget(map[string]string{"app": "db"}) }, "1 of 2 replicas ready", ""},
		"scale fails":                 {func(s *scaled) { s.fails = "Unstructured" }, "", "read the replicas of Deployment default/web"},
		"ReplicaSet fails":            {func(s *scaled) { s.fails = "PartialObjectMetadata" }, "", "read ReplicaSet default/old"},
		"budgets fail":                {func(s *scaled) { s.fails = "PodDisruptionBudgetList" }, "", "list the PodDisruptionBudgets"},
		"pods fail":                   {func(s *scaled) { s.fails = "PodList" }, "", "list the pods"},
		"workload replaced":           {func(s *scaled) { s.uid = "other" }, "", "it was replaced"},
		"set replaced":                {func(s *scaled) { s.objects[0].SetUID("other") }, "", "it was replaced"},
		"adopted":                     {func(s *scaled) { s.objects[0].SetOwnerReferences(nil) }, "", "ReplicaSet default/old"},
	} {
		s := newScaled()
		s.pod("p1", "old", true)
		tt.change(s)
		got, err := s.workloads().confirm(t.Context(), ownerOf("old"), map[string]string{"app": "web"}, webWorkload)
		if !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: confirm() = %q; want %q", name, got, tt.want)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: confirm() error %v; want %q", name, err, tt.err)
		}
	}
	s := newScaled()
	if got, err := s.workloads().confirm(t.Context(), ownerOf("old"), nil, "Deployment default/api uid-api"); err != nil || !strings.Contains(got, "belongs to") {
		t.Errorf("another workload: confirm() = %q, %v; want that it belongs to another", got, err)
	}
}

// A ReplicaSet that can't be read for a time stays that of its workload: else an eviction in flight would be forgotten.
func TestWorkloadStays(t *testing.T) {
	s := newScaled()
	w := s.workloads()
	now := time.Now()
	if top, _, _, due := w.cached(ownerOf("old"), now); top != ownerOf("old") || !due {
		t.Errorf("before the first read: workload %s, due %t", top, due)
	}
	w.refresh(t.Context(), ownerOf("old"))
	w.refresh(t.Context(), ownerOf("new"))
	s.fails = "PartialObjectMetadata"
	w.refresh(t.Context(), ownerOf("old"))
	if top, r, _, due := w.cached(ownerOf("old"), now); top.workload() != webWorkload || r != nil || due {
		t.Errorf("unreadable: workload %q, known %t, due %t; want %q, unknown", top.workload(), r != nil, due, webWorkload)
	}
	if top, r, _, _ := w.cached(ownerOf("new"), now); top.workload() != webWorkload || r == nil || r.desired != 2 || len(r.controllers) != 2 {
		t.Errorf("the other ReplicaSet: workload %q, %+v; want 2 replicas of 2 ReplicaSets", top.workload(), r)
	}
	s.fails = ""
	later := now.Add(2 * workloadTTL)
	if _, _, _, due := w.cached(ownerOf("old"), later); !due {
		t.Error("an unreadable ReplicaSet is not due again")
	}
	w.forget(now.Add(time.Hour), map[owner]bool{ownerOf("old"): true})
	if len(w.owners) != 1 || len(w.facts) != 0 {
		t.Errorf("%d controllers, %d workloads are left; want the one in use", len(w.owners), len(w.facts))
	}
}

// An ownerReference can name an object of another namespace, by its UID. It must not spoil what is known of that.
func TestWorkloadsOfNamespaces(t *testing.T) {
	s := newScaled()
	foreign := ownerOf("evil")
	foreign.namespace = "evil"
	s.objects = append(s.objects, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "evil", Name: "evil", UID: "uid-evil", Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "uid-web", Controller: new(true)}},
	}})
	w := s.workloads()
	w.refresh(t.Context(), ownerOf("old"))
	w.refresh(t.Context(), foreign)
	if _, r, _, _ := w.cached(ownerOf("old"), time.Now()); r == nil {
		t.Error("the workload is unknown after one of another namespace named its UID")
	}
	x := newIndex(func() {})
	p := testPod("p", "a", "old", valid)
	p.Namespace = "evil"
	if err := x.Add(p); err != nil {
		t.Fatal(err)
	}
	if n := x.readyOf("default", []types.UID{"uid-old"}); n != 0 {
		t.Errorf("%d pods of another namespace count as replicas", n)
	}
}

// Workloads that can't be read do not keep others from being read, however many they are.
func TestReadIsFair(t *testing.T) {
	s := newScaled()
	s.fails = "Unstructured"
	l := &loop{workloads: s.workloads()}
	var due []violation
	x := newIndex(func() {})
	for i := range 4 * maxReads {
		p := testPod(fmt.Sprint("p", i), "a", fmt.Sprint("set", i), valid)
		p.OwnerReferences[0].Kind = "StatefulSet"
		due = append(due, violation{pod: newPod(p, &x.shapes)})
	}
	now := time.Now()
	for range 4 {
		l.read(t.Context(), due, now)
		now = now.Add(time.Minute) // the first ones are due again
	}
	if n := len(l.workloads.facts); n != len(due) {
		t.Errorf("%d of %d workloads were read in 4 turns of %d", n, len(due), maxReads)
	}
}

// A namespace has a bound of text, which is not that of others.
func TestShapesOfNamespace(t *testing.T) {
	x := newIndex(func() {})
	for i := range 200 {
		p := testPod(fmt.Sprint("p", i), "a", "set", valid+"#"+strings.Repeat("x", affinity.MaxAnnotation-len(valid)-10)+fmt.Sprint(i))
		if err := x.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	_, invalid, _ := x.violations()
	if n := 200 - len(invalid); n < 50 || n > maxNamespaceText/affinity.MaxAnnotation {
		t.Errorf("%d requirements of 16 KiB are kept of a namespace; want at most %d", n, maxNamespaceText/affinity.MaxAnnotation)
	}
	other := testPod("other", "a", "set", valid+"#"+strings.Repeat("y", affinity.MaxAnnotation-len(valid)-10))
	other.Namespace = "other"
	if s := newPod(other, &x.shapes).shape; s.err != nil {
		t.Errorf("a pod of another namespace: %v", s.err)
	}
	labelled := testPod("big", "a", "set", valid)
	labelled.Labels = map[string]string{"x": strings.Repeat("x", maxLabels)}
	if p := newPod(labelled, &shapes{}); len(p.labels) > 0 {
		t.Errorf("%d labels are kept; want none", len(p.labels))
	}
}
