package cluster

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// apiServer is as much of an API server as Watch uses, over TLS, with a bearer token.
type apiServer struct {
	*httptest.Server
	mu       sync.Mutex
	token    string
	version  int
	pods     map[types.UID]*corev1.Pod
	watchers map[chan metav1.WatchEvent]bool
	lists    int
	// old answers as before Kubernetes 1.34: no list by a watch. gone answers the next
	// watch with 410, forbidden every request but that of the node with 403, and nodeForbidden that.
	old, gone, forbidden bool
	nodeForbidden        bool
	unsure               bool          // the rights can't be checked
	user                 any           // the UserInfo of a SelfSubjectReview
	name, bootID         string        // of the Node
	minor                string        // version of Kubernetes 1
	stalled              chan struct{} // if not nil, watches send nothing until it is closed
	opened               int           // counts the watches that are no list
	selectors            map[string]bool
	report               http.HandlerFunc // answers requests for orders; set before the start
}

// testBoot is the boot ID of the node.
const testBoot = "0c1b7bd4-1b7d-4d3e-9a55-5d6b1f6f8a10"

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{token: "first", name: "n1", bootID: testBoot, minor: "36", version: 1, pods: map[types.UID]*corev1.Pod{}, watchers: map[chan metav1.WatchEvent]bool{}, selectors: map[string]bool{}}
	a.Server = httptest.NewUnstartedServer(a)
	a.EnableHTTP2 = true
	a.StartTLS()
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// files writes a kubeconfig, a token and a CA, and returns the kubeconfig.
func (a *apiServer) files(t *testing.T) (kubeconfig, token, ca string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, token, ca = filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	write(t, ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Certificate().Raw})))
	write(t, token, "first")
	write(t, kubeconfig, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority":%q}}],
		"users":[{"name":"u","user":{"tokenFile":%q}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`, a.URL, ca, token))
	return kubeconfig, token, ca
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	token, old, forbidden, unsure, name, bootID, minor := a.token, a.old, a.forbidden, a.unsure, a.name, a.bootID, a.minor
	nodeForbidden, user := a.nodeForbidden, a.user
	a.mu.Unlock()
	q := r.URL.Query()
	switch {
	case r.Header.Get("Authorization") != "Bearer "+token:
		status(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	case nodeForbidden && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"):
		status(w, http.StatusForbidden, metav1.StatusReasonForbidden, `nodes "n1" is forbidden: User "u" cannot get resource "nodes"`)
	case r.URL.Path == "/api/v1/nodes/"+name && q.Get("resourceVersion") == "0":
		answer(w, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: bootID}}})
	case r.URL.Path == "/version" && unsure:
		status(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "not ready")
	case r.URL.Path == "/version":
		answer(w, map[string]string{"major": "1", "minor": minor})
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		answer(w, map[string]any{"status": map[string]bool{"allowed": true}})
	case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
		answer(w, map[string]any{"status": map[string]any{"userInfo": user}})
	case a.report != nil && r.URL.Path != "/api/v1/pods":
		a.report(w, r)
	case r.URL.Path != "/api/v1/pods":
		status(w, http.StatusNotFound, metav1.StatusReasonNotFound, "not found")
	case forbidden:
		status(w, http.StatusForbidden, metav1.StatusReasonForbidden, `pods is forbidden: User "u" cannot list resource "pods"`)
	case q.Get("watch") == "" || q.Get("watch") == "false":
		a.list(w, q.Get("fieldSelector"))
	case q.Get("sendInitialEvents") == "true" && old:
		status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
	default:
		a.watch(w, r)
	}
}

func (a *apiServer) list(w http.ResponseWriter, selector string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	a.selectors[selector] = true
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(a.version)}}
	for _, p := range a.pods {
		list.Items = append(list.Items, *p)
	}
	answer(w, list)
}

func (a *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	events, stalled := make(chan metav1.WatchEvent, 1000), a.stalled
	a.selectors[r.URL.Query().Get("fieldSelector")] = true
	if a.gone {
		a.gone = false
		a.mu.Unlock()
		status(w, http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
		return
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		a.lists++
		for _, p := range a.pods {
			events <- event(watch.Added, p)
		}
		events <- event(watch.Bookmark, &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{ResourceVersion: fmt.Sprint(a.version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}},
		})
	}
	if r.URL.Query().Get("sendInitialEvents") != "true" {
		a.opened++
	}
	a.watchers[events] = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watchers, events)
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	if stalled != nil {
		<-stalled
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case e, ok := <-events:
			if !ok || json.NewEncoder(w).Encode(e) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func event(kind watch.EventType, p *corev1.Pod) metav1.WatchEvent {
	return metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Object: p}}
}

// change stores or deletes a pod and notifies the watchers.
func (a *apiServer) change(kind watch.EventType, p *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.ResourceVersion = fmt.Sprint(a.version)
	a.pods[p.UID] = p
	if kind == watch.Deleted {
		delete(a.pods, p.UID)
	}
	for w := range a.watchers {
		w <- event(kind, p)
	}
}

// set changes the server and ends its watches.
func (a *apiServer) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	for w := range a.watchers {
		close(w)
		delete(a.watchers, w)
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}

func apiPod(uid string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: "default", Name: "web-" + uid, Labels: map[string]string{"big": strings.Repeat("x", 63)}},
		Spec:       corev1.PodSpec{NodeName: "n1", Priority: new(int32(7)), Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBestEffort},
	}
	for _, c := range change {
		c(p)
	}
	return p
}
