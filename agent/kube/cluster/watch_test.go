package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/kernel/kerneltest"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

type logged = kerneltest.Buffer

// node is a node with both programs: facts are evictd's.
type node struct {
	t     *testing.T
	facts *kube.Facts
	// orders are evictd's, and reporter is evictd-kube's side of them.
	orders   *kube.Orders
	reporter *Reporter
	log      logged
}

// start watches the pods of a node until the test ends.
func start(t *testing.T, kubeconfig, name string) *node {
	t.Helper()
	n := &node{t: t, facts: kube.NewFacts()}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&n.log, nil))
	n.orders = kube.NewOrders(kube.OrdersOptions{Lift: func(string, string) {}, Save: func() {}, Log: slog.New(slog.DiscardHandler)})
	server := &kube.Server{UID: os.Getuid(), Facts: n.facts, Orders: n.orders, Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
	feed := kube.NewFeed(name, "test", log)
	n.reporter = NewReporter(name, feed, log)
	feed.Orders = n.reporter
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() {
		if err := server.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	parts.Go(func() { feed.Run(ctx, socket) })
	parts.Go(func() { n.orders.Run(ctx) })
	parts.Go(func() { n.reporter.Run(ctx) })
	parts.Go(func() {
		Watch(ctx, Options{Kubeconfig: kubeconfig, Node: name, BootID: testBoot, Software: "test", Feed: feed, Reporter: n.reporter, Log: log})
	})
	t.Cleanup(func() {
		cancel()
		parts.Wait()
	})
	return n
}

func (n *node) until(what string, ok func(kube.Status) bool) {
	n.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s := n.facts.Status(time.Now())
		if ok(s) {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: not after 30s; status %+v, log:\n%s", what, s, n.log.String())
		}
	}
}

// wantUnconnected fails if the Reporter has an API server, of which it would ask the pods of orders.
func (n *node) wantUnconnected() {
	n.t.Helper()
	n.reporter.mu.Lock()
	defer n.reporter.mu.Unlock()
	if n.reporter.connection != nil {
		n.t.Error("the Reporter is connected; want that it waits")
	}
}

// has reports whether evictd has facts about a pod that is in the API.
func (n *node) has(uid string) bool {
	about, ok := n.facts.Describe(uid)
	return ok && !about.Gone
}

func (n *node) priority(uid string) int32 {
	p := n.facts.Specification(&evict.Pod{UID: uid, Namespace: "default", Name: "web-" + uid, Kubelet: true})
	if p == nil {
		return -1
	}
	return *p.Priority
}

func TestWatch(t *testing.T) {
	for name, old := range map[string]bool{"list by a watch": false, "list": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			a.old = old
			a.change(watch.Added, apiPod("a"))
			a.change(watch.Added, apiPod("done", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
			kubeconfig, _, _ := a.files(t)
			n := start(t, kubeconfig, "n1")
			n.until("list", func(s kube.Status) bool { return n.has("a") && s.Watching && s.Pods == 1 && !s.AsOf.IsZero() })
			if got := n.priority("a"); got != 7 {
				t.Errorf("priority = %d; want 7", got)
			}
			a.change(watch.Added, apiPod("b"))
			n.until("new pod", func(kube.Status) bool { return n.has("b") })
			a.change(watch.Modified, apiPod("b", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
			n.until("terminal pod", func(kube.Status) bool { return !n.has("b") })
			a.change(watch.Deleted, apiPod("a"))
			n.until("deleted pod", func(kube.Status) bool { return !n.has("a") })
			if strings.Contains(n.log.String(), "level=WARN") {
				t.Errorf("log:\n%s\nwant no warnings", n.log.String())
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.selectors) != 1 || !a.selectors["spec.nodeName=n1"] {
				t.Errorf("field selectors %v; want spec.nodeName=n1", a.selectors)
			}
		})
	}
}

// An API server that accepts a watch and does not send the list confirms nothing: earlier
// facts keep their age.
func TestStalledList(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.stalled = make(chan struct{})
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("watch", func(kube.Status) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.lists == 1
	})
	for began := time.Now(); time.Since(began) < time.Second; time.Sleep(10 * time.Millisecond) {
		if s := n.facts.Status(time.Now()); s.Watching || !s.AsOf.IsZero() {
			t.Fatalf("status before the list %+v; want no watch and no age", s)
		}
	}
	close(a.stalled)
	n.until("list", func(s kube.Status) bool { return s.Watching && n.has("a") })
}

// A watch that is opened and sends nothing confirms nothing.
func TestOpenedWatch(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("list", func(s kube.Status) bool { return n.has("a") && s.Watching })
	listed := time.Now()
	time.Sleep(2 * time.Second) // the reflector lists again after a shorter watch
	a.set(func() {})
	time.Sleep(kube.StateInterval + time.Second) // until evictd knows the age
	a.mu.Lock()
	opened := a.opened
	a.mu.Unlock()
	if s := n.facts.Status(time.Now()); opened == 0 || s.AsOf.After(listed.Add(time.Second)) {
		t.Errorf("after %d watches without an event: facts as of %v; want %v", opened, s.AsOf, listed)
	}
}

// A bookmark confirms the facts: without events their age would grow for as long as no pod changes.
func TestBookmark(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("list", func(s kube.Status) bool { return n.has("a") && s.Watching && !s.AsOf.IsZero() })
	time.Sleep(500 * time.Millisecond)
	before := time.Now().Add(-100 * time.Millisecond) // AsOf has the precision of the age that is sent
	a.mu.Lock()
	for w := range a.watchers {
		w <- event(watch.Bookmark, &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}})
	}
	a.mu.Unlock()
	n.until("confirmation", func(s kube.Status) bool { return s.AsOf.After(before) })
}

