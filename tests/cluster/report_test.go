package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/evictd/evictd/agent/kube"
	kubecluster "github.com/evictd/evictd/agent/kube/cluster"
)

// reporting is an evictd-kube without its session: the test gives the orders and takes the
// answers.
type reporting struct {
	*rig
	*kubecluster.Reporter
	stop func()

	mu          sync.Mutex
	answers     []kube.Report
	nodeReports []kube.NodeReport
	cannot      []string
	log         strings.Builder
}

func (r *reporting) Report(a *kube.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, *a)
}

func (r *reporting) ReportNode(a *kube.NodeReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodeReports = append(r.nodeReports, *a)
}

func (r *reporting) CannotReport(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cannot = append(r.cannot, why)
}

// cannotReport returns the last reason why nothing can be reported; empty if it can.
func (r *reporting) cannotReport() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cannot) == 0 {
		return "not known yet"
	}
	return r.cannot[len(r.cannot)-1]
}

func (r *reporting) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

// reportRights are what the account may do in these tests.
const reportRights = `{"apiGroups":[""],"resources":["nodes"],"verbs":["get"]},
	{"apiGroups":["events.k8s.io"],"resources":["events"],"verbs":["create"]},
	{"apiGroups":[""],"resources":["pods"],"verbs":["list","watch","get"%s]},
	{"apiGroups":[""],"resources":["pods/status"],"verbs":["patch"]}`

