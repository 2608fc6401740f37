package cluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

const (
	fenceCRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodefences.ha.k8s.io"
	fences   = "/apis/ha.k8s.io/v1/nodefences"
)

// sampleFence is the object of the node fencing proposal, without the resourceVersion, which no new object may have.
const sampleFence = `apiVersion: ha.k8s.io/v1
jobs:
- gcloud-reset-inst-9cf8f46e-f44b-11e7-8977-68f728ac95ea
- clean-pods-9d0b1321-f44b-11e7-8977-68f728ac95ea
kind: NodeFence
metadata:
  clusterName: ""
  creationTimestamp: 2018-01-08T08:11:03Z
  generation: 0
  name: node-fence-k8s-cluster-host1.usersys.redhat.com
  namespace: ""
  selfLink: /apis/ha.k8s.io/v1/node-fence-k8s-cluster-host1.usersys.redhat.com
  uid: 77fdb386-f44b-11e7-bec9-001a4a16015a
node: k8s-cluster-host1.usersys.redhat.com
retries: 2
status: Done
step: Power-Management
`

// waitForFences waits until the API server serves NodeFences.
func (r *rig) waitForFences() {
	r.t.Helper()
	r.until("NodeFences are served", func() bool {
		_, err := r.request(http.MethodGet, fences, "", "")
		return err == nil
	})
}

