package affinity

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/node"
)

// debounce is that of the tests.
const debounce = 3 * time.Second

// deployment returns a Deployment whose pods may run only on nodes with the label of the app, at scheduling and during
// execution, and prefer node a.
func deployment(app string, replicas int32) appsv1.Deployment {
	labels := map[string]string{"app": app}
	required := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: prefix + app, Operator: corev1.NodeSelectorOpIn, Values: []string{"valid"}},
	}}}
	return appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
					affinity.Annotation: "nodeSelectorTerms:\n- matchExpressions:\n  - {key: " + prefix + app + ", operator: In, values: [valid]}\n",
				}},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: new(int64(1)),
					Containers:                    []corev1.Container{{Name: "main", Image: "stand-in"}},
					Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: required},
						PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: corev1.NodeSelectorTerm{
							MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
						}}},
					}},
				},
			},
		},
	}
}

func (c *cluster) deploy(app string, replicas int32) {
	c.t.Helper()
	c.create("/apis/apps/v1/namespaces/default/deployments", deployment(app, replicas))
}

// budget creates a PodDisruptionBudget of an app.
func (c *cluster) budget(name, app string, minAvailable int) {
	c.t.Helper()
	c.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt(minAvailable)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		},
	})
}

// request is an entry of the audit log.
type request struct {
	Verb           string
	User           struct{ Username string }
	ObjectRef      struct{ Resource, Subresource, Name string }
	ResponseStatus struct{ Code int }
	RequestObject  policyv1.Eviction
	StageTimestamp time.Time
}

// requests returns what evictd-controller requested of pods, oldest first.
func (c *cluster) requests() []request {
	c.t.Helper()
	text, err := os.ReadFile(c.AuditLog())
	if err != nil {
		c.t.Fatal(err)
	}
	var list []request
	for lines := bufio.NewReader(bytes.NewReader(text)); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return list
		}
		if !bytes.Contains(line, []byte("evictd-controller\"")) {
			continue
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			c.t.Fatalf("audit log: %v: %s", err, line)
		}
		list = append(list, r)
	}
}

// evictions returns the requests for evictions of the pods of an app. Another request for a pod fails the test.
func (c *cluster) evictions(app string) []request {
	c.t.Helper()
	var list []request
	for _, r := range c.requests() {
		if r.Verb != "create" || r.ObjectRef.Subresource != "eviction" {
			c.t.Fatalf("evictd-controller requested %s %s/%s of %s; want evictions only", r.Verb, r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ObjectRef.Name)
		}
		if strings.HasPrefix(r.ObjectRef.Name, app+"-") {
			list = append(list, r)
		}
	}
	return list
}

// awaitMetric waits until the metrics have a line.
func (c *cluster) awaitMetric(line string) {
	c.t.Helper()
	c.await("metric "+line, func() (bool, error) {
		text, err := c.metricsText()
		return slices.Contains(strings.Split(text, "\n"), line), err
	})
}

