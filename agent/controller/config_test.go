package controller

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func configMap(name, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "evictd", Name: name}, Data: map[string]string{"config.properties": text},
	}
}

// TestConfigurationReport: each ConfigMap with problems has one event, whose reason tells a mistake from a warning, and
// each problem is logged once.
func TestConfigurationReport(t *testing.T) {
	policy := configMap("cluster-fence-config", "grace=1s\n")
	broken := configMap("fence-config-n1", "node_name=n1\nx\ny=\n")
	_, api := testReconciler(t, &faultyDevice{}, interceptor.Funcs{}, policy, broken, configMap("kube-root-ca.crt", ""))
	recorded := events.NewFakeRecorder(10)
	var out bytes.Buffer
	c := &configuration{
		cached: api, namespace: "evictd", recorder: recorder{recorded}, metrics: newMetrics(api),
		log: slog.New(slog.NewTextHandler(&out, nil)), changed: func(context.Context) {},
	}
	read := func() {
		t.Helper()
		if _, err := c.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	read()
	read() // nothing has changed
	for _, want := range []string{"Warning FenceConfigWarning line 1: grace", "Warning FenceConfigInvalid power_management: is missing"} {
		select {
		case got := <-recorded.Events:
			if !strings.HasPrefix(got, want) || strings.Contains(want, "Invalid") && !strings.Contains(got, "\nline 3: y") {
				t.Errorf("event %q; want %q, and all problems", got, want)
			}
		default:
			t.Errorf("no event %q", want)
		}
	}
	if n := len(recorded.Events); n > 0 {
		t.Errorf("%d more events", n)
	}
	if n := strings.Count(out.String(), "grace"); n != 1 {
		t.Errorf("the problem of grace is in %d lines of the log; want 1:\n%s", n, &out)
	}
	if n := testutil.ToFloat64(c.metrics.configProblems); n < 2 {
		t.Errorf("evictd_fence_config_problems %v; want all mistakes", n)
	}
	for _, o := range []client.Object{policy, broken} {
		if err := api.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if !strings.Contains(out.String(), "no problems any more") || testutil.ToFloat64(c.metrics.configProblems) != 0 {
		t.Errorf("log without problems:\n%s", &out)
	}
}
