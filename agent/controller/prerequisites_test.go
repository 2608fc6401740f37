package controller

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"

	"github.com/evictd/evictd/agent/controller/affinity"
)

// startServer is an API server as far as prerequisites ask it.
type startServer struct {
	down, unauthorized, noType, noNamespace, exists, remediators, noReviews bool
	// missing is a right: resource, name and verb.
	missing string
	mu      sync.Mutex
	asked   []string
	// certificate is whether the controller makes one.
	certificate bool
	// kinds are those of remediators.
	kinds discoveryServer
}

// allKinds returns a server that has all kinds of remediators that are known.
func allKinds() discoveryServer {
	s := discoveryServer{kinds: map[string][]string{}}
	for _, k := range remediatorKinds {
		gv := k.group + "/v1"
		s.order, s.kinds[gv] = append(s.order, gv), append(s.kinds[gv], k.resource)
	}
	return s
}

func (s *startServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(body) // the client has gone
	}
	refuse := func(code int, reason metav1.StatusReason) {
		answer(code, metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Reason: reason, Code: int32(code), Message: string(reason),
		})
	}
	switch {
	case s.down:
		refuse(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case s.unauthorized:
		refuse(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	case r.URL.Path == "/apis/ha.k8s.io/v1" && s.noType:
		refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Path == "/apis/ha.k8s.io/v1":
		answer(http.StatusOK, metav1.APIResourceList{GroupVersion: "ha.k8s.io/v1"})
	case r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" && s.noReviews:
		refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
	case r.URL.Path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			refuse(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		a := review.Spec.ResourceAttributes
		s.mu.Lock()
		s.asked = append(s.asked, fmt.Sprint(a.Namespace, " ", a.Group, " ", strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/"), " ", a.Name, " ", a.Verb))
		s.mu.Unlock()
		review.Status.Allowed = strings.TrimSpace(a.Resource+" "+a.Verb) != s.missing
		answer(http.StatusCreated, review)
	case r.URL.Path == "/apis/coordination.k8s.io/v1/namespaces/evictd/leases" && r.URL.Query().Get("dryRun") == "All":
		switch {
		case s.noNamespace:
			refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
		case s.exists:
			refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists)
		default:
			answer(http.StatusCreated, map[string]any{"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"})
		}
	case r.URL.Path == "/api/v1/namespaces/medik8s-leases" && s.remediators:
		answer(http.StatusOK, map[string]any{"kind": "Namespace", "apiVersion": "v1"})
	case r.URL.Path == "/api/v1/namespaces/medik8s-leases":
		refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
	case r.URL.Path == "/apis" || s.kinds.kinds[strings.TrimPrefix(r.URL.Path, "/apis/")] != nil:
		answer(s.kinds.answer(r.URL.Path))
	default:
		refuse(http.StatusTeapot, "unexpected request")
	}
}

func (s *startServer) check(t *testing.T, elect bool, mode affinity.Mode) error {
	t.Helper()
	return s.checkWith(t, &Options{Namespace: "evictd", LeaderElect: elect, Affinity: mode})
}

func (s *startServer) checkWith(t *testing.T, o *Options) error {
	t.Helper()
	if s.certificate {
		o.WebhookAddress = ":9443"
	}
	server := httptest.NewServer(s)
	defer server.Close()
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	p, err := newPrerequisites(config, o)
	if err != nil {
		t.Fatal(err)
	}
	return p.check(t.Context())
}

func TestPrerequisites(t *testing.T) {
	far := discoveryServer{order: []string{"fence-agents-remediation.medik8s.io/v1alpha1"},
		kinds: map[string][]string{"fence-agents-remediation.medik8s.io/v1alpha1": {"fenceagentsremediations"}}}
	for name, tt := range map[string]struct {
		server *startServer
		want   []string // of the error; none: no error
	}{
		"all there":                      {server: &startServer{}},
		"Lease there":                    {server: &startServer{exists: true}},
		"unavailable":                    {&startServer{down: true}, []string{"ask the API server for NodeFence", "check its address"}},
		"credentials":                    {&startServer{unauthorized: true}, []string{"refuses the credentials", "renew the token"}},
		"no type":                        {&startServer{noType: true}, []string{"no NodeFence (ha.k8s.io/v1)", "install deploy/kubernetes/controller/crd"}},
		"no right":                       {&startServer{missing: "pods delete"}, []string{"lacks rights: pods delete: apply", "rbac.yaml"}},
		"no Lease list":                  {&startServer{missing: "leases list"}, []string{"leases.coordination.k8s.io in kube-node-lease list"}},
		"no Lease delete, no remediator": {server: &startServer{missing: "leases delete"}},
		"no Lease delete": {&startServer{missing: "leases delete", remediators: true},
			[]string{"leases.coordination.k8s.io in medik8s-leases delete", "apply deploy/kubernetes/controller/medik8s"}},
		"no Lease read":        {&startServer{missing: "leases get"}, []string{"leases.coordination.k8s.io in kube-node-lease get", "evictd-controller in evictd get"}},
		"no webhook, no patch": {server: &startServer{missing: "mutatingwebhookconfigurations patch"}},
		"no patch": {&startServer{missing: "mutatingwebhookconfigurations patch", certificate: true},
			[]string{"mutatingwebhookconfigurations.admissionregistration.k8s.io evictd-controller patch", "apply deploy/kubernetes/controller-serving"}},
		"no object list, no remediator": {server: &startServer{missing: "fenceagentsremediations list"}},
		"no object list": {&startServer{missing: "fenceagentsremediations list", kinds: far},
			[]string{"lacks rights: fenceagentsremediations.fence-agents-remediation.medik8s.io list: apply deploy/kubernetes/controller/medik8s/objects"}},
		"no Machine list": {&startServer{missing: "machines list", kinds: allKinds()},
			[]string{"machines.cluster.x-k8s.io list", "machines.machine.openshift.io list", "apply deploy/kubernetes/controller/cluster-api"}},
		"no discovery": {&startServer{kinds: discoveryServer{fails: map[string]int{"/apis": http.StatusForbidden}}}, []string{"ask the API server for its groups"}},
		"no namespace": {&startServer{noNamespace: true}, []string{"no namespace evictd", "set --namespace"}},
	} {
		err := tt.server.check(t, true, affinity.Enforce)
		if (err == nil) != (tt.want == nil) {
			t.Errorf("%s: check() = %v; want an error with %q", name, err, tt.want)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: check() = %v; want an error with %q", name, err, want)
			}
		}
	}
	// The Lease of leader election is not needed without it.
	if err := (&startServer{noNamespace: true}).check(t, false, affinity.Enforce); err != nil {
		t.Errorf("without leader election: check() = %v", err)
	}
}

// lateServer answers each request after a time, without a network: synctest counts the time.
type lateServer struct {
	server *startServer
	by     time.Duration
}

func (l lateServer) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(l.by):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	w := httptest.NewRecorder()
	l.server.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestPrerequisitesSlowServer: with an API server that takes seconds for each answer a controller starts long before the
// startup probe of its Deployment has failed, and it says so soon if rights can't be asked for.
func TestPrerequisitesSlowServer(t *testing.T) {
	for _, c := range []struct {
		name   string
		server *startServer
		by     time.Duration
		within time.Duration
		want   string // of the error; none: no error
	}{
		{"2s", &startServer{}, 2 * time.Second, time.Minute, ""},
		{"9s", &startServer{}, 9 * time.Second, 5 * time.Minute, ""},
		{"11s", &startServer{}, 11 * time.Second, requestTimeout, "ask the API server for NodeFence"},
		{"no reviews", &startServer{noReviews: true}, 2 * time.Second, 6 * time.Second, "ask the API server for the account's rights"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.server.remediators, c.server.kinds = true, allKinds()
				config := &rest.Config{
					Host: "http://late", Transport: lateServer{c.server, c.by}, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
				}
				p, err := newPrerequisites(config, &Options{
					Namespace: "evictd", LeaderElect: true, Affinity: affinity.Enforce, ExecutorImage: "agents:v1", WebhookAddress: ":9443",
				})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				err = p.check(t.Context())
				t.Logf("%d rights asked for in %v", len(c.server.asked), time.Since(began))
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("check() = %v; want an error with %q", err, c.want)
				}
				if took := time.Since(began); took > c.within {
					t.Errorf("check() took %v; want at most %v", took, c.within)
				}
			})
		})
	}
}

