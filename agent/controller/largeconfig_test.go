package controller

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/evictd/evictd/agent/properties"
)

// TestLargeConfigMap: a ConfigMap as large as the API server accepts is read in little time and memory. One of comments
// is valid, one of unknown keys is a mistake that is told in one event.
func TestLargeConfigMap(t *testing.T) {
	comments := "percentage=40\n" + strings.Repeat("# nothing\n", properties.MaxText/10-10)
	var keys strings.Builder
	for i := 0; keys.Len() < properties.MaxText-100; i++ {
		fmt.Fprintf(&keys, "key%d=%d\n", i, i)
	}
	for name, tt := range map[string]struct {
		text     string
		problems int
	}{
		"comments": {comments, 0},
		"keys":     {keys.String(), 101},
		"too long": {comments + strings.Repeat("#", 200), 2},
	} {
		t.Run(name, func(t *testing.T) {
			_, api := testReconciler(t, &faultyDevice{}, interceptor.Funcs{}, configMap("cluster-fence-config", tt.text))
			recorded := events.NewFakeRecorder(10)
			c := &configuration{
				cached: api, namespace: "evictd", recorder: recorder{recorded}, metrics: newMetrics(api),
				log: slog.New(slog.NewTextHandler(io.Discard, nil)), changed: func(context.Context) {},
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			if _, err := c.Reconcile(t.Context(), reconcile.Request{}); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			runtime.ReadMemStats(&after)
			_, problems, _, _ := c.all()
			if len(problems) != tt.problems {
				t.Errorf("%d problems; want %d: %.300v", len(problems), tt.problems, problems)
			}
			if took > 10*time.Second || after.TotalAlloc-before.TotalAlloc > 100<<20 {
				t.Errorf("took %v and %d bytes; want less than 10 s and 100 MiB", took, after.TotalAlloc-before.TotalAlloc)
			}
			if want := min(tt.problems, 1); len(recorded.Events) != want {
				t.Errorf("%d events; want %d", len(recorded.Events), want)
			}
		})
	}
}
