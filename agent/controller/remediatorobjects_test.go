package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

// knownKind returns a kind of remediators in a version.
func knownKind(t *testing.T, group, kind string) remediatorKind {
	t.Helper()
	i := slices.IndexFunc(remediatorKinds, func(k remediatorKind) bool { return k.group == group && k.kind == kind })
	if i < 0 {
		t.Fatalf("kind %s of %s is not known", kind, group)
	}
	k := remediatorKinds[i]
	k.version = "v1alpha1"
	return k
}

func fenceAgentsKind(t *testing.T) remediatorKind {
	return knownKind(t, "fence-agents-remediation.medik8s.io", "FenceAgentsRemediation")
}

// object returns an object of a kind in the namespace operators.
func (k *remediatorKind) object(name string, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": k.group + "/" + k.version, "kind": k.kind}}
	o.SetName(name)
	if k.kind != kindMaintenance {
		o.SetNamespace("operators")
	}
	for _, f := range change {
		f(o)
	}
	return o
}

// withField sets a field of an object.
func withField(value any, path ...string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
			panic(err)
		}
	}
}

func withNode(name string) func(*unstructured.Unstructured) {
	return withField(name, "status", "nodeRef", "name")
}

func withCondition(name, status string, path ...string) func(*unstructured.Unstructured) {
	if path == nil {
		path = []string{"status", "conditions"}
	}
	return withField([]any{
		map[string]any{"type": "Other", "status": "False"}, map[string]any{"type": name, "status": status},
	}, path...)
}

func withAnnotation(key, value string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{key: value}) }
}

// deleted marks an object as one that its finalizer keeps.
func deleted(o *unstructured.Unstructured) {
	o.SetDeletionTimestamp(new(metav1.Now()))
	o.SetFinalizers([]string{"example.com/remediator"})
}

func ownedBy(kind, name string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "remediation.medik8s.io/v1alpha1", Kind: kind, Name: name}})
	}
}

