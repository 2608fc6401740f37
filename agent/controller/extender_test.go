package controller

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/evictd/evictd/agent/affinity/extender"
	"github.com/evictd/evictd/agent/controller/serving"
)

// TestNodeNames: the extender sees each change of the informer, and is not ready before that is complete.
func TestNodeNames(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Node{}, 0, nil)
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{})
	if err != nil {
		t.Fatal(err)
	}
	n := &nodeNames{nodes: map[string]*corev1.Node{}, synced: registration.HasSynced}
	if n.Synced() {
		t.Error("Synced() = true of an informer that has not begun; want false")
	}
	node := func(name, value string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"k": value}}}
	}
	label := func(name string) string {
		if found := n.Node(name); found != nil {
			return found.Labels["k"]
		}
		return "unknown"
	}
	for _, step := range []struct {
		change func()
		want   [2]string
	}{
		{func() { n.set(node("a", "1")); n.set(node("b", "1")) }, [2]string{"1", "1"}},
		{func() { n.set(node("a", "2")) }, [2]string{"2", "1"}},
		{func() { n.remove(node("a", "2")) }, [2]string{"unknown", "1"}},
		{func() { n.remove(cache.DeletedFinalStateUnknown{Key: "b", Obj: node("b", "1")}) }, [2]string{"unknown", "unknown"}},
		{func() { n.set("no Node"); n.remove(nil) }, [2]string{"unknown", "unknown"}},
	} {
		step.change()
		if got := [2]string{label("a"), label("b")}; got != step.want {
			t.Errorf("labels of the nodes = %v; want %v", got, step.want)
		}
	}
}

// TestExtenderAddress: the server has the extender at the address of its documentation, for bodies up to its limit.
func TestExtenderAddress(t *testing.T) {
	nodes := &nodeNames{nodes: map[string]*corev1.Node{}, synced: func() bool { return true }}
	bodies := serving.NewBodies(serving.NewMetrics(&serving.Certificate{}))
	h := webhookHandler(bodies, nil, extender.New(nodes, serving.ClientOf, slog.New(slog.DiscardHandler)), http.NotFoundHandler())
	const body = `{"Pod":{},"NodeNames":["a","b"]}`
	for _, tt := range []struct {
		path   string
		length int64
		status int
		answer string
	}{
		{"/extender/filter", int64(len(body)), http.StatusOK, `{"NodeNames":["a","b"]}`},
		{"/extender/filter", extender.MaxBody + 1, http.StatusRequestEntityTooLarge, ""},
		{"/extender/prioritize", int64(len(body)), http.StatusNotFound, ""},
	} {
		r := httptest.NewRequest(http.MethodPost, tt.path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.ContentLength = tt.length
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.answer) {
			t.Errorf("POST %s of %d bytes = %d %s; want %d %s", tt.path, tt.length, w.Code, w.Body, tt.status, tt.answer)
		}
	}
}

// meeting is a body that ends after all of its group have begun.
type meeting struct {
	io.Reader
	begun *sync.WaitGroup
	once  sync.Once
}

func (m *meeting) Read(b []byte) (int, error) {
	m.once.Do(func() { m.begun.Done(); m.begun.Wait() })
	return m.Reader.Read(b)
}

// TestTwoSchedulers: two schedulers of one host are answered at once, also with whole Nodes of 10 MiB.
func TestTwoSchedulers(t *testing.T) {
	nodes := &nodeNames{nodes: map[string]*corev1.Node{}, synced: func() bool { return true }}
	bodies := serving.NewBodies(serving.NewMetrics(&serving.Certificate{}))
	h := webhookHandler(bodies, nil, extender.New(nodes, serving.ClientOf, slog.New(slog.DiscardHandler)), http.NotFoundHandler())
	const head, tail = `{"Pod":{"metadata":{"annotations":{"evictd.io/required-during-execution":"{\"nodeSelectorTerms\":[{\"matchFields\":` +
		`[{\"key\":\"metadata.name\",\"operator\":\"In\",\"values\":[\"a\"]}]}]}"}}},"Nodes":{"items":[{"metadata":{"name":"a"}},` +
		`{"metadata":{"name":"b","annotations":{"large":"`, `"}}}]}}`
	body := head + strings.Repeat("x", 10<<20-len(head)-len(tail)) + tail
	var begun, ended sync.WaitGroup
	begun.Add(2)
	for i := range 2 {
		ended.Go(func() {
			m := &meeting{Reader: strings.NewReader(body), begun: &begun}
			defer m.once.Do(begun.Done) // a refused one does not begin
			r := httptest.NewRequest(http.MethodPost, "/extender/filter", m)
			r.Header.Set("Content-Type", "application/json")
			r.ContentLength, r.RemoteAddr = int64(len(body)), fmt.Sprint("192.0.2.1:", 1000+i)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), `{"Nodes":{"items":[{"metadata":{"name":"a"}}]}`) {
				t.Errorf("scheduler %d: %d %.200s; want node a", i, w.Code, w.Body)
			}
		})
	}
	ended.Wait()
}