// events returns the reasons of the events of pods of an app.
func (c *cluster) events(app string) (reasons []string, err error) {
	var list corev1.EventList
	if err := c.Admin.Get(c.t.Context(), "/api/v1/namespaces/default/events", &list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if e := &list.Items[i]; e.InvolvedObject.Kind == "Pod" && strings.HasPrefix(e.InvolvedObject.Name, app+"-") {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons, nil
}

func (c *cluster) awaitEvent(app, reason string) {
	c.t.Helper()
	c.await("event "+reason+" of "+app, func() (bool, error) {
		reasons, err := c.events(app)
		return slices.Contains(reasons, reason), errors.Join(err, fmt.Errorf("events: %v", reasons))
	})
}

// movedFrom waits until an app runs again, and fails the test unless exactly the pod of node a was replaced, on another
// node, by one eviction that was accepted.
func (c *cluster) movedFrom(app string, before map[types.UID]string) {
	c.t.Helper()
	var after map[types.UID]string
	c.await(app+" to leave node a", func() (bool, error) {
		pods, err := c.pods(app)
		after = map[types.UID]string{}
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodRunning && pods[i].Spec.NodeName != "a" {
				after[pods[i].UID] = pods[i].Spec.NodeName
			}
		}
		return len(after) == len(before), err
	})
	var accepted []request
	for _, r := range c.evictions(app) {
		if r.ResponseStatus.Code == http.StatusCreated {
			accepted = append(accepted, r)
		}
	}
	evicted := map[types.UID]bool{}
	for _, r := range accepted {
		o := r.RequestObject.DeleteOptions
		if o == nil || o.Preconditions == nil || o.Preconditions.UID == nil || o.Preconditions.ResourceVersion != nil || o.GracePeriodSeconds != nil || len(o.DryRun) > 0 {
			c.t.Errorf("eviction of %s has options %+v; want the UID as the only precondition, and nothing else", app, o)
			continue
		}
		evicted[*o.Preconditions.UID] = true
	}
	for uid, node := range before {
		if _, stays := after[uid]; evicted[uid] != (node == "a") || stays != (node != "a") {
			c.t.Errorf("pod %s of %s was on %s: evicted %t, still there %t", uid, app, node, evicted[uid], stays)
		}
	}
	if len(accepted) != len(evicted) {
		c.t.Errorf("%d evictions of %s were accepted; want one for each of %d pods", len(accepted), app, len(evicted))
	}
}

// TestEvict: a pod whose node has lost the label is not evicted in dry run. With --affinity=enforce it is evicted once,
// after the debounce, and the replacement runs on another node. A PodDisruptionBudget delays that, and two of them
// prevent it.
func TestEvict(t *testing.T) {
	apps := []string{"web", "budgeted", "twice"}
	needPrograms(t)
	built, err := node.Program("../..", t.TempDir(), "evictd-controller")
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, apps, "a", "b", "c")
	c.install("debounce=3s\nper_minute=100\nstorm_percentage=100\n")
	stop := c.startController(built, "observe")
	before := map[string]map[types.UID]string{}
	c.budget("budgeted", "budgeted", 1)
	c.budget("twice-1", "twice", 0)
	c.budget("twice-2", "twice", 0)
	for _, app := range apps {
		c.deploy(app, 1)
	}
	for _, app := range apps {
		before[app] = c.awaitRunning(app, 1)
		for uid, node := range before[app] {
			if node != "a" {
				t.Fatalf("pod %s of %s runs on %s; want a", uid, app, node)
			}
		}
	}

	c.takeLabel("a", "web")
	c.awaitMetric(`evictd_affinity_held{reason="DryRun"} 1`)
	if list := c.requests(); len(list) > 0 {
		t.Fatalf("in dry run evictd-controller requested %+v", list)
	}
	c.awaitEvent("web", "NodeAffinityWouldEvict")
	t.Run("explain", func(t *testing.T) { c.explain(t, "web") })
	stop()

	started := time.Now()
	c.startController(built, "enforce")
	c.movedFrom("web", before["web"])
	accepted := c.evictions("web")[0].StageTimestamp
	if wait := accepted.Sub(started); wait < debounce {
		t.Errorf("evicted %s after the start of the controller; want the debounce of %s", wait, debounce)
	}
	c.awaitEvent("web", "NodeAffinityViolated")
	c.awaitMetric(`evictd_affinity_evictions_total{result="accepted"} 1`)
	c.awaitMetric(`evictd_affinity_eviction_delay_seconds_count 1`)
	c.awaitMetric(`evictd_affinity_violations{state="held"} 0`)

	taken := time.Now()
	c.takeLabel("a", "budgeted")
	c.takeLabel("a", "twice")
	c.awaitMetric(`evictd_affinity_evictions_total{result="many-budgets"} 1`)
	c.await("an eviction that the PodDisruptionBudget refuses", func() (bool, error) {
		text, err := c.metricsText()
		return strings.Contains(text, `evictd_affinity_evictions_total{result="budget"}`) &&
			!strings.Contains(text, `evictd_affinity_evictions_total{result="budget"} 0`), err
	})
	if list := c.evictions("budgeted"); list[0].StageTimestamp.Sub(taken) < debounce {
		t.Errorf("eviction %s after the label was taken; want the debounce of %s", list[0].StageTimestamp.Sub(taken), debounce)
	}
	if got := c.awaitRunning("budgeted", 1); fmt.Sprint(got) != fmt.Sprint(before["budgeted"]) {
		t.Errorf("pods of budgeted: %v; want %v", got, before["budgeted"])
	}
	err = c.Admin.Patch(t.Context(), "/apis/policy/v1/namespaces/default/poddisruptionbudgets/budgeted", controlplane.MergePatch,
		fields{"spec": fields{"minAvailable": 0}})
	if err != nil {
		t.Fatal(err)
	}
	c.movedFrom("budgeted", before["budgeted"])
	if got := c.awaitRunning("twice", 1); fmt.Sprint(got) != fmt.Sprint(before["twice"]) {
		t.Errorf("pods of twice: %v; want %v", got, before["twice"])
	}
	if list := c.evictions("twice"); len(list) != 1 || list[0].ResponseStatus.Code != http.StatusInternalServerError {
		t.Errorf("evictions of twice: %+v; want one with status 500 in the back-off of 5 min", list)
	}
	c.conflict("web")
}