// An object of another remediator holds the fence of the node that it is for, until it is gone or says that it has ended.
func TestRemediatorObjects(t *testing.T) {
	far, maintenance := fenceAgentsKind(t), knownKind(t, "nodemaintenance.medik8s.io", kindMaintenance)
	metal3 := knownKind(t, "infrastructure.cluster.x-k8s.io", "Metal3Remediation")
	machine, openshift := knownKind(t, "cluster.x-k8s.io", kindMachine), knownKind(t, "machine.openshift.io", kindMachine)
	objects := func(list ...client.Object) []client.Object { return list }
	for name, tt := range map[string]struct {
		objects []client.Object
		holds   string // part of the message; empty: it does not hold
	}{
		"named like the node":                  {objects(far.object("n1")), "FenceAgentsRemediation operators/n1"},
		"of another node":                      {objects(far.object("n11")), ""},
		"of several templates":                 {objects(far.object("n1-x7", withAnnotation(annotationRemediatedNode, "n1"))), "operators/n1-x7"},
		"annotation of another node":           {objects(far.object("n1", withAnnotation(annotationRemediatedNode, "n2"))), ""},
		"works":                                {objects(far.object("n1", withCondition("Processing", "True"))), "operators/n1"},
		"has ended":                            {objects(far.object("n1", withCondition("Processing", "False"))), ""},
		"has not begun":                        {objects(far.object("n1", withCondition("Processing", "Unknown"))), "operators/n1"},
		"has failed":                           {objects(far.object("n1", withCondition("Succeeded", "False"))), "operators/n1"},
		"ended and is being deleted":           {objects(far.object("n1", withCondition("Processing", "False"), deleted)), "operators/n1"},
		"conditions are broken":                {objects(far.object("n1", withField("none", "status", "conditions"))), "operators/n1"},
		"maintenance":                          {objects(maintenance.object("x", withField("n1", "spec", "nodeName"))), "NodeMaintenance x"},
		"maintenance, node drained":            {objects(maintenance.object("x", withField("n1", "spec", "nodeName"), withField("Succeeded", "status", "phase"))), "NodeMaintenance x"},
		"maintenance of another node":          {objects(maintenance.object("n1", withField("n2", "spec", "nodeName"))), ""},
		"Metal3Remediation of NodeHealthCheck": {objects(metal3.object("n1")), "Metal3Remediation operators/n1"},
		"Metal3Remediation says Processing=False": {
			objects(metal3.object("n1", withCondition("Processing", "False"))), "Metal3Remediation operators/n1",
		},
		"Metal3Remediation of a Machine": {objects(metal3.object("m1-0"), machine.object("m1-0", withNode("n1"))), "Metal3Remediation operators/m1-0"},
		"Metal3Remediation owned by a Machine": {
			objects(metal3.object("x", ownedBy(kindMachine, "m1")), machine.object("m1", withNode("n1"))), "Metal3Remediation operators/x",
		},
		"owned by the Machine of another node": {objects(metal3.object("x", ownedBy(kindMachine, "m2")), machine.object("m2", withNode("n2"))), ""},
		"owned by another kind":                {objects(metal3.object("x", ownedBy("MachineSet", "m1")), machine.object("m1", withNode("n1"))), ""},
		"owned by a Machine elsewhere": {objects(metal3.object("x", ownedBy(kindMachine, "m1")),
			machine.object("m1", withNode("n1"), func(o *unstructured.Unstructured) { o.SetNamespace("other") })), ""},
		"remediation of MachineHealthCheck of OpenShift": {
			objects(far.object("m1", ownedBy(kindMachine, "m1")), openshift.object("m1", withNode("n1"))), "FenceAgentsRemediation operators/m1",
		},
		"Machine":                          {objects(machine.object("m1", withNode("n1"))), ""},
		"Machine without a node":           {objects(machine.object("n1", withCondition("OwnerRemediated", "False"))), ""},
		"Machine of another node":          {objects(machine.object("n1", withNode("n2"), withCondition("OwnerRemediated", "False"))), ""},
		"Machine is unhealthy":             {objects(machine.object("m1", withNode("n1"), withCondition("HealthCheckSucceeded", "False"))), ""},
		"owner is asked":                   {objects(machine.object("m1", withNode("n1"), withCondition("OwnerRemediated", "False"))), "Machine operators/m1 of the node has the condition OwnerRemediated=False"},
		"owner is asked, in v1beta1":       {objects(machine.object("m1", withNode("n1"), withCondition("OwnerRemediated", "False", "status", "v1beta2", "conditions"))), "OwnerRemediated=False"},
		"owner is asked, old condition":    {objects(machine.object("m1", withNode("n1"), withCondition("OwnerRemediated", "False", "status", "deprecated", "v1beta1", "conditions"))), "OwnerRemediated=False"},
		"owner has remediated":             {objects(machine.object("m1", withNode("n1"), withCondition("OwnerRemediated", "True"))), ""},
		"external remediation is asked":    {objects(machine.object("m1", withNode("n1"), withCondition("ExternallyRemediated", "False"))), "ExternallyRemediated=False"},
		"Machine is being deleted":         {objects(machine.object("m1", withNode("n1"), deleted)), "Machine operators/m1 of the node is being deleted"},
		"Machine of OpenShift is deleted":  {objects(openshift.object("m1", withNode("n1"), deleted)), "is being deleted"},
		"Machine of OpenShift, annotation": {objects(openshift.object("m1", withNode("n1"), withAnnotation(annotationExternalRemediation, ""))), "has the annotation " + annotationExternalRemediation},
	} {
		_, api := testReconciler(t, nil, interceptor.Funcs{}, tt.objects...)
		err := remediatorObjectsOf(api, machine, openshift, metal3, maintenance, far).check(t.Context(), "n1")
		held, holds := errors.AsType[*objectError](err)
		if holds != (tt.holds != "") || holds && !strings.Contains(held.Error(), tt.holds) || !holds && err != nil {
			t.Errorf("%s: check = %v; want %q", name, err, tt.holds)
		}
	}
}

// Each known kind can hold.
func TestRemediatorKinds(t *testing.T) {
	for _, k := range remediatorKinds {
		k.version = "v1"
		held := k.object("n1", withField("n1", "spec", "nodeName"), withNode("n1"), withCondition("OwnerRemediated", "False"))
		_, api := testReconciler(t, nil, interceptor.Funcs{}, held)
		if _, holds := errors.AsType[*objectError](remediatorObjectsOf(api, k).check(t.Context(), "n1")); !holds {
			t.Errorf("%s.%s: does not hold", k.resource, k.group)
		}
	}
}

