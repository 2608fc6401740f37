package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/selffence"
)

func advertText(boot string, sequence uint64, armed bool) string {
	return selffence.Advert{Version: 1, BootID: boot, Sequence: sequence, Armed: armed}.String()
}

// patchText shows a patch without the values of adverts.
func patchText(patch []patchOperation) string {
	var parts []string
	for _, p := range patch {
		value := fmt.Sprint(p.Value)
		var a struct {
			Sequence uint64
			Armed    bool
		}
		if json.Unmarshal([]byte(value), &a) == nil && a.Sequence > 0 {
			value = fmt.Sprintf("%d/%t", a.Sequence, a.Armed)
		}
		parts = append(parts, strings.TrimSpace(p.Op+" "+strings.TrimPrefix(p.Path, "/metadata/")+" "+strings.Replace(value, "<nil>", "", 1)))
	}
	return strings.Join(parts, "; ")
}

func TestMarksChange(t *testing.T) {
	const watchdog, shutdown = "evictd.io/watchdog", "evictd.io/planned-shutdown"
	node := func(annotations map[string]string) *marksObject {
		return newMarksObject(&metav1.ObjectMeta{UID: "u", ResourceVersion: "7", Annotations: annotations})
	}
	armed, withdrawn := &kube.NodeMarks{Number: 5, Watchdog: advertText("b", 5, true)}, &kube.NodeMarks{Number: 5, Watchdog: advertText("b", 5, false)}
	preparing := &kube.NodeMarks{Number: 5, Watchdog: selffence.Advert{Version: 1, BootID: "b", Sequence: 5, TimeoutSeconds: 60}.String()}
	for _, test := range []struct {
		name string
		node *marksObject
		want *kube.NodeMarks
		text string
		err  error
	}{
		{"first", node(map[string]string{"x": "y"}), armed, "test uid u; test resourceVersion 7; add annotations/evictd.io~1watchdog 5/true", nil},
		{"first annotation", node(nil), armed, "test uid u; test resourceVersion 7; add annotations map[]; add annotations/evictd.io~1watchdog 5/true", nil},
		{"first after a write", &marksObject{uid: "u", annotated: true}, armed, "", errUnknownVersion},
		{"renewed", node(map[string]string{watchdog: advertText("b", 4, true)}), armed,
			"test uid u; test annotations/evictd.io~1watchdog 4/true; replace annotations/evictd.io~1watchdog 5/true", nil},
		{"withdrawn", node(map[string]string{watchdog: advertText("b", 4, true)}), withdrawn,
			"test uid u; test annotations/evictd.io~1watchdog 4/true; replace annotations/evictd.io~1watchdog 5/false", nil},
		{"nothing to withdraw", node(nil), withdrawn, "", nil},
		{"before it is armed", node(map[string]string{"x": "y"}), preparing, "test uid u; test resourceVersion 7; add annotations/evictd.io~1watchdog 5/false", nil},
		{"of another boot", node(map[string]string{watchdog: advertText("a", 9, true)}), withdrawn,
			"test uid u; test annotations/evictd.io~1watchdog 9/true; replace annotations/evictd.io~1watchdog 5/false", nil},
		{"not valid", node(map[string]string{watchdog: "x"}), withdrawn,
			"test uid u; test annotations/evictd.io~1watchdog x; replace annotations/evictd.io~1watchdog 5/false", nil},
		{"empty", node(map[string]string{watchdog: ""}), armed,
			"test uid u; test annotations/evictd.io~1watchdog; replace annotations/evictd.io~1watchdog 5/true", nil},
		{"the same", node(map[string]string{watchdog: armed.Watchdog}), armed, "", nil},
		{"of a later session", node(map[string]string{watchdog: advertText("b", 6, false)}), armed, "", errNewerAdvert},
		{"shutdown", node(nil), &kube.NodeMarks{Number: 5, Watchdog: withdrawn.Watchdog, PlannedShutdown: "t"},
			"test uid u; test resourceVersion 7; add annotations map[]; add annotations/evictd.io~1planned-shutdown t", nil},
		{"no shutdown", node(map[string]string{shutdown: "t"}), withdrawn,
			"test uid u; test annotations/evictd.io~1planned-shutdown t; remove annotations/evictd.io~1planned-shutdown", nil},
	} {
		patch, after, err := test.node.change(test.want)
		if got := patchText(patch); got != test.text || !errors.Is(err, test.err) {
			t.Errorf("%s: change = %q, %v; want %q, %v", test.name, got, err, test.text, test.err)
		}
		if err == nil && !after.has(test.want) {
			t.Errorf("%s: the Node lacks marks afterwards: %v", test.name, after.marks)
		}
	}
	if _, _, err := node(nil).change(&kube.NodeMarks{Number: 1, Watchdog: "x"}); err == nil {
		t.Error("an advert that is not valid is written")
	}
}

