package extender

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/evictd/evictd/agent/affinity"
)

const (
	licence  = "example.com/licence"
	requires = `{"nodeSelectorTerms":[{"matchExpressions":[{"key":"example.com/licence","operator":"In","values":["valid"]}]}]}`
)

// nodeMap is a cache that is complete.
type nodeMap map[string]*corev1.Node

func (m nodeMap) Node(name string) *corev1.Node { return m[name] }
func (m nodeMap) Synced() bool                  { return true }

func newNode(name, value string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		licence: value, corev1.LabelHostname: name, corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
	}}}
}

// nodesOf returns a cache with nodes.
func nodesOf(list ...*corev1.Node) nodeMap {
	m := nodeMap{}
	for _, n := range list {
		m[n.Name] = n
	}
	return m
}

// newPod returns a pod as the scheduler sends it. An empty annotation is none.
func newPod(annotation string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-0", Namespace: "default", UID: "1", Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{"other": "a \"quoted\"\nvalue <&>"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image", Command: []string{"sh", "-c", "echo \"é\\\""}}}},
	}
	if annotation != "" {
		p.Annotations[affinity.Annotation] = annotation
	}
	return p
}

func ownedBy(p *corev1.Pod, kind string) *corev1.Pod {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "agent", UID: "2", Controller: new(true)}}
	return p
}

// args are those of a scheduler whose extender has nodeCacheCapable.
func args(p *corev1.Pod, names ...string) *extenderv1.ExtenderArgs {
	names = append([]string{}, names...) // never null
	return &extenderv1.ExtenderArgs{Pod: p, NodeNames: &names}
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func newHandler(nodes Nodes) *Handler {
	client := func(remote string) netip.Addr {
		address, _ := netip.ParseAddrPort(remote) // that of a pipe is none
		return address.Addr()
	}
	return New(nodes, client, slog.New(slog.DiscardHandler))
}

// post posts a body and returns the status and the answer.
func post(h http.Handler, body []byte) (int, []byte) {
	r := httptest.NewRequest(http.MethodPost, "/filter", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.Bytes()
}

// filter posts a request of a scheduler and returns the result as the scheduler decodes it.
func filter(t testing.TB, h http.Handler, a *extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
	t.Helper()
	status, answer := post(h, marshal(t, a))
	if status != http.StatusOK {
		t.Fatalf("status %d: %s", status, answer)
	}
	var result extenderv1.ExtenderFilterResult
	if err := json.Unmarshal(answer, &result); err != nil {
		t.Fatalf("answer %s: %v", answer, err)
	}
	return result
}

// counted returns the results that requests had, in the order of allResults, each as often as it was counted.
func counted(h *Handler) (results []result) {
	for _, r := range allResults {
		n := int(testutil.ToFloat64(h.metrics.requests.WithLabelValues(string(r))))
		results = append(results, slices.Repeat([]result{r}, n)...)
	}
	return results
}

// nothing is a ResponseWriter that keeps nothing, and has no deadlines.
type nothing http.Header

func (n nothing) Header() http.Header            { return http.Header(n) }
func (nothing) WriteHeader(int)                  {}
func (nothing) Write(b []byte) (int, error)      { return len(b), nil }
func (nothing) SetReadDeadline(time.Time) error  { return nil }
func (nothing) SetWriteDeadline(time.Time) error { return nil }

// asker calls a handler with the same body again and again, without any other work.
type asker struct {
	body    *bytes.Reader
	request *http.Request
	writer  nothing
}

func newAsker(body []byte) *asker {
	a := &asker{body: bytes.NewReader(body), request: httptest.NewRequest(http.MethodPost, "/filter", nil), writer: nothing{}}
	a.request.Header.Set("Content-Type", "application/json")
	a.request.Body = io.NopCloser(a.body)
	return a
}

func (a *asker) ask(h http.Handler) {
	_, _ = a.body.Seek(0, io.SeekStart)
	h.ServeHTTP(a.writer, a.request)
}

func hostname(i int) string { return fmt.Sprintf("node-%05d.pool-a.cluster.example.com", i) }

// many returns the names of nodes, and a cache with them.
func many(n int, value func(int) string) (names []string, m nodeMap) {
	m = nodeMap{}
	for i := range n {
		names = append(names, hostname(i))
		m[hostname(i)] = newNode(hostname(i), value(i))
	}
	return names, m
}