// newReportRig returns an API server with a node n1 and an account that may report evictions.
func newReportRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}`)
	r.apply("namespace.yaml")
	r.must("POST", "/api/v1/namespaces/evictd/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"evictd-kube","namespace":"evictd"}}`)
	const rbac = "/apis/rbac.authorization.k8s.io/v1/"
	r.must("POST", rbac+"clusterroles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"r"},"rules":[`+fmt.Sprintf(reportRights, `,"delete"`)+`]}`)
	r.must("POST", rbac+"clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"r"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"},
		"subjects":[{"kind":"ServiceAccount","name":"evictd-kube","namespace":"evictd"}]}`)
	r.until("namespace", func() bool {
		_, err := r.request("GET", "/api/v1/namespaces/default", "", "")
		return err == nil
	})
	return r
}

// report starts a Reporter that watches the node n1.
func (r *rig) report(change ...func(*kubecluster.Options)) *reporting {
	r.t.Helper()
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	n := &reporting{rig: r}
	log := slog.New(slog.NewTextHandler(n, nil))
	n.Reporter = kubecluster.NewReporter("n1", n, log)
	options := kubecluster.Options{
		Kubeconfig: r.kubeconfig(r.write("token", r.token(time.Hour))), Node: "n1", BootID: bootID, Software: "test",
		Feed: kube.NewFeed("n1", "test", log), Reporter: n.Reporter, Log: log,
	}
	for _, c := range change {
		c(&options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { n.Run(ctx) })
	parts.Go(func() { kubecluster.Watch(ctx, options) })
	n.stop = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
	})
	r.t.Cleanup(func() {
		n.stop()
		if r.t.Failed() {
			r.t.Logf("answers %+v, log:\n%s", n.answers, &n.log)
		}
	})
	n.until("rights", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.cannot) > 0
	})
	return n
}

// answer returns the last answer to an order.
func (r *reporting) answer(id string) (last kube.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.answers {
		if a.ID == id {
			last = a
		}
	}
	return last
}

// count returns how often an answer was given to an order.
func (r *reporting) count(id string, answer kube.Answer) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.answers {
		if a.ID == id && a.Answer == answer {
			n++
		}
	}
	return n
}

// want waits for an answer to an order.
func (r *reporting) want(id string, answer kube.Answer) kube.Report {
	r.t.Helper()
	r.until("answer "+string(answer)+" to "+id, func() bool { return r.answer(id).Answer == answer })
	return r.answer(id)
}

// podObject is a pod as far as the tests look at it.
type podObject struct {
	Metadata struct {
		UID, DeletionTimestamp     string
		Generation                 int64
		DeletionGracePeriodSeconds int64
		Annotations                map[string]string
	}
	Status status
}

type status struct {
	Phase, Reason, Message string
	Conditions             []condition
}

type condition struct {
	Type, Status, Reason, Message, LastTransitionTime string
	ObservedGeneration                                int64
}

func podPath(name string) string { return "/api/v1/namespaces/default/pods/" + name }

func (r *rig) get(name string) podObject {
	r.t.Helper()
	return decode[podObject](r.t, r.must("GET", podPath(name), ""))
}

// killed creates a pod that runs on n1, and returns the order to report its eviction.
func (r *rig) killed(name, restartPolicy string, stage kube.Stage, change ...func(map[string]any)) *kube.Order {
	r.t.Helper()
	pod := map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"nodeName": "n1", "restartPolicy": restartPolicy, "containers": []any{map[string]any{"name": "main", "image": "x"}}},
	}
	for _, c := range change {
		c(pod)
	}
	body, err := json.Marshal(pod)
	if err != nil {
		r.t.Fatal(err)
	}
	uid := decode[podObject](r.t, r.must("POST", podPath(""), string(body))).Metadata.UID
	r.running(name, "")
	return &kube.Order{
		ID: "order-" + name, UID: uid, Namespace: "default", Name: name, Stage: stage, Reason: "Evicted",
		Message: "The node was low on resource: memory. ", Decided: decided,
		Annotations: map[string]string{
			"starved_resource": "memory", "offending_containers": "main", "offending_containers_usage": "1Gi",
			"offending_pod": name, "offending_pod_usage": "1Gi",
		},
	}
}

var decided = time.Date(2026, 11, 23, 1, 2, 3, 456e6, time.FixedZone("x", 3600))

// running writes the status of a running pod, as the kubelet takes a foreign status back.
func (r *rig) running(name, more string) {
	r.t.Helper()
	r.patchStatus(name, `{"status":{"phase":"Running","reason":null,"message":null`+more+`,"containerStatuses":[
		{"name":"main","image":"x","imageID":"x","ready":true,"restartCount":0,"state":{"running":{"startedAt":"2026-11-23T00:00:00Z"}}}]}}`)
}

func (r *rig) patchStatus(name, body string) {
	r.t.Helper()
	if _, err := r.request("PATCH", podPath(name)+"/status", "application/strategic-merge-patch+json", body); err != nil {
		r.t.Fatal(err)
	}
}

var disrupted = condition{
	Type: "DisruptionTarget", Status: "True", Reason: "TerminationByEvictd", Message: "The node was low on resource: memory. ",
	LastTransitionTime: "2026-11-23T00:02:03Z", ObservedGeneration: 1,
}

var evicted = status{Phase: "Failed", Reason: "Evicted", Message: disrupted.Message, Conditions: []condition{disrupted}}

// bootID is that of the node.
const bootID = "0c1b7bd4-1b7d-4d3e-9a55-5d6b1f6f8a10"

const mark = "2026-11-23T00:02:03.456Z/"

// TestReport: the stages of an eviction in the objects of pods, and the events.
func TestReport(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	early := r.killed("early", "Always", kube.StageEnded)
	n := r.report()
	n.until("watch", func() bool { n.Order(early); return n.answer(early.ID).Answer == kube.AnswerReported })
	if got := n.cannotReport(); got != "" {
		t.Errorf("cannot report: %s", got)
	}

	web := r.killed("web", "Always", kube.StageKilled)
	n.Order(web)
	batch := r.killed("batch", "Never", kube.StageKilled)
	n.Order(batch)
	n.want(batch.ID, kube.AnswerMarked)
	if diff := cmp.Diff(status{Phase: "Running", Conditions: []condition{disrupted}}, r.get("batch").Status); diff != "" {
		t.Errorf("killed pod that is not restarted (-want +got):\n%s", diff)
	}
	if got := r.get("batch").Metadata.Annotations; len(got) > 0 {
		t.Errorf("annotations of a killed pod = %v; want none", got)
	}
	if got := r.get("web"); got.Status.Conditions != nil || n.answer(web.ID).Answer != "" {
		t.Errorf("killed pod that is restarted: %+v, answer %v; want no request", got, n.answer(web.ID))
	}
	for _, o := range []*kube.Order{web, batch} {
		o := *o
		o.Stage = kube.StageWaiting
		o.Exclusive, o.Fenced = kube.ExclusiveStatefulSet, true
		n.Order(&o)
		o.Stage = kube.StageEnded
		ordered := time.Now()
		n.Order(&o)
		n.want(o.ID, kube.AnswerReported)
		if sent, now := n.sent(o.Name), time.Now(); sent.Before(ordered.Round(0)) || sent.After(now) {
			t.Errorf("%s: the log says that the report was sent at %v; want a time from %v to %v", o.Name, sent, ordered, now)
		}
		got := r.get(o.Name)
		if diff := cmp.Diff(evicted, got.Status); diff != "" || got.Metadata.Annotations["evictd.io/evicted"] != mark+"1" {
			t.Errorf("%s: annotations %v, status (-want +got):\n%s", o.Name, got.Metadata.Annotations, diff)
		}
	}
	n.wantEvents()
}

// sent returns when the report about a pod was sent, by the log, which is written after the answer.
func (r *reporting) sent(pod string) (at time.Time) {
	r.t.Helper()
	line := regexp.MustCompile(`order.* pod=default/` + pod + ` answer=reported .*sent=(\S+)`)
	r.until("log of the report about "+pod, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		match := line.FindStringSubmatch(r.log.String())
		if match == nil {
			return false
		}
		var err error
		at, err = time.Parse(time.RFC3339Nano, match[1])
		r.check(err)
		return true
	})
	return at
}

// wantEvents waits for the events of TestReport.
func (r *reporting) wantEvents() {
	r.t.Helper()
	type apiEvent struct {
		Metadata                                struct{ Annotations map[string]string }
		Reason, Type, Note, ReportingController string
		ReportingInstance                       string
		Regarding                               struct{ Kind, Name, UID string }
	}
	var events []apiEvent
	named := func(reason, about string) (list []apiEvent) {
		for _, e := range events {
			if e.Reason == reason && e.Regarding.Name == about {
				list = append(list, e)
			}
		}
		return list
	}
	r.until("events", func() bool {
		events = decode[struct{ Items []apiEvent }](r.t, r.must("GET", "/apis/events.k8s.io/v1/namespaces/default/events", "")).Items
		return len(named("Evicted", "web")) > 0 && len(named("Evicted", "batch")) > 0 && len(named("EvictionThresholdMet", "n1")) > 0
	})
	for _, tt := range []struct {
		reason, about, kind, note string
		annotations               int
	}{
		{"Evicted", "web", "Pod", disrupted.Message, 5},
		{"Evicted", "batch", "Pod", disrupted.Message, 5},
		{"EvictionThresholdMet", "n1", "Node", "Attempting to reclaim memory", 0},
	} {
		list := named(tt.reason, tt.about)
		if len(list) != 1 || list[0].Type != "Warning" || list[0].Note != tt.note || len(list[0].Metadata.Annotations) != tt.annotations ||
			list[0].Regarding.Kind != tt.kind || list[0].Regarding.UID == "" || list[0].ReportingInstance != "n1" {
			r.t.Errorf("events %s of %s: %+v; want one with note %q", tt.reason, tt.about, list, tt.note)
		}
	}
}