// A kind that is not served any more in the version that was known is asked for again: its objects hold in another
// version, and only one that was removed has none.
func TestRemediatorKindNotServed(t *testing.T) {
	old := fenceAgentsKind(t)
	served := old
	served.version = "v1"
	notFound, noMatch, down := apierrors.NewNotFound(corev1.Resource(old.resource), ""), &meta.NoKindMatchError{}, unavailable()
	for name, tt := range map[string]struct {
		fails error
		now   []remediatorKind // that the API server has
		err   error            // that it fails with when it is asked for them
		holds bool
		want  error
	}{
		"other version":             {fails: notFound, now: []remediatorKind{served}, holds: true},
		"other version, not mapped": {fails: noMatch, now: []remediatorKind{served}, holds: true},
		"removed":                   {fails: notFound},
		"not served, and not known": {fails: notFound, now: []remediatorKind{old}, want: errNotServed},
		"not served, asked in vain": {fails: notFound, err: down, want: down},
	} {
		_, api := testReconciler(t, nil, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if o, ok := list.(*unstructured.UnstructuredList); ok && o.GroupVersionKind().Version == old.version {
				return tt.fails
			}
			return c.List(ctx, list, options...)
		}}, served.object("n1"))
		objects := remediatorObjectsOf(api)
		objects.installed = func(_ context.Context, fresh bool) ([]remediatorKind, error) {
			if fresh {
				return tt.now, tt.err
			}
			return []remediatorKind{old}, nil
		}
		err := objects.check(t.Context(), "n1")
		if _, holds := errors.AsType[*objectError](err); holds != tt.holds || !holds && !errors.Is(err, tt.want) {
			t.Errorf("%s: check = %v; want %v, held %t", name, err, tt.want, tt.holds)
		}
	}
}

// failingLists fails the lists of objects of remediators, of these kinds or of all.
func failingLists(err error, kinds ...string) interceptor.Funcs {
	return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if o, ok := list.(*unstructured.UnstructuredList); ok && (kinds == nil || slices.Contains(kinds, strings.TrimSuffix(o.GetKind(), "List"))) {
			return err
		}
		return c.List(ctx, list, options...)
	}}
}

// If objects can't be listed, the gate is closed as it is without the Lease of the remediators, and says what to do. An
// object of another kind that is known still holds.
func TestRemediatorObjectsUnreadable(t *testing.T) {
	far, machine := fenceAgentsKind(t), knownKind(t, "cluster.x-k8s.io", kindMachine)
	down := func(context.Context, bool) ([]remediatorKind, error) { return nil, unavailable() }
	for name, tt := range map[string]struct {
		lists     interceptor.Funcs
		objects   []client.Object
		installed func(context.Context, bool) ([]remediatorKind, error)
		reason    string
		message   string
	}{
		"readable":          {},
		"no right":          {lists: failingLists(refuseAccess("x")), reason: reasonUnknown, message: "apply " + medik8sObjects},
		"no right, Machine": {lists: failingLists(refuseAccess("x"), kindMachine), reason: reasonUnknown, message: "list machines.cluster.x-k8s.io: x is forbidden: no access: apply " + clusterAPIObjects},
		"unavailable":       {lists: failingLists(unavailable()), reason: reasonUnknown, message: "list machines.cluster.x-k8s.io"},
		"kinds unknown":     {installed: down, reason: reasonUnknown},
		"held, no right for another kind": {
			lists: failingLists(refuseAccess("x"), kindMachine), objects: []client.Object{far.object("n1")}, reason: reasonObject, message: "operators/n1",
		},
	} {
		r, api := testReconciler(t, nil, tt.lists, append(tt.objects, deadNode(), healthyNode("n2"), healthyNode("n3"), leaseOf("n1", time.Now()))...)
		r.objects = remediatorObjectsOf(api, machine, far)
		if tt.installed != nil {
			r.objects.installed = tt.installed
		}
		config, _ := r.config.current()
		p := &pass{reconciler: r, name: "n1", config: &config, node: deadNode()}
		g := p.gate(t.Context(), &fence.State{Node: "n1"}, &fence.Inputs{})
		if g.Open != (tt.reason == "") || g.Reason != tt.reason || g.Withheld != (tt.reason == reasonObject) || !strings.Contains(g.Message, tt.message) {
			t.Errorf("%s: gate = %+v; want %q with %q", name, g, tt.reason, tt.message)
		}
		if got := holderOf(t, api); (got == programName) != (tt.reason == "") {
			t.Errorf("%s: Lease held by %q; want it taken only if the gate is open", name, got)
		}
	}
}