// markedNode is a Node in an API server that applies JSON patches of annotations.
type markedNode struct {
	mu          sync.Mutex
	version     int
	annotations map[string]string
	requests    []string
	// before is called before each request; it may answer it.
	before func(w http.ResponseWriter, r *http.Request, n int) (answered bool)
}

func (m *markedNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, r.Method)
	if m.before != nil && m.before(w, r, len(m.requests)) {
		return
	}
	object := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "n1", UID: "u", ResourceVersion: fmt.Sprint(m.version), Annotations: m.annotations}
	}
	if r.Method == http.MethodPatch {
		var patch []struct{ Op, Path, Value string }
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
			return
		}
		for _, p := range patch {
			key := strings.ReplaceAll(strings.TrimPrefix(p.Path, "/metadata/annotations/"), "~1", "/")
			current, tests := m.annotations[key], p.Op == "test"
			switch p.Path {
			case "/metadata/uid":
				current = "u"
			case "/metadata/resourceVersion":
				current = fmt.Sprint(m.version)
			default:
				if p.Op == "add" || p.Op == "replace" {
					m.annotations[key] = p.Value
				}
			}
			if tests && current != p.Value {
				status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "the test failed")
				return
			}
		}
		m.version++
	}
	answer(w, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: object()})
}

// marksReports are the answers that evictd gets.
type marksReports chan *kube.MarksReport

func (m marksReports) ReportMarks(r *kube.MarksReport) { m <- r }

// runMarks runs Marks against a server.
func runMarks(t *testing.T, node *markedNode) (*Marks, marksReports) {
	t.Helper()
	a := &apiServer{Server: httptest.NewTLSServer(node)}
	t.Cleanup(a.Close)
	reports := make(marksReports, 100)
	m := NewMarks("n1", reports, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	kubeconfig, _, _ := a.files(t)
	c, err := (&Options{Kubeconfig: kubeconfig}).connect()
	if err != nil {
		t.Fatal(err)
	}
	m.connected(c, func(error) {})
	return m, reports
}

// next returns the next answer as text.
func (m marksReports) next(t *testing.T) string {
	t.Helper()
	select {
	case r := <-m:
		return strings.TrimSpace(fmt.Sprint(r.Number, " ", r.Why))
	case <-time.After(time.Minute):
		t.Fatal("no answer after a minute")
		return ""
	}
}

func (m *markedNode) watchdog() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.annotations[selffence.AnnotationWatchdog]
}

func (m *markedNode) takeRequests() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.requests = nil }()
	return strings.Join(m.requests, " ")
}

func TestMarksAreWritten(t *testing.T) {
	t.Parallel()
	node := &markedNode{version: 1, annotations: map[string]string{"x": "y"}}
	m, reports := runMarks(t, node)
	for _, step := range []struct {
		want               *kube.NodeMarks
		requests, watchdog string
	}{
		// A withdrawal of nothing is accepted by a read.
		{&kube.NodeMarks{Number: 1, Watchdog: advertText("b", 1, false)}, "GET", ""},
		{&kube.NodeMarks{Number: 2, Watchdog: advertText("b", 2, true)}, "PATCH", advertText("b", 2, true)},
		{&kube.NodeMarks{Number: 3, Watchdog: advertText("b", 3, true)}, "PATCH", advertText("b", 3, true)},
		// Another session asks for the same.
		{&kube.NodeMarks{Number: 3, Watchdog: advertText("b", 3, true)}, "GET", advertText("b", 3, true)},
		{&kube.NodeMarks{Number: 4, Watchdog: advertText("b", 4, false)}, "PATCH", advertText("b", 4, false)},
		{&kube.NodeMarks{Number: 5, Watchdog: advertText("b", 5, false), PlannedShutdown: "2026-03-01T09:00:00Z"}, "GET PATCH", advertText("b", 5, false)},
	} {
		m.SetMarks(step.want)
		if got, want := reports.next(t), fmt.Sprint(step.want.Number); got != want {
			t.Errorf("answer = %q; want %q", got, want)
		}
		if requests, text := node.takeRequests(), node.watchdog(); requests != step.requests || text != step.watchdog {
			t.Errorf("%d: requests %q, annotation %q; want %q, %q", step.want.Number, requests, text, step.requests, step.watchdog)
		}
	}
}