// A resource version that is too old, and a watch that ends, are followed by a list or
// a watch that finds what was missed.
func TestExpiredVersion(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("list", func(kube.Status) bool { return n.has("a") })
	a.mu.Lock()
	lists := a.lists
	a.mu.Unlock()
	a.set(func() {
		a.gone = true
		delete(a.pods, "a")
		a.pods["b"] = apiPod("b")
	})
	n.until("list again", func(kube.Status) bool { return n.has("b") && !n.has("a") })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lists == lists {
		t.Error("no list after 410")
	}
}

// A token that has expired is one line with its file; a new one in the file ends it.
// The facts stay.
func TestExpiredToken(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	kubeconfig, token, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("list", func(s kube.Status) bool { return n.has("a") && s.Watching })
	a.set(func() { a.token = "second" })
	n.until("error", func(s kube.Status) bool {
		return !s.Watching && strings.Contains(s.Error, "refused the credentials (401 Unauthorized): the token in "+token+" is expired or not valid; renew it")
	})
	if n.priority("a") != 7 {
		t.Error("the facts are gone")
	}
	write(t, token, "second")
	n.until("watching again", func(s kube.Status) bool { return s.Watching && n.has("a") })
	if got := strings.Count(n.log.String(), "401 Unauthorized"); got != 1 {
		t.Errorf("logged %d times; want once: %s", got, n.log.String())
	}
}

// A wrong configuration is reported as one line with file, cause and remedy, and Watch tries
// again.
func TestBadConfiguration(t *testing.T) {
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	for _, tt := range []struct {
		name, node string
		spoil      func(t *testing.T, kubeconfig, token, ca string)
		want       []string
	}{
		{"no kubeconfig", "n1", func(t *testing.T, kubeconfig, _, _ string) {
			if err := os.Remove(kubeconfig); err != nil {
				t.Fatal(err)
			}
		}, []string{"KUBECONFIG: no such file or directory", "--kubeconfig"}},
		{"broken kubeconfig", "n1", func(t *testing.T, kubeconfig, _, _ string) { write(t, kubeconfig, "{") }, []string{"kubeconfig KUBECONFIG: ", "correct it"}},
		{"empty kubeconfig", "n1", func(t *testing.T, kubeconfig, _, _ string) { write(t, kubeconfig, "") }, []string{"kubeconfig KUBECONFIG: ", "correct it"}},
		{"no token", "n1", func(t *testing.T, _, token, _ string) {
			if err := os.Remove(token); err != nil {
				t.Fatal(err)
			}
		}, []string{"TOKEN"}},
		{"wrong token", "n1", func(t *testing.T, _, token, _ string) { write(t, token, "wrong") }, []string{"401 Unauthorized", "the token in TOKEN is expired or not valid; renew it"}},
		{"no CA", "n1", func(t *testing.T, _, _, ca string) {
			if err := os.Remove(ca); err != nil {
				t.Fatal(err)
			}
		}, []string{"CA: no such file or directory"}},
		{"broken CA", "n1", func(t *testing.T, _, _, ca string) { write(t, ca, "no PEM") }, []string{"CA"}},
		{"wrong name", "n2", func(*testing.T, string, string, string) {}, []string{`knows no node "n2"`, "waits for its kubelet", "--node-name", "kubectl get nodes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kubeconfig, token, ca := a.files(t)
			before := map[string]string{}
			for _, path := range []string{kubeconfig, token, ca} {
				content, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				before[path] = string(content)
			}
			tt.spoil(t, kubeconfig, token, ca)
			n := start(t, kubeconfig, tt.node)
			n.until("error", func(s kube.Status) bool { return s.Error != "" })
			got := n.facts.Status(time.Now()).Error
			for _, want := range tt.want {
				want = strings.NewReplacer("KUBECONFIG", kubeconfig, "TOKEN", token, "CA", ca).Replace(want)
				if !strings.Contains(got, want) {
					t.Errorf("error %q; want %q in it", got, want)
				}
			}
			if strings.Contains(got, "\n") {
				t.Errorf("error %q has more than one line", got)
			}
			if tt.node != "n1" {
				return
			}
			for path, content := range before {
				write(t, path, content)
			}
			n.until("watching after the repair", func(s kube.Status) bool { return s.Watching && n.has("a") })
		})
	}
}