// A list that does not end is given up, and one of several pages is read to its end.
func TestRemediatorObjectsList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, api := testReconciler(t, nil, interceptor.Funcs{List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		began := time.Now()
		err := remediatorObjectsOf(api, fenceAgentsKind(t)).check(t.Context(), "n1")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != requestTimeout {
			t.Errorf("check = %v after %v; want the deadline after %v", err, time.Since(began), requestTimeout)
		}
	})
	far, page := fenceAgentsKind(t), 0
	_, api := testReconciler(t, nil, interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		var o client.ListOptions
		o.ApplyOptions(options)
		if want := strings.Repeat("x", page); o.Limit != pageSize || o.Continue != want {
			t.Errorf("page %d: options %+v; want a limit of %d from %q", page, o, pageSize, want)
		}
		items, last := list.(*unstructured.UnstructuredList), page == 2
		items.Items = []unstructured.Unstructured{*far.object("n2")}
		if page++; last {
			items.Items = []unstructured.Unstructured{*far.object("n1")}
			return nil
		}
		list.SetContinue(strings.Repeat("x", page))
		return nil
	}})
	if _, holds := errors.AsType[*objectError](remediatorObjectsOf(api, far).check(t.Context(), "n1")); !holds || page != 3 {
		t.Errorf("holds: %t after %d pages; want an object on the third", holds, page)
	}
}

// A fence does not act while a remediator has an object for the node, and acts when the object is gone.
func TestFenceWaitsForObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine, status: func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }}
		far := fenceAgentsKind(t)
		object := far.object("n1-x7", withAnnotation(annotationRemediatedNode, "n1"))
		r, api := testReconciler(t, d, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"),
			leaseOf("n1", time.Now().Add(-time.Hour)), object)
		r.objects, r.executor.check = remediatorObjectsOf(api, far), r.checkAct
		reconcileFor(t, r, 10*time.Minute)
		if c := heldReason(getFence(t, api).State.Conditions); c != reasonObject || d.called("off") != 0 {
			t.Errorf("held by %q, off sent %d times; want %s and none", c, d.called("off"), reasonObject)
		}
		if got := holderOf(t, api); got != "" {
			t.Errorf("the Lease of the remediators is held by %q; want it left to the other", got)
		}
		if err := api.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		reconcileFor(t, r, 5*time.Minute)
		if d.called("off") == 0 {
			t.Error("off was not sent after the object was gone")
		}
	})
}