// TestRights: the rights that are checked at the start are those that the manifests grant, but for events.
func TestRights(t *testing.T) {
	s := &startServer{remediators: true, certificate: true, kinds: allKinds()}
	if err := s.checkWith(t, &Options{Namespace: "evictd", LeaderElect: true, Affinity: affinity.Observe, ExecutorImage: "agents:v1"}); err != nil {
		t.Fatal(err)
	}
	var documents []string
	for _, name := range []string{"controller/rbac.yaml", "controller/jobs/rbac.yaml", "controller/medik8s/rbac.yaml",
		"controller/medik8s/objects/rbac.yaml", "controller/cluster-api/rbac.yaml", "controller-serving/rbac.yaml"} {
		content, err := os.ReadFile("../../deploy/kubernetes/" + name)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, strings.Split(string(content), "\n---\n")...)
	}
	var granted []string
	for _, document := range documents {
		var role rbacv1.Role // a ClusterRole has its fields, too
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			if rule.Resources[0] == "events" {
				continue
			}
			name := strings.Join(rule.ResourceNames, "")
			for _, verb := range rule.Verbs {
				for _, resource := range rule.Resources {
					granted = append(granted, fmt.Sprint(role.Namespace, " ", rule.APIGroups[0], " ", resource, " ", name, " ", verb))
				}
			}
		}
	}
	slices.Sort(granted)
	slices.Sort(s.asked)
	if diff := cmp.Diff(granted, s.asked); diff != "" {
		t.Errorf("rights in rbac.yaml and at the start (-granted +asked):\n%s", diff)
	}
	missing := &startServer{missing: "jobs create"}
	err := missing.checkWith(t, &Options{Namespace: "evictd", Affinity: affinity.Off, ExecutorImage: "agents:v1"})
	if err == nil || !strings.Contains(err.Error(), "jobs.batch in evictd create: apply deploy/kubernetes/controller/jobs") {
		t.Errorf("without the right to create Jobs: check() = %v; want the manifest", err)
	}
	if err := missing.check(t, true, affinity.Off); err != nil {
		t.Errorf("without an image for Jobs: check() = %v; want that the right is not needed", err)
	}
	off := &startServer{}
	if err := off.check(t, true, affinity.Off); err != nil {
		t.Fatal(err)
	}
	for _, asked := range off.asked {
		if strings.Contains(asked, "eviction") || strings.Contains(asked, " pods  watch") || strings.Contains(asked, "scale") {
			t.Errorf("with --affinity=off the right %q is asked for", asked)
		}
	}
	if len(off.asked) >= len(s.asked) {
		t.Errorf("with --affinity=off %d rights are asked for; want less than %d", len(off.asked), len(s.asked))
	}
}
