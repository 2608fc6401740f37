package cluster

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
)

// An event that the API server can't create now is created later, under the same name, and one that it refuses is not
// repeated. Neither delays the event of another pod.
func TestEventIsRepeated(t *testing.T) {
	t.Parallel()
	created := make(chan struct{})
	var failures atomic.Int32
	o := startOrders(t, 3, func(_ *orders, _ int, w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPost:
			done(w)
		case strings.Contains(r.URL.Path, "/namespaces/busy/") && failures.Add(1) <= 2:
			status(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcdserver: request timed out")
		case strings.Contains(r.URL.Path, "/namespaces/busy/"):
			done(w)
			close(created)
		case strings.Contains(r.URL.Path, "/namespaces/refuses/"):
			status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "note: too long")
		default:
			done(w)
		}
	})
	for i, namespace := range []string{"busy", "refuses", "default"} {
		o.order(i, kube.StageEnded, func(k *kube.Order) { k.Namespace = namespace })
	}
	o.until("reports", func() bool {
		for i := range 3 {
			if !o.has(fmt.Sprint("order-", i), kube.AnswerReported) {
				return false
			}
		}
		return true
	})
	o.until("event", func() bool {
		select {
		case <-created:
			return true
		default:
			return false
		}
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := count(o.requests, "POST "+reasonEvicted); n != 5 {
		t.Errorf("%d requests for events; want 3 of the first pod and one of each other: %v", n, o.requests)
	}
}