// An object stops an act that was decided on before it was created, except in recovery; a release that has begun is
// interrupted.
func TestObjectStopsAct(t *testing.T) {
	renewed := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	far := fenceAgentsKind(t)
	for name, tt := range map[string]struct {
		step  fence.StepName
		lists error
		err   string
	}{
		"power management":           {fence.PowerManagement, nil, "FenceAgentsRemediation operators/n1 is for the node"},
		"power management, no right": {fence.PowerManagement, refuseAccess("x"), "apply " + medik8sObjects},
		"isolation":                  {fence.Isolation, nil, "FenceAgentsRemediation operators/n1 is for the node"},
		"recovery":                   {fence.Recovery, nil, ""},
		"recovery, no right":         {fence.Recovery, refuseAccess("x"), ""},
	} {
		functions := interceptor.Funcs{}
		if tt.lists != nil {
			functions = failingLists(tt.lists)
		}
		r, api := testReconciler(t, nil, functions, deadNode(), leaseOf("n1", renewed), far.object("n1"), runningFence(func(s *fence.State) {
			s.Intent = &fence.Intent{ID: "1"}
		}))
		r.objects = remediatorObjectsOf(api, far)
		r.saved("n1").resourceVersion = getFence(t, api).ResourceVersion
		o := offOrder("1")
		o.lease, o.intent.Step = renewed, tt.step
		err := r.checkAct(t.Context(), o)
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: checkAct = %v; want %q", name, err, tt.err)
		}
		if got := holderOf(t, api); (got == programName) != (tt.err == "") {
			t.Errorf("%s: Lease of the remediators held by %q; want it taken only for an act", name, got)
		}
	}
	r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), healthyNode("n2"), far.object("n1"))
	r.objects = remediatorObjectsOf(api, far)
	config, _ := r.config.current()
	config.Policy.Percentage = 0 // the storm policy does not open the gate
	for phase, want := range map[fence.Phase]string{fence.Releasing: reasonObject, fence.Released: reasonObject, fence.Proving: fence.ReasonTooManyUnhealthy} {
		p := &pass{reconciler: r, name: "n1", config: &config, node: deadNode()}
		g := p.gate(t.Context(), &fence.State{Node: "n1", Detail: fence.Detail{Phase: phase}}, &fence.Inputs{})
		if g.Reason != want || g.Withheld != (want == reasonObject) {
			t.Errorf("%s: gate = %+v; want %s", phase, g, want)
		}
	}
}

// For a fence that has given up the objects are not listed, until a reading, or a person, lets it go on.
func TestObjectsAfterGivingUp(t *testing.T) {
	on := func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }
	silent := func(context.Context) (fence.Power, error) { return fence.PowerUnknown, errors.New("no answer") }
	for name, resume := range map[string]func(*testing.T, *faultyDevice, client.Client){
		"answers again": func(_ *testing.T, d *faultyDevice, _ client.Client) { d.status = on },
		"reads off": func(_ *testing.T, d *faultyDevice, _ client.Client) {
			d.status = func(context.Context) (fence.Power, error) { return fence.PowerOff, nil }
		},
		"confirmed": func(t *testing.T, _ *faultyDevice, api client.Client) {
			n := getNode(t, api)
			n.Annotations = map[string]string{annotationConfirmOff: string(getFence(t, api).UID)}
			if err := api.Update(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &faultyDevice{uuid: machine, status: silent}
			far := fenceAgentsKind(t)
			lists := 0
			r, api := testReconciler(t, d, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if _, ok := list.(*unstructured.UnstructuredList); ok {
						lists++
					}
					return c.List(ctx, list, options...)
				},
			}, deadNode(), healthyNode("n2"), healthyNode("n3"), leaseOf("n1", time.Now().Add(-time.Hour)), far.object("n2"))
			r.objects, r.executor.check = remediatorObjectsOf(api, far), r.checkAct
			reconcileFor(t, r, 2*time.Hour)
			if nf := getFence(t, api); !meta.IsStatusConditionTrue(nf.State.Conditions, fence.ConditionGaveUp) || lists == 0 {
				t.Fatalf("%s: conditions %+v after %d lists; want GaveUp", name, nf.State.Conditions, lists)
			}
			lists = 0
			sent := d.called("off")
			reconcileFor(t, r, time.Hour)
			if lists > 0 {
				t.Errorf("%s: objects listed %d times in an hour by a fence that has given up; want none", name, lists)
			}
			if err := api.Create(t.Context(), far.object("n1")); err != nil {
				t.Fatal(err)
			}
			resume(t, d, api)
			reconcileFor(t, r, 10*time.Minute)
			nf := getFence(t, api)
			if n := d.called("off") - sent; n > 0 || len(nf.State.Acts) > 0 && name == "answers again" {
				t.Errorf("%s: off sent %d times, acts %+v; want no act", name, n, nf.State.Acts)
			}
			released := hasOwned(getNode(t, api), &outOfService, annotationOutOfService)
			if c := heldReason(nf.State.Conditions); c != reasonObject || released {
				t.Errorf("%s: held by %q, released %t; want %s", name, c, released, reasonObject)
			}
		})
	}
}