// A Node that is another machine is not used, as in another cluster: the pods of this one would be gone.
func TestOtherMachine(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	a.bootID = "3c2b7bd4-1b7d-4d3e-9a55-5d6b1f6f8a10"
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("error", func(s kube.Status) bool {
		return strings.Contains(s.Error, `node "n1" of API server `+a.URL+" is another machine") &&
			strings.Contains(s.Error, a.bootID) && strings.Contains(s.Error, "correct "+kubeconfig+", --node-name or BOOT_ID") && !s.Watching
	})
	n.wantUnconnected()
	var lists int
	a.set(func() { lists = a.lists })
	if n.has("a") || lists > 0 {
		t.Errorf("%d lists of the pods of another machine; want none", lists)
	}
	a.set(func() { a.bootID = testBoot })
	n.until("watching after the kubelet has corrected it", func(s kube.Status) bool { return s.Watching && n.has("a") })
}

func TestSameBoot(t *testing.T) {
	const id = "0c1b7bd4-1b7d-4d3e-9a55-5d6b1f6f8a10"
	for other, want := range map[string]bool{id: true, "0c1b7bd41b7d4d3e9a555d6b1f6f8a10": true, strings.ToUpper(id): true, id + "\n": true, "": false, id[1:]: false} {
		if got := sameBoot(id, other); got != want {
			t.Errorf("sameBoot(%q, %q) = %t; want %t", id, other, got, want)
		}
	}
}

// A node that the API server does not know yet is watched once it exists. Nothing is reported before.
func TestNodeAppears(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n2")
	n.until("error", func(s kube.Status) bool { return strings.Contains(s.Error, `knows no node "n2"`) })
	n.wantUnconnected()
	a.set(func() { a.name = "n2" })
	n.until("watching", func(s kube.Status) bool { return s.Watching && n.has("a") })
}

// A missing right is named, and used after it was granted. Without that to read the Node it is not known
// which machine that is: nothing is reported before.
func TestForbidden(t *testing.T) {
	for _, tt := range []struct {
		verb, resource string
		forbid         func(a *apiServer) *bool
		connected      bool
	}{
		{"list", "pods", func(a *apiServer) *bool { return &a.forbidden }, true},
		{"get", "nodes", func(a *apiServer) *bool { return &a.nodeForbidden }, false},
	} {
		t.Run(tt.resource, func(t *testing.T) {
			t.Parallel()
			a := newAPIServer(t)
			*tt.forbid(a) = true
			a.change(watch.Added, apiPod("a"))
			kubeconfig, _, _ := a.files(t)
			n := start(t, kubeconfig, "n1")
			n.until("error", func(s kube.Status) bool {
				return strings.Contains(s.Error, fmt.Sprintf("cannot %s resource %q", tt.verb, tt.resource)) && strings.Contains(s.Error, "ClusterRole")
			})
			if !tt.connected {
				n.wantUnconnected()
			}
			a.set(func() { *tt.forbid(a) = false })
			n.until("watching", func(s kube.Status) bool { return s.Watching && n.has("a") })
		})
	}
}

// Evictions are not reported to a Kubernetes before 1.33. Its pods are watched.
func TestOldKubernetes(t *testing.T) {
	t.Parallel()
	for _, minor := range []string{"32", "33", "33+"} {
		want := ""
		if minor == "32" {
			want = `Kubernetes "1"."32": evictd-kube reports to 1.33 and later`
		}
		wantCannotReport(t, want, func(a *apiServer) { a.minor = minor })
	}
}

// wantCannotReport checks why nothing can be reported to an API server, whose pods are watched; "" means that it can.
func wantCannotReport(t *testing.T, want string, change func(*apiServer)) {
	t.Helper()
	a := newAPIServer(t)
	change(a)
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("watching", func(s kube.Status) bool { return s.Watching && n.has("a") })
	n.until("answer about reports", func(kube.Status) bool {
		why := n.facts.CannotReport()
		return want != "" && strings.Contains(why, want) || want == why
	})
}

