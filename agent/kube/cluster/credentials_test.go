package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/evictd/evictd/agent/kube"
)

// writeToken writes a kubeconfig that contains a token.
func writeToken(t *testing.T, kubeconfig, server, ca, token string) {
	t.Helper()
	write(t, kubeconfig, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority":%q}}],
		"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`, server, ca, token))
}

// Marks are written with credentials that were renewed while the watch went on with the old ones.
func TestMarksWithNewCredentials(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.report = (&markedNode{version: 1, annotations: map[string]string{"x": "y"}}).ServeHTTP
	a.change(watch.Added, apiPod("0"))
	kubeconfig, _, ca := a.files(t)
	writeToken(t, kubeconfig, a.URL, ca, "first")
	o := &orders{t: t, api: a, connections: map[string]bool{}}
	log := slog.New(slog.NewTextHandler(&o.log, nil))
	o.Reporter = NewReporter("n1", o, log)
	reports := make(marksReports, 100)
	m := NewMarks("n1", reports, log)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	o.run(Options{Kubeconfig: kubeconfig, Node: "n1", BootID: testBoot, Software: "test", Feed: kube.NewFeed("n1", "test", log), Reporter: o.Reporter, Marks: m, Log: log})
	o.until("list", func() bool {
		o.Reporter.mu.Lock()
		defer o.Reporter.mu.Unlock()
		return len(o.pods) == 1
	})
	a.mu.Lock()
	a.token = "second" // the watch goes on
	a.mu.Unlock()
	m.SetMarks(&kube.NodeMarks{Number: 1, Watchdog: advertText("b", 1, true)})
	if got := reports.next(t); !strings.Contains(got, "401") {
		t.Errorf("answer %q; want that the credentials are refused", got)
	}
	writeToken(t, kubeconfig, a.URL, ca, "second")
	for deadline := time.Now().Add(30 * time.Second); ; {
		got := reports.next(t)
		if got == "1" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("answer %q 30 s after the credentials were renewed", got)
		}
	}
}

// All who make requests have the configuration read again when the API server refuses the credentials.
func TestRefusedCredentialsAreRenewed(t *testing.T) {
	t.Parallel()
	a := &apiServer{Server: httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	}))}
	t.Cleanup(a.Close)
	kubeconfig, _, _ := a.files(t)
	c, err := (&Options{Kubeconfig: kubeconfig}).connect()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for name, start := range map[string]func(context.Context, func(error)){
		"Marks": func(ctx context.Context, reload func(error)) {
			m := NewMarks("n1", make(marksReports, 100), log)
			m.connected(c, reload)
			m.SetMarks(&kube.NodeMarks{Number: 1, Watchdog: advertText("b", 1, true)})
			m.Run(ctx)
		},
		"PeerNodes": func(ctx context.Context, reload func(error)) {
			p := NewPeerNodes(nil, func() (time.Duration, error) { return time.Minute, nil }, log)
			p.connected(c, reload)
			p.Run(ctx)
		},
		"Configz": func(ctx context.Context, reload func(error)) {
			z := NewConfigz("n1", make(configzAnswers, 100), log)
			z.connected(c, reload)
			z.ReadKubelet(&kube.ReadKubelet{})
			z.Run(ctx)
		},
		"check of the rights": func(ctx context.Context, reload func(error)) {
			r := NewReporter("n1", &orders{}, log)
			r.connection = &connection{c, reload}
			r.check(ctx, r.connection)
		},
		"Rejector": func(ctx context.Context, reload func(error)) {
			r := NewReporter("n1", &orders{}, log)
			r.connection = &connection{c, reload}
			NewRejector(r, &admission{results: map[string]int{}}, log).decide(ctx, &arrival{uid: "a", decided: time.Now()})
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var reason error
		start(ctx, func(err error) {
			reason = err
			cancel()
		})
		cancel()
		if !apierrors.IsUnauthorized(reason) {
			t.Errorf("%s: configuration read again for %v; want that for a 401", name, reason)
		}
	}
}
