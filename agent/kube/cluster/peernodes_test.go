package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/agent/selffence/peers"
)

// The nodes are listed in pages, as tables; one without an address is listed, too.
func TestListNodes(t *testing.T) {
	t.Parallel()
	page := func(next string, rows ...string) string {
		return `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"continue":"` + next + `"},"columnDefinitions":[{"name":"Name"},{"name":"Status"},{"name":"Internal-IP"}],"rows":[` + strings.Join(rows, ",") + `]}`
	}
	for _, tt := range []struct {
		name  string
		pages []string
		want  []peers.Node
		err   string
	}{
		{"two pages", []string{page("1", `{"cells":["a","Ready","10.0.0.1"]}`), page("", `{"cells":["b","Ready","<none>"]}`, `{"cells":["c","Ready","fd00::1"]}`)},
			[]peers.Node{{Name: "a", Address: netip.MustParseAddr("10.0.0.1")}, {Name: "b"}, {Name: "c", Address: netip.MustParseAddr("fd00::1")}}, ""},
		{"no column", []string{`{"columnDefinitions":[{"name":"Name"}],"rows":[{"cells":["a"]}]}`}, nil, "lacks the columns"},
		{"short row", []string{page("", `{"cells":["a"]}`)}, nil, "row without an address"},
		{"no name", []string{page("", `{"cells":[7,"Ready","10.0.0.1"]}`)}, nil, "lacks the columns"},
		{"no JSON", []string{"{"}, nil, "decode the list"},
	} {
		s := &apiServer{Server: httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			i := 0
			if next := r.URL.Query().Get("continue"); next != "" {
				fmt.Sscan(next, &i)
			}
			if r.Header.Get("Accept") != asTable || r.URL.Query().Get("includeObject") != "None" {
				t.Errorf("%s: request %s with %q", tt.name, r.URL, r.Header.Get("Accept"))
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, tt.pages[i])
		}))}
		kubeconfig, _, _ := s.files(t)
		c, err := (&Options{Kubeconfig: kubeconfig}).connect()
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.listNodes(t.Context())
		if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: listNodes = %v, %v; want error %q\n%s", tt.name, got, err, tt.err, diff)
		}
		s.Close()
	}
}

// A refusal is an answer, an error of the server is none.
func TestAnswered(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{apierrors.NewForbidden(nodes, "n1", errors.New("x")), true},
		{apierrors.NewConflict(nodes, "n1", errors.New("x")), true},
		{apierrors.NewTooManyRequests("x", 1), true},
		{fmt.Errorf("wrapped: %w", apierrors.NewNotFound(nodes, "n1")), true},
		{apierrors.NewInternalError(errors.New("x")), false},
		{apierrors.NewServiceUnavailable("x"), false},
		{apierrors.NewTimeoutError("x", 1), false},
		{context.DeadlineExceeded, false},
		{&apierrors.StatusError{ErrStatus: metav1.Status{}}, false},
	} {
		if got := answered(tt.err); got != tt.want {
			t.Errorf("answered(%v) = %t; want %t", tt.err, got, tt.want)
		}
	}
}

// A node votes while its advert is armed and says so, and asks from when the newest advert is not written. It reads
// the Node before each such advert.
func TestReachOfMarks(t *testing.T) {
	t.Parallel()
	node := &markedNode{version: 1, annotations: map[string]string{"x": "y"}}
	m, reports := runMarks(t, node)
	if r := m.Reach(); r.Votes || r.Waiting != 0 {
		t.Errorf("Reach() = %+v at the start", r)
	}
	for i, tt := range []struct{ armed, peers, votes bool }{{false, true, false}, {true, false, false}, {true, true, true}, {true, true, true}} {
		a := selffence.Advert{Version: selffence.Version, Armed: tt.armed, Peers: tt.peers, RenewSeconds: 20, BootID: "b", Sequence: uint64(i + 1)}
		node.takeRequests()
		m.SetMarks(&kube.NodeMarks{Number: uint64(i + 1), Watchdog: a.String()})
		if got := reports.next(t); got != fmt.Sprint(i+1) {
			t.Fatalf("answer %q", got)
		}
		if r := m.Reach(); r.Votes != tt.votes {
			t.Errorf("%+v: Reach() = %+v", tt, r)
		}
		if requests := node.takeRequests(); tt.votes && !strings.HasPrefix(requests, "GET") {
			t.Errorf("%+v: requests %s; want a read before the write", tt, requests)
		}
	}
	m.SetMarks(nil)
	if r := m.Reach(); r.Votes {
		t.Errorf("Reach() = %+v without a session", r)
	}
}
