package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/kube"
	kubecluster "github.com/evictd/evictd/agent/kube/cluster"
)

// annotated sets the annotations of a pod that is created.
func annotated(annotations map[string]string) func(map[string]any) {
	return func(pod map[string]any) { pod["metadata"].(map[string]any)["annotations"] = annotations }
}

// TestReportOfLargePod: a pod whose annotations have no room for a report is deleted with a
// grace period, so that its object remains until the kubelet has ended it.
func TestReportOfLargePod(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	n := r.report()
	const limit = 256 << 10
	full := r.killed("full", "Never", kube.StageKilled, annotated(map[string]string{"a": strings.Repeat("x", limit-1)}))
	full.Exclusive = kube.ExclusiveJob
	n.Order(full)
	n.want(full.ID, kube.AnswerMarked) // which needs no room in the annotations
	ended := *full
	ended.Stage = kube.StageEnded
	n.Order(&ended)
	n.want(full.ID, kube.AnswerDeleted)
	if got := r.get("full"); got.Metadata.DeletionGracePeriodSeconds != 1 || got.Status.Phase != "Running" {
		t.Errorf("pod with full annotations: %+v; want it to be deleted with grace period 1", got)
	}

	// An annotation of exactly the room that is left, whatever else is in the object.
	room := r.killed("room", "Always", kube.StageEnded, annotated(map[string]string{"a": strings.Repeat("x", limit-1-len("evictd.io/evicted"+mark+"1"))}))
	n.Order(room)
	n.want(room.ID, kube.AnswerReported)
}

// TestReportOfHugePod: a pod that is too large for etcd with a report is deleted. One without
// room for the time of its deletion can be deleted by nobody; its order waits.
func TestReportOfHugePod(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	n := r.report()
	largest := r.largestPod()
	for _, tt := range []struct {
		name  string
		spare int
		want  kube.Answer
	}{{"no-room", 0, kube.AnswerDelayed}, {"room150", 150, kube.AnswerDeleted}} {
		if err := r.huge(tt.name, largest-tt.spare); err != nil {
			t.Fatal(err)
		}
		o := &kube.Order{
			ID: tt.name, UID: r.get(tt.name).Metadata.UID, Namespace: "default", Name: tt.name, Stage: kube.StageEnded,
			Reason: "Evicted", Message: "The node was low on resource: memory. ", Decided: decided,
		}
		n.Order(o)
		if got := n.want(o.ID, tt.want); tt.want == kube.AnswerDelayed && !strings.Contains(got.Why, "request is too large") {
			t.Errorf("%s: reason %q; want that of etcd", tt.name, got.Why)
		}
	}
	for _, grace := range []string{"0", "1"} {
		_, err := r.request("DELETE", podPath("no-room"), "application/json", fmt.Sprintf(`{"apiVersion":"v1","kind":"DeleteOptions",
			"gracePeriodSeconds":%s,"preconditions":{"uid":%q}}`, grace, r.get("no-room").Metadata.UID))
		if err == nil || !strings.Contains(err.Error(), "request is too large") {
			t.Errorf("deletion of the largest pod with grace period %s: %v; want it refused by etcd", grace, err)
		}
	}
	if got := r.get("room150"); got.Metadata.DeletionGracePeriodSeconds != 1 {
		t.Errorf("large pod: %+v; want it to be deleted with grace period 1", got.Metadata)
	}
}