// What another client changes between the read and the write is seen, and a newer advert stays.
func TestMarksRaces(t *testing.T) {
	t.Parallel()
	node := &markedNode{version: 1, annotations: map[string]string{selffence.AnnotationWatchdog: advertText("b", 2, true)}}
	m, reports := runMarks(t, node)
	m.SetMarks(&kube.NodeMarks{Number: 3, Watchdog: advertText("b", 3, true)})
	if got := reports.next(t); got != "3" {
		t.Fatalf("answer = %q; want 3", got)
	}
	node.mu.Lock()
	node.annotations[selffence.AnnotationWatchdog] = advertText("b", 9, false)
	node.mu.Unlock()
	m.SetMarks(&kube.NodeMarks{Number: 4, Watchdog: advertText("b", 4, true)})
	if got := reports.next(t); !strings.HasPrefix(got, "4 the Node has a newer advert") {
		t.Errorf("answer = %q; want that there is a newer advert", got)
	}
	m.SetMarks(nil)
	if got := node.watchdog(); got != advertText("b", 9, false) {
		t.Errorf("annotation = %q; want the newer one", got)
	}
}

// An answer that is lost is not an acceptance, and after the session nothing is written.
func TestMarksFailures(t *testing.T) {
	t.Parallel()
	node := &markedNode{version: 1, annotations: map[string]string{selffence.AnnotationWatchdog: advertText("b", 1, true)}}
	node.before = func(w http.ResponseWriter, r *http.Request, n int) bool {
		switch {
		case r.Method == http.MethodPatch && n == 2: // carried out, without an answer
			node.annotations[selffence.AnnotationWatchdog] = advertText("b", 2, true)
			status(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "away")
			return true
		case n > 2 && n <= 4:
			status(w, http.StatusForbidden, metav1.StatusReasonForbidden, "may not")
			return true
		}
		return false
	}
	m, reports := runMarks(t, node)
	m.SetMarks(&kube.NodeMarks{Number: 2, Watchdog: advertText("b", 2, true)})
	for _, want := range []string{"2 API server", "2 the user of evictd-kube may not patch nodes", "2 the user of evictd-kube may not patch nodes", "2"} {
		if got := reports.next(t); !strings.HasPrefix(got, want) || want == "2" && got != want {
			t.Errorf("answer = %q; want %q", got, want)
		}
	}
	node.takeRequests()
	m.SetMarks(nil)
	m.notify()
	if got := node.takeRequests(); got != "" {
		t.Errorf("requests after the session: %s", got)
	}
}

func TestMarksDrain(t *testing.T) {
	m := NewMarks("n1", make(marksReports, 10), slog.New(slog.DiscardHandler))
	expired, cancel := context.WithCancel(t.Context())
	cancel()
	armed := &kube.NodeMarks{Number: 2, Watchdog: advertText("b", 2, true)}
	withdrawn := &kube.NodeMarks{Number: 3, Watchdog: advertText("b", 3, false)}
	for _, test := range []struct {
		want, written *kube.NodeMarks
		advertised    bool
	}{{nil, nil, false}, {armed, nil, true}, {armed, armed, true}, {withdrawn, armed, true}, {withdrawn, withdrawn, false}} {
		m.want, m.written = test.want, test.written
		if got := m.advertised(); got != test.advertised {
			t.Errorf("with %v, written %v: advertised = %t; want %t", test.want, test.written, got, test.advertised)
		}
		if m.Drain(expired); !test.advertised {
			m.Drain(t.Context())
		}
	}
}
