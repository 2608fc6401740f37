package controller

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// discoveryServer answers what an API server does when it is asked for its kinds. Versions are in the order of groups,
// the first is preferred.
type discoveryServer struct {
	kinds map[string][]string // resources by group/version
	order []string            // groups/versions
	fails map[string]int      // status code by path
	asked []string            // paths
}

func (s *discoveryServer) answer(path string) (int, any) {
	s.asked = append(s.asked, path)
	if code := s.fails[path]; code != 0 {
		return code, metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: metav1.StatusReason(http.StatusText(code))}
	}
	if path == "/apis" {
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, gv := range s.order {
			group, version, _ := strings.Cut(gv, "/")
			v := metav1.GroupVersionForDiscovery{GroupVersion: gv, Version: version}
			if n := len(list.Groups); n > 0 && list.Groups[n-1].Name == group {
				list.Groups[n-1].Versions = append(list.Groups[n-1].Versions, v)
				continue
			}
			list.Groups = append(list.Groups, metav1.APIGroup{Name: group, PreferredVersion: v, Versions: []metav1.GroupVersionForDiscovery{v}})
		}
		return http.StatusOK, list
	}
	gv := strings.TrimPrefix(path, "/apis/")
	resources, known := s.kinds[gv]
	if !known {
		return http.StatusNotFound, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
	for _, name := range resources {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
	}
	return http.StatusOK, list
}

func (s *discoveryServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code, body := s.answer(r.URL.Path)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

// RoundTrip answers without a connection, so that no goroutine outside of the test waits for it.
func (s *discoveryServer) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Result(), nil
}

func (s *discoveryServer) client(t *testing.T) *discovery.DiscoveryClient {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfigAndClient(&rest.Config{Host: "http://api"}, &http.Client{Transport: s})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// A kind is known to be there in the version that the API server prefers of those that have it.
func TestInstalledKinds(t *testing.T) {
	s := &discoveryServer{
		order: []string{
			"apps/v1", "infrastructure.cluster.x-k8s.io/v1beta1", "cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1beta1",
			"self-node-remediation.medik8s.io/v2", "self-node-remediation.medik8s.io/v1alpha1", "nodemaintenance.medik8s.io/v1beta1",
		},
		kinds: map[string][]string{
			"infrastructure.cluster.x-k8s.io/v1beta1":   {"awsmachines"},
			"cluster.x-k8s.io/v1beta2":                  {"clusters", "machines"},
			"cluster.x-k8s.io/v1beta1":                  {"machines"},
			"self-node-remediation.medik8s.io/v2":       {"selfnoderemediationconfigs", "selfnoderemediations/status"},
			"self-node-remediation.medik8s.io/v1alpha1": {"selfnoderemediations"},
		},
	}
	kinds, err := installedKinds(t.Context(), s.client(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range kinds {
		got = append(got, k.kind+" "+k.group+"/"+k.version)
	}
	want := []string{"Machine cluster.x-k8s.io/v1beta2", "SelfNodeRemediation self-node-remediation.medik8s.io/v1alpha1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	for path, text := range map[string]string{"/apis": "for its groups", "/apis/cluster.x-k8s.io/v1beta2": "for the kinds of cluster.x-k8s.io/v1beta2"} {
		s.fails = map[string]int{path: http.StatusForbidden}
		if kinds, err := installedKinds(t.Context(), s.client(t)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s fails: %v, %v; want an error with %q", path, kinds, err, text)
		}
	}
}

// A cluster without remediators is asked for its groups, and for nothing else, once in discoveryInterval. A kind that is
// created later is noticed then, and so is one that is removed. After an error it is asked again at once.
func TestKindDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far = "fence-agents-remediation.medik8s.io/v1alpha1"
		s := &discoveryServer{order: []string{"apps/v1"}, kinds: map[string][]string{far: {"fenceagentsremediations"}}}
		d := &kindDiscovery{client: s.client(t)}
		count := func(want, requests int) {
			t.Helper()
			s.asked = nil
			kinds, err := d.installed(t.Context(), false)
			if err != nil || len(kinds) != want || len(s.asked) != requests {
				t.Errorf("%d kinds, %v after the requests %q; want %d after %d", len(kinds), err, s.asked, want, requests)
			}
		}
		count(0, 1)
		s.order = append(s.order, far)
		time.Sleep(discoveryInterval - time.Nanosecond)
		count(0, 0)
		time.Sleep(time.Nanosecond)
		count(1, 2)
		time.Sleep(discoveryInterval)
		s.order = s.order[:1]
		s.fails = map[string]int{"/apis": http.StatusServiceUnavailable}
		if kinds, err := d.installed(t.Context(), false); err == nil {
			t.Errorf("kinds %v although the API server fails; want an error", kinds)
		}
		s.fails = nil
		count(0, 1)
		s.order = append(s.order, far)
		if kinds, err := d.installed(t.Context(), true); err != nil || len(kinds) != 1 {
			t.Errorf("%d kinds, %v of the API server; want one that was just created", len(kinds), err)
		}
		count(1, 0)
	})
}