// largestPod returns the size of the arguments of the largest pod that etcd accepts.
func (r *rig) largestPod() int {
	r.t.Helper()
	low, high := 1<<20, 2<<20
	for i := 0; high-low > 1; i++ {
		middle := (low + high) / 2
		if r.huge(fmt.Sprintf("size%03d", i), middle) == nil {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// huge creates a pod with arguments of a size. The names of all of them have seven characters.
func (r *rig) huge(name string, size int) error {
	_, err := r.request("POST", podPath(""), "application/json", fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},
		"spec":{"nodeName":"n1","restartPolicy":"Never","containers":[{"name":"main","image":"x","args":[%q]}]}}`, name, strings.Repeat("x", size)))
	return err
}

// TestReportDenied: what a policy refuses is refused for good, whatever code it answers, and a
// mirror pod is never touched.
func TestReportDenied(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	n := r.report()
	const admission = "/apis/admissionregistration.k8s.io/v1/"
	reasons := []string{"Invalid", "Forbidden", "RequestEntityTooLarge"}
	for _, reason := range reasons {
		name := strings.ToLower(reason)
		r.must("POST", admission+"validatingadmissionpolicies", fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},
			"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["UPDATE"],"resources":["pods/status"]}]},
			"validations":[{"expression":"object.metadata.name != '%s' || object.status.phase != 'Failed'","message":"not on my watch","reason":%q}]}}`, name, name, reason))
		r.must("POST", admission+"validatingadmissionpolicybindings", fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding",
			"metadata":{"name":%q},"spec":{"policyName":%q,"validationActions":["Deny"]}}`, name, name))
	}
	for _, reason := range reasons {
		o := r.killed(strings.ToLower(reason), "Always", kube.StageEnded)
		r.until("policy", func() bool {
			_, err := r.request("PATCH", podPath(o.Name)+"/status?dryRun=All", "application/strategic-merge-patch+json", `{"status":{"phase":"Failed"}}`)
			return err != nil
		})
		began := time.Now()
		n.Order(o)
		got := n.want(o.ID, kube.AnswerForbidden)
		if !strings.Contains(got.Why, "not on my watch") || strings.Contains(got.Why, "\n") || time.Since(began) > 10*time.Second {
			t.Errorf("%s: reason %q after %v; want the policy's message in one line, at once", reason, got.Why, time.Since(began))
		}
	}
	mirror := r.killed("static", "Always", kube.StageEnded, annotated(map[string]string{"kubernetes.io/config.mirror": "hash"}))
	before := r.get("static")
	for _, uid := range []string{mirror.UID, "hash"} {
		o := *mirror
		o.ID, o.UID = "mirror-"+uid, uid
		n.Order(&o)
		if got := n.want(o.ID, kube.AnswerForbidden); !strings.Contains(got.Why, "static") {
			t.Errorf("reason for a mirror pod: %q", got.Why)
		}
	}
	if diff := cmp.Diff(before, r.get("static")); diff != "" {
		t.Errorf("mirror pod (-want +got):\n%s", diff)
	}
}

// TestReportRights: rights that are missing are named, and a right that was taken away is
// missed after ForbiddenDelay and not at once.
func TestReportRights(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	const role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/r"
	grant := func(rules string) {
		t.Helper()
		if _, err := r.request("PATCH", role, "application/merge-patch+json", `{"rules":[`+rules+`]}`); err != nil {
			t.Fatal(err)
		}
	}
	all := fmt.Sprintf(reportRights, `,"delete"`)
	grant(strings.ReplaceAll(fmt.Sprintf(reportRights, ""), `["pods/status"]`, `["pods/ephemeralcontainers"]`))
	const delay = 3 * time.Second
	n := r.report(func(o *kubecluster.Options) {
		if o.Reporter.ForbiddenDelay != 30*time.Second {
			t.Errorf("ForbiddenDelay = %v; want 30 s", o.Reporter.ForbiddenDelay)
		}
		o.Reporter.ForbiddenDelay = delay
	})
	const want = "may not patch pods/status, delete pods: bind the ClusterRole of deploy/kubernetes"
	n.until("missing rights", func() bool { return strings.Contains(n.cannotReport(), want) })
	grant(all)
	n.until("rights", func() bool { return n.cannotReport() == "" })

	o := r.killed("web", "Always", kube.StageEnded)
	grant(strings.ReplaceAll(all, `["pods/status"]`, `["pods/ephemeralcontainers"]`))
	r.until("the API server knows that the right is gone", func() bool {
		review := r.must("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview",
			"spec":{"user":"system:serviceaccount:evictd:evictd-kube","resourceAttributes":{"namespace":"default","verb":"patch","resource":"pods","subresource":"status"}}}`)
		return strings.Contains(string(review), `"allowed":false`)
	})
	began := time.Now()
	n.Order(o)
	n.want(o.ID, kube.AnswerDelayed)
	got := n.want(o.ID, kube.AnswerForbidden)
	if took := time.Since(began); took < delay || !strings.Contains(got.Why, `cannot patch resource "pods/status"`) {
		t.Errorf("forbidden after %v: %q; want it after %v, with the right", took, got.Why, delay)
	}
	n.until("missing right", func() bool { return strings.Contains(n.cannotReport(), "may not patch pods/status: ") })
}

// TestReportToken: evictd is told that nothing can be reported with a token that the policies refuse, although the
// rights are there.
func TestReportToken(t *testing.T) {
	t.Parallel()
	r := newReportRig(t)
	r.must("POST", "/api/v1/nodes", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n2"}}`)
	for node, want := range map[string]string{
		"": `the token of "system:serviceaccount:evictd:evictd-kube" is not bound to a node`, "n2": `is bound to the node "n2", not to "n1"`, "n1": "",
	} {
		bound := ""
		if node != "" {
			uid := decode[named](t, r.must("GET", "/api/v1/nodes/"+node, "")).Metadata.UID
			bound = fmt.Sprintf(`,"boundObjectRef":{"apiVersion":"v1","kind":"Node","name":%q,"uid":%q}`, node, uid)
		}
		n := r.report(func(o *kubecluster.Options) {
			o.Kubeconfig = r.kubeconfig(r.write("bound", r.accountToken("evictd-kube", bound)))
		})
		n.until("answer about the token", func() bool {
			why := n.cannotReport()
			return want != "" && strings.Contains(why, want) || want == why
		})
		n.stop()
	}
}