// fenceClient returns a client with the types of NodeFence only.
func (r *rig) fenceClient() client.Client {
	r.t.Helper()
	scheme := runtime.NewScheme()
	if err := nodefence.AddToScheme(scheme); err != nil {
		r.t.Fatal(err)
	}
	c, err := client.New(&rest.Config{
		Host: "https://" + r.address, BearerToken: adminToken, TLSClientConfig: rest.TLSClientConfig{CAFile: r.CA()},
	}, client.Options{Scheme: scheme})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// TestNodeFence: the API server serves NodeFences as agent/fence/nodefence has them.
func TestNodeFence(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, doc := range render(t, "controller") {
		if strings.Contains(doc, "\nkind: CustomResourceDefinition\n") {
			r.applyObject(doc)
		}
	}
	r.waitForFences()
	c := r.fenceClient()
	t.Run("definition", r.fenceDefinition)
	t.Run("proposal", func(t *testing.T) { r.proposedFence(t, c) })
	t.Run("all fields", func(t *testing.T) { fullFence(t, c) })
	t.Run("stale", func(t *testing.T) { staleFence(t, c) })
	t.Run("columns", r.fenceColumns)
	t.Run("refused", func(t *testing.T) { refusedFences(t, c) })
}

// fenceDefinition: the CustomResourceDefinition is established, and has no status subresource, which would drop the
// field status of new objects.
func (r *rig) fenceDefinition(t *testing.T) {
	type definition struct {
		Spec struct {
			Versions []struct{ Subresources map[string]any }
		}
		Status struct {
			Conditions []struct{ Type, Status string }
		}
	}
	var crd definition
	got := map[string]string{}
	r.until("the conditions of the definition", func() bool {
		crd = decode[definition](t, r.must("GET", fenceCRD, ""))
		for _, c := range crd.Status.Conditions {
			got[c.Type] = c.Status
		}
		return len(got) >= 3 && got["Established"] == "True"
	})
	want := map[string]string{
		"Established": "True", "NamesAccepted": "True",
		"KubernetesAPIApprovalPolicyConformant": "False", // the group is Kubernetes' own, and the type is not approved
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if len(crd.Spec.Versions) != 1 || len(crd.Spec.Versions[0].Subresources) != 0 {
		t.Errorf("versions %+v; want one without subresources", crd.Spec.Versions)
	}
}

// proposedFence: the API server accepts the object of the proposal, which has no state. evictd reads it, and
// writes it back without adding one.
func (r *rig) proposedFence(t *testing.T, c client.Client) {
	if _, err := r.request(http.MethodPost, fences, "application/yaml", sampleFence); err != nil {
		t.Fatal(err)
	}
	const node = "k8s-cluster-host1.usersys.redhat.com"
	f := &nodefence.NodeFence{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: nodefence.ObjectName(node)}, f); err != nil {
		t.Fatal(err)
	}
	if err := f.Normalize(); err != nil {
		t.Error(err)
	}
	want := fence.Progress{Step: fence.PowerManagement, Status: fence.Done, Retries: 2, Jobs: []string{
		"gcloud-reset-inst-9cf8f46e-f44b-11e7-8977-68f728ac95ea", "clean-pods-9d0b1321-f44b-11e7-8977-68f728ac95ea",
	}}
	if diff := cmp.Diff(want, f.Progress); diff != "" || f.Node != node {
		t.Errorf("node %q (-want +got):\n%s", f.Node, diff)
	}
	f.Retries++
	if err := c.Update(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	got := decode[map[string]any](t, r.must("GET", fences+"/"+f.Name, ""))
	if got["state"] != nil || got["retries"] != 3.0 {
		t.Errorf("after an update: state %v, retries %v; want no state, 3 retries", got["state"], got["retries"])
	}
}

// fullFence: no field of a NodeFence gets lost or is changed on the way to the API server and back. Times
// have microseconds there.
func fullFence(t *testing.T, c client.Client) {
	created := &nodefence.NodeFence{Node: "full"}
	created.Name = nodefence.ObjectName(created.Node)
	fill(t, reflect.ValueOf(&created.Progress).Elem())
	fill(t, reflect.ValueOf(&created.State).Elem())
	want := created.DeepCopy()
	if err := c.Create(t.Context(), created); err != nil {
		t.Fatal(err)
	}
	got := &nodefence.NodeFence{}
	if err := c.Get(t.Context(), client.ObjectKey{Name: want.Name}, got); err != nil {
		t.Fatal(err)
	}
	ignored := cmpopts.IgnoreFields(nodefence.NodeFence{}, "ObjectMeta", "TypeMeta")
	if diff := cmp.Diff(want, got, ignored); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, got.DeepCopy()); diff != "" {
		t.Errorf("DeepCopy (-want +got):\n%s", diff)
	}
}

// enums are values of the string types of agent/fence that have an enumeration in the schema, or a condition's
// pattern.
var enums = map[reflect.Type]string{
	reflect.TypeFor[fence.StepName]():         string(fence.PowerManagement),
	reflect.TypeFor[fence.Status]():           string(fence.Running),
	reflect.TypeFor[fence.Phase]():            string(fence.OffProven),
	reflect.TypeFor[fence.Result]():           string(fence.Fenced),
	reflect.TypeFor[fence.Action]():           string(fence.Off),
	reflect.TypeFor[fence.Executor]():         string(fence.InJob),
	reflect.TypeFor[fence.Unverified]():       string(fence.Accept),
	reflect.TypeFor[fence.IdentityCheck]():    string(fence.CheckUUID),
	reflect.TypeFor[fence.OutcomeKind]():      string(fence.Unknown),
	reflect.TypeFor[fence.Power]():            string(fence.PowerOff),
	reflect.TypeFor[fence.ProofKind]():        string(fence.ByReadings),
	reflect.TypeFor[fence.KdumpMode]():        string(fence.KdumpDelay),
	reflect.TypeFor[fence.KdumpPhase]():       string(fence.KdumpDumping),
	reflect.TypeFor[metav1.ConditionStatus](): string(metav1.ConditionTrue),
	reflect.TypeFor[string]():                 "Text",
}

// fill sets all fields of a value: lists and maps have one element.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	switch p := v.Addr().Interface().(type) {
	case *metav1.MicroTime:
		*p = metav1.NewMicroTime(at)
		return
	case *metav1.Time:
		*p = metav1.NewTime(at.Truncate(time.Second))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"key": "value"}))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.String:
		text, ok := enums[v.Type()]
		if !ok {
			t.Fatalf("no value for the type %s", v.Type())
		}
		v.SetString(text)
	default:
		t.Fatalf("no value for the type %s", v.Type())
	}
}

// newFence returns a new fence without a state.
func newFence(node string) *nodefence.NodeFence {
	f := &nodefence.NodeFence{Node: node, Progress: fence.Progress{Step: fence.Isolation, Status: fence.New}}
	f.Name = nodefence.ObjectName(node)
	return f
}