// With the token of a service account that does not name the node, nothing is killed: the policies would deny each
// report.
func TestTokenOfAnotherNode(t *testing.T) {
	t.Parallel()
	account := func(extra map[string][]string) map[string]any {
		return map[string]any{"username": "system:serviceaccount:evictd:evictd-kube", "extra": extra}
	}
	for _, tt := range []struct {
		user map[string]any
		want string
	}{
		{account(map[string][]string{nodeNameKey: {"n1"}}), ""},
		{account(nil), `the token of "system:serviceaccount:evictd:evictd-kube" is not bound to a node, so`},
		{account(map[string][]string{nodeNameKey: {"n2"}}), `is bound to the node "n2", not to "n1", so the policies`},
		{account(map[string][]string{nodeNameKey: {"n2", "n1"}}), `is bound to the node "n2"`},
		{map[string]any{"username": "admin"}, ""},
	} {
		wantCannotReport(t, tt.want, func(a *apiServer) { a.user = tt.user })
	}
}

// Another CA than that of the server is named with its file.
func TestWrongCA(t *testing.T) {
	t.Parallel()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection would clear client-go's cache of transports
	a := newAPIServer(t)
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, ca := a.files(t)
	right, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	write(t, ca, foreignCA)
	n := start(t, kubeconfig, "n1")
	n.until("error", func(s kube.Status) bool {
		return strings.Contains(s.Error, "is signed by an unknown authority: "+ca+" does not contain its CA; correct it")
	})
	write(t, ca, string(right))
	n.until("watching", func(s kube.Status) bool { return s.Watching && n.has("a") })

	// One that becomes wrong later counts at the next connection, and takes no facts away.
	write(t, ca, foreignCA)
	a.set(func() { a.token = "second" }) // Watch connects again
	n.until("error again", func(s kube.Status) bool {
		return !s.Watching && strings.Contains(s.Error, ca+" does not contain its CA")
	})
	if n.priority("a") != 7 {
		t.Error("the facts are gone")
	}
	write(t, ca, string(right))
	a.set(func() { a.token = "first" })
	n.until("watching again", func(s kube.Status) bool { return s.Watching && n.has("a") })
}

// foreignCA is a CA that has signed nothing.
const foreignCA = `-----BEGIN CERTIFICATE-----
MIIBOjCB7aADAgECAhQOV7YeyMljrexP9Y/j9r5kMvU9ZTAFBgMrZXAwEjEQMA4G
A1UEAwwHZm9yZWlnbjAgFw0yNjExMjIyMTA5MTNaGA8yMTI2MTAyOTIxMDkxM1ow
EjEQMA4GA1UEAwwHZm9yZWlnbjAqMAUGAytlcAMhAEMZH8HI0aeayNDNEZurGceG
Ggle+xdahWhwzHuKKnV5o1MwUTAdBgNVHQ4EFgQU8hUGP7c6GWYsQFhrCE8zJM8k
CjowHwYDVR0jBBgwFoAU8hUGP7c6GWYsQFhrCE8zJM8kCjowDwYDVR0TAQH/BAUw
AwEB/zAFBgMrZXADQQBhlyOxQtXmDaT+rp0YUTTAUSJvVHxCU/LfDuXJx54C6CxY
ojBEzZqg2ktSb5p7IXqEd1vLJzLi6fN8be2jH38A
-----END CERTIFICATE-----
`

// Facts do not depend on the check of the rights, which is repeated soon.
func TestFactsWithoutRights(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.unsure = true
	a.change(watch.Added, apiPod("a"))
	kubeconfig, _, _ := a.files(t)
	n := start(t, kubeconfig, "n1")
	n.until("list", func(s kube.Status) bool { return s.Watching && n.has("a") })
	if n.facts.CannotReport() == "" {
		t.Error("evictions can be reported before the rights are known")
	}
	began := time.Now()
	a.mu.Lock()
	a.unsure = false
	a.mu.Unlock()
	n.until("rights", func(kube.Status) bool { return n.facts.CannotReport() == "" })
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("the rights were checked again after %v; want a few seconds", d)
	}
	if lines := strings.Count(n.log.String(), "could not find out"); lines != 1 {
		t.Errorf("%d lines about the rights; want one; log:\n%s", lines, n.log.String())
	}
}

// The first answer about the rights is there before the list, if it comes within a second.
func TestRightsBeforeList(t *testing.T) {
	t.Parallel()
	a := newAPIServer(t)
	a.unsure = true
	kubeconfig, _, _ := a.files(t)
	time.AfterFunc(100*time.Millisecond, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.unsure = false
	})
	n := start(t, kubeconfig, "n1")
	n.until("list", func(s kube.Status) bool { return s.Watching })
	n.reporter.mu.Lock()
	defer n.reporter.mu.Unlock()
	if !n.reporter.mayReport {
		t.Error("listed before the rights were known")
	}
}
