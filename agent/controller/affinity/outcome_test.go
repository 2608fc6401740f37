package affinity

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/evictd/evictd/agent/affinity"
)

// status returns the text of a Status of the API server.
func status(code int, reason, message, details string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":%d,"reason":%q,"message":%q,"details":{%s}}`,
		code, reason, message, details)
}

// TestSend: one request for each eviction, whatever the answer, and the outcome of each answer. The texts are those of
// kube-apiserver 1.36.
func TestSend(t *testing.T) {
	const budget = `"causes":[{"reason":"DisruptionBudget","message":"The disruption budget web needs 2 healthy pods and has 2 currently"}]`
	for name, tt := range map[string]struct {
		code   int
		header string // Retry-After
		body   string
		want   affinity.OutcomeKind
		retry  time.Duration
	}{
		"accepted":    {201, "", `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}`, affinity.Accepted, 0},
		"budget":      {429, "", status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.", budget), affinity.Budgeted, 0},
		"new budget":  {429, "10", status(429, "TooManyRequests", "Cannot evict pod", budget+`,"retryAfterSeconds":10`), affinity.Budgeted, 10 * time.Second},
		"throttled":   {429, "7", "Too many requests, please try again later.", affinity.Throttled, 7 * time.Second},
		"two budgets": {500, "", status(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.", ""), affinity.ManyBudgets, 0},
		"other 500":   {500, "", status(500, "InternalError", "etcdserver: leader changed", ""), affinity.RequestError, 0},
		"UID, record": {409, "", status(409, "Conflict", `Operation cannot be fulfilled on Pod "web": the UID in the precondition (1) does not match the UID in record (2).`, ""), affinity.Gone, 0},
		"UID, store":  {409, "", status(409, "Conflict", "Precondition failed: UID in precondition: 1, UID in object meta: 2", ""), affinity.Gone, 0},
		"other 409":   {409, "", status(409, "Conflict", "the object has been modified; please apply your changes to the latest version", ""), affinity.RequestError, 0},
		"not there":   {404, "", status(404, "NotFound", `pods "web" not found`, ""), affinity.Gone, 0},
		"forbidden":   {403, "", status(403, "Forbidden", "namespace is being terminated", ""), affinity.Forbidden, 0},
		"unavailable": {503, "3", status(503, "ServiceUnavailable", "shutting down", `"retryAfterSeconds":3`), affinity.RequestError, 3 * time.Second},
		"gateway":     {504, "", status(504, "Timeout", "couldn't update PodDisruptionBudget due to conflicts", `"retryAfterSeconds":10`), affinity.RequestError, 10 * time.Second},
	} {
		var bodies []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body) // a short body fails the test below
			bodies = append(bodies, r.Method+" "+r.URL.String()+" "+string(b))
			if tt.header != "" {
				w.Header().Set("Retry-After", tt.header)
			}
			if tt.body[0] == '{' {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(tt.code)
			io.WriteString(w, tt.body)
		}))
		core, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
		if err != nil {
			t.Fatal(err)
		}
		e := &evictor{rest: core.CoreV1().RESTClient()}
		kind, retry := outcomeOf(e.send(t.Context(), &affinity.Pod{PodKey: affinity.PodKey{Namespace: "default", Name: "web", UID: "u"}}))
		server.Close()
		if kind != tt.want || retry != tt.retry {
			t.Errorf("%s: outcome %s, retry after %s; want %s, %s", name, kind, retry, tt.want, tt.retry)
		}
		want := `POST /api/v1/namespaces/default/pods/web/eviction {"kind":"Eviction","apiVersion":"policy/v1",` +
			`"metadata":{"name":"web","namespace":"default"},"deleteOptions":{"preconditions":{"uid":"u"}}}` + "\n"
		if len(bodies) != 1 || bodies[0] != want {
			t.Errorf("%s: requests %q; want one: %q", name, bodies, want)
		}
	}
	if kind, _ := outcomeOf(errors.New("connection refused")); kind != affinity.RequestError {
		t.Errorf("without an answer: outcome %s; want %s", kind, affinity.RequestError)
	}
}