// staleFence: of two writers with the same resourceVersion the second is refused.
func staleFence(t *testing.T, c client.Client) {
	f := newFence("stale")
	if err := c.Create(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	second := f.DeepCopy()
	f.Status = fence.Running
	if err := c.Update(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	second.Status = fence.Error
	if err := c.Update(t.Context(), second); !apierrors.IsConflict(err) {
		t.Errorf("write with a stale resourceVersion: %v; want a conflict", err)
	}
	other := types.UID("other")
	if err := c.Delete(t.Context(), f, client.Preconditions{UID: &other}); !apierrors.IsConflict(err) {
		t.Errorf("deletion with another UID: %v; want a conflict", err)
	}
}

// fenceColumns: kubectl get nodefences shows the columns.
func (r *rig) fenceColumns(t *testing.T) {
	url := "https://" + r.address + fences + "/" + nodefence.ObjectName("full")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil || len(table.Rows) != 1 {
		t.Fatalf("table %+v, %v; want one row", table, err)
	}
	got := ""
	for i, column := range table.ColumnDefinitions {
		if column.Name != "Age" {
			got += fmt.Sprintf("%s=%v ", column.Name, table.Rows[0].Cells[i])
		}
	}
	want := "Name=node-fence-full Step=Power-Management Status=Running Phase=OffProven Proof=Readings Retries=7 Result=Fenced "
	if got != want {
		t.Errorf("columns %s; want %s", got, want)
	}
}

// refusedFences: the API server refuses what no program may write, and accepts other spellings of step and status.
func refusedFences(t *testing.T, c client.Client) {
	for _, tt := range []struct {
		name   string
		change func(*nodefence.NodeFence)
		want   string // of the error, empty if it is accepted
	}{
		{"nothing but the time", func(f *nodefence.NodeFence) { f.State.Since = metav1.NowMicro() }, ""},
		{"other spellings", func(f *nodefence.NodeFence) { f.Step, f.Status = "power_managment", "done" }, ""},
		{"32 changes", func(f *nodefence.NodeFence) { setHistory(f, 32) }, ""},
		{"33 changes", func(f *nodefence.NodeFence) { setHistory(f, 33) }, "must have at most 32 items"},
		{"name of another node", func(f *nodefence.NodeFence) { f.Node = "other" }, "the name must be node-fence-NODE"},
		{"node of 242", func(f *nodefence.NodeFence) { setNode(f, strings.Repeat("n", 242)) }, ""},
		{"node of 243", func(f *nodefence.NodeFence) { setNode(f, strings.Repeat("n", 243)) }, ""},
		{"node of 253", func(f *nodefence.NodeFence) { setNode(f, strings.Repeat("n", 200)+strings.Repeat(".n", 26)+"n") }, ""},
		{"node of 254", func(f *nodefence.NodeFence) { setNode(f, strings.Repeat("n", 254)) }, "Too long"},
		{"long node, name of another", func(f *nodefence.NodeFence) {
			setNode(f, strings.Repeat("n", 243))
			f.Node = "m" + f.Node[1:]
		}, "the name must be node-fence-NODE"},
		{"long node, short name", func(f *nodefence.NodeFence) { f.Node = strings.Repeat("n", 243) }, "the name must be node-fence-NODE"},
		{"unknown phase", func(f *nodefence.NodeFence) {
			f.State.Since, f.State.Phase = metav1.NowMicro(), "Probably"
		}, "Unsupported value"},
		{"no time of an entry", func(f *nodefence.NodeFence) {
			setHistory(f, 1)
			f.State.History[0].At.Time = time.Time{}
		}, "state.history[0].at"},
	} {
		f := newFence("a")
		tt.change(f)
		err := c.Create(t.Context(), f, client.DryRunAll)
		refused := apierrors.IsInvalid(err) && strings.Contains(err.Error(), tt.want)
		if tt.want == "" && err != nil || tt.want != "" && !refused {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}

func setNode(f *nodefence.NodeFence, node string) { f.Name, f.Node = nodefence.ObjectName(node), node }

func setHistory(f *nodefence.NodeFence, n int) {
	f.State.Since = metav1.NowMicro()
	f.State.History = slices.Repeat([]fence.Entry{{At: f.State.Since, Step: fence.Isolation, Status: fence.New, Reason: "R"}}, n)
}
