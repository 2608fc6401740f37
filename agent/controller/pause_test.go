package controller

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/selffence"
)

// paused pauses the fencing of a Node for an hour.
func paused(n *corev1.Node) {
	n.Annotations = map[string]string{annotationPaused: time.Now().Add(time.Hour).UTC().Format(time.RFC3339)}
}

func TestPausedUntil(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for value, tt := range map[string]struct {
		want time.Time
		err  string
	}{
		"2026-11-01T12:00:01Z":      {want: now.Add(time.Second)},
		"2026-11-01T12:30:00+01:00": {},
		"2026-11-01T13:30:00+01:00": {want: now.Add(30 * time.Minute)},
		"2026-11-01T12:00:00Z":      {},
		"2020-01-01T00:00:00Z":      {},
		"2026-11-02T12:00:00Z":      {want: now.Add(maxPause)},
		"2026-11-02T12:00:01Z":      {err: "more than 24 h ahead"},
		"2099-01-01T00:00:00Z":      {err: "more than 24 h ahead"},
		"":                          {err: "no RFC 3339 time such as 2026-11-01T13:00:00Z"},
		"true":                      {err: `has the value "true"`},
		"1h":                        {err: "no RFC 3339 time"},
		"2026-11-01 13:00:00":       {err: "no RFC 3339 time"},
	} {
		for _, annotation := range pauses {
			n := deadNode()
			n.Annotations = map[string]string{annotation: value}
			got, by, err := pausedUntil(n, now)
			if !got.Equal(tt.want) || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) ||
				err != nil && !strings.Contains(err.Error(), annotation) || (by == annotation) != !tt.want.IsZero() {
				t.Errorf("pausedUntil(%s=%q) = %v, %q, %v; want %v, %q", annotation, value, got, by, err, tt.want, tt.err)
			}
		}
	}
	if got, by, err := pausedUntil(deadNode(), now); !got.IsZero() || by != "" || err != nil {
		t.Errorf("without the annotation: %v, %q, %v", got, by, err)
	}
}

// Of two annotations the one that ends last counts, and a mistake in one does not end the other.
func TestPausedTwice(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	const planned = selffence.AnnotationPlannedShutdown
	for _, tt := range []struct {
		person, agent, by string
		want              time.Time
		err               bool
	}{
		{"2026-11-01T13:00:00Z", "2026-11-01T12:10:00Z", annotationPaused, now.Add(time.Hour), false},
		{"2026-11-01T12:05:00Z", "2026-11-01T12:10:00Z", planned, now.Add(10 * time.Minute), false},
		{"2026-11-01T11:05:00Z", "2026-11-01T12:10:00Z", planned, now.Add(10 * time.Minute), false},
		{"soon", "2026-11-01T12:10:00Z", planned, now.Add(10 * time.Minute), true},
		{"2026-11-01T13:00:00Z", "2026-12-01T12:10:00Z", annotationPaused, now.Add(time.Hour), true},
	} {
		n := deadNode()
		n.Annotations = map[string]string{annotationPaused: tt.person, planned: tt.agent}
		if got, by, err := pausedUntil(n, now); !got.Equal(tt.want) || by != tt.by || (err != nil) != tt.err {
			t.Errorf("pausedUntil(%q, %q) = %v, %q, %v; want %v, %q", tt.person, tt.agent, got, by, err, tt.want, tt.by)
		}
	}
}

// A node is fenced when its pause ends, and one whose annotation has a mistake at once.
func TestPausedNode(t *testing.T) {
	soon := func() string { return time.Now().Add(30 * time.Minute).UTC().Format(time.RFC3339) }
	for name, tt := range map[string]struct {
		annotation string
		value      func() string
		fenced     time.Duration // after the start
	}{
		"paused":           {annotationPaused, soon, 32 * time.Minute},
		"planned shutdown": {selffence.AnnotationPlannedShutdown, soon, 32 * time.Minute},
		"mistake":          {annotationPaused, func() string { return "until further notice" }, 2 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := deadNode()
			n.Annotations = map[string]string{tt.annotation: tt.value()}
			r, api := testReconciler(t, &faultyDevice{uuid: machine}, interceptor.Funcs{}, n, healthyNode("n2"), healthyNode("n3"),
				leaseOf("n1", time.Now().Add(-time.Hour)))
			reconcileFor(t, r, tt.fenced-90*time.Second)
			if getFence(t, api) != nil {
				t.Errorf("%s: fenced during the pause", name)
			}
			reconcileFor(t, r, 90*time.Second)
			if getFence(t, api) == nil {
				t.Errorf("%s: not fenced after %v", name, tt.fenced)
			}
		})
	}
}

// No fence begins of a node with the label that excludes it, until the label is removed.
func TestExcludedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := deadNode()
		n.Labels = map[string]string{labelExclude: "true"}
		r, api := testReconciler(t, &faultyDevice{uuid: machine}, interceptor.Funcs{}, n, healthyNode("n2"), healthyNode("n3"),
			leaseOf("n1", time.Now().Add(-time.Hour)))
		reconcileFor(t, r, 3*time.Minute)
		if getFence(t, api) != nil {
			t.Error("fenced although it is excluded")
		}
		n = getNode(t, api)
		n.Labels = nil
		if err := api.Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		reconcileFor(t, r, 2*time.Minute)
		if getFence(t, api) == nil {
			t.Error("not fenced after the label was removed")
		}
	})
}

// An annotation with a mistake is reported once for each value, also of a node that is Ready.
func TestPauseReported(t *testing.T) {
	n := healthyNode("n1")
	r, api := testReconciler(t, nil, interceptor.Funcs{}, n)
	recorded := events.NewFakeRecorder(10)
	r.recorder = recorder{recorded}
	set := func(value string) int {
		t.Helper()
		n := getNode(t, api)
		n.Annotations = map[string]string{annotationPaused: value}
		if err := api.Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := r.Reconcile(t.Context(), request); err != nil {
				t.Fatal(err)
			}
		}
		return len(recorded.Events)
	}
	for i, tt := range []struct {
		value string
		want  int
	}{{"", 1}, {"yes", 2}, {time.Now().Add(time.Hour).Format(time.RFC3339), 2}, {"yes", 3}} {
		if got := set(tt.value); got != tt.want {
			t.Errorf("%d: events after %q = %d; want %d", i, tt.value, got, tt.want)
		}
	}
	if e := <-recorded.Events; !strings.HasPrefix(e, "Warning FencingPauseInvalid") {
		t.Errorf("event = %q; want a warning", e)
	}
}