// explain checks that evictctl explains a pod that violates, with a real kubectl: that it would be evicted, and that no
// node fits once no other takes pods.
func (c *cluster) explain(t *testing.T, app string) {
	programs, err := controlplane.FindPrograms(controlplane.Kubectl)
	if err != nil {
		t.Skipf("needs %v", err)
	}
	evictctl, err := node.Program("../..", t.TempDir(), "evictctl")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := c.Kubeconfig("person", controlplane.AdminToken)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := c.pods(app)
	if err != nil || len(pods) != 1 {
		t.Fatalf("pods of %s: %d, %v; want one", app, len(pods), err)
	}
	explained := func(parts ...string) {
		t.Helper()
		out, err := exec.Command(evictctl, "affinity", "explain", "--live", pods[0].Name, "-n", "default", "--controller-namespace", namespace,
			"--kubectl", filepath.Join(programs, controlplane.Kubectl), "--kubeconfig", admin).CombinedOutput()
		if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != 1 {
			t.Errorf("evictctl affinity explain --live: %v; want exit code 1", err)
		}
		for _, part := range append(parts, "\nsettings: ConfigMap evictd/cluster-affinity-config\n", "\nlease: renewed at ", "NodeAffinityWouldEvict") {
			if !strings.Contains(string(out), part) {
				t.Errorf("evictctl affinity explain --live printed\n%s\nwant %q in it", out, part)
			}
		}
		if strings.Contains(string(out), "not read:") {
			t.Errorf("evictctl affinity explain --live printed\n%s\nwant all read", out)
		}
	}
	cordon := func(value bool) {
		t.Helper()
		for _, name := range []string{"b", "c"} {
			if err := c.Admin.Patch(t.Context(), nodesPath+"/"+name, controlplane.MergePatch, fields{"spec": fields{"unschedulable": value}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	explained("held: nothing in these objects holds it back")
	cordon(true)
	explained("held: NoNodeFits: No other Ready")
	cordon(false)
}

// conflict checks the answer to an eviction with another UID: evictd-controller recognizes it by its message.
func (c *cluster) conflict(app string) {
	c.t.Helper()
	pods, err := c.pods(app)
	if err != nil || len(pods) != 1 {
		c.t.Fatalf("pods of %s: %d, %v; want one", app, len(pods), err)
	}
	other := types.UID("00000000-0000-0000-0000-000000000000")
	err = c.Admin.Create(c.t.Context(), podsPath+"/"+pods[0].Name+"/eviction", policyv1.Eviction{
		TypeMeta: metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"}, ObjectMeta: metav1.ObjectMeta{Name: pods[0].Name, Namespace: "default"},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}},
	})
	e, ok := errors.AsType[*controlplane.StatusError](err)
	if !ok || e.Code != http.StatusConflict || !strings.Contains(string(e.Answer), "precondition") {
		c.t.Errorf("eviction with another UID: %v; want status 409 with %q", err, "precondition")
	}
}
