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

// withRefusedToken starts a Reporter that watches the pods with a token in its kubeconfig, which the API server then
// refuses while the watch goes on. renew puts the new one there. marks can be nil.
func withRefusedToken(t *testing.T, a *apiServer, marks *Marks) (o *orders, renew func()) {
	t.Helper()
	a.change(watch.Added, apiPod("0"))
	kubeconfig, _, ca := a.files(t)
	set := func(token string) {
		write(t, kubeconfig, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority":%q}}],
		"users":[{"name":"u","user":{"token":%q}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`, a.URL, ca, token))
	}
	set("first")
	o = &orders{t: t, api: a, connections: map[string]bool{}}
	log := slog.New(slog.NewTextHandler(&o.log, nil))
	o.Reporter = NewReporter("n1", o, log)
	o.run(Options{Kubeconfig: kubeconfig, Node: "n1", BootID: testBoot, Software: "test", Feed: kube.NewFeed("n1", "test", log), Reporter: o.Reporter, Marks: marks, Log: log})
	o.until("list", func() bool {
		o.Reporter.mu.Lock()
		defer o.Reporter.mu.Unlock()
		return len(o.pods) == 1
	})
	a.mu.Lock()
	a.token = "second"
	a.mu.Unlock()
	return o, func() { set("second") }
}

// Marks are written with credentials that were renewed while the watch went on with the old ones.
func TestMarksWithNewCredentials(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.report = (&markedNode{version: 1, annotations: map[string]string{"x": "y"}}).ServeHTTP
	reports := make(marksReports, 100)
	m := NewMarks("n1", reports, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	_, renew := withRefusedToken(t, a, m)
	m.SetMarks(&kube.NodeMarks{Number: 1, Watchdog: advertText("b", 1, true)})
	if got := reports.next(t); !strings.Contains(got, "401") {
		t.Errorf("answer %q; want that the credentials are refused", got)
	}
	renew()
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
		"Rejector that writes again": func(ctx context.Context, reload func(error)) {
			r := NewReporter("n1", &orders{}, log)
			r.connection = &connection{c, reload}
			r.SetNode(pressure(1))
			NewRejector(r, &admission{results: map[string]int{}}, log).assert(ctx, &rejection{arrival: arrival{uid: "a", namespace: "default", name: "web-a", decided: time.Now()}})
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
