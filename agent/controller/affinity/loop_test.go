package affinity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/affinity"
)

// cluster is a loop with the objects of a cluster, during a synctest.
type cluster struct {
	t      *testing.T
	loop   *loop
	client client.Client
	// requests are the evictions that were sent, and delay is how long each takes.
	requests chan string
	delay    time.Duration
	// refusal is the Status with which each is refused, if it is set.
	refusal string
	// renews has the Leases of all nodes renewed at any time.
	renews bool
	mu     sync.Mutex
	events []string
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// newCluster has the nodes a and b, of which b has the licence. Pods without a controller are evicted.
func newCluster(t *testing.T, mode Mode) *cluster {
	t.Helper()
	c := &cluster{t: t, requests: make(chan string, 1000)}
	c.client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, inner client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := inner.Get(ctx, key, o, options...)
			if lease, ok := o.(*coordinationv1.Lease); ok && c.renews {
				lease.Spec.RenewTime = new(metav1.NowMicro())
			}
			return err
		},
	}).Build()
	core, err := kubernetes.NewForConfigAndClient(&rest.Config{QPS: -1}, &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		c.requests <- r.URL.Path
		time.Sleep(c.delay)
		c.mu.Lock()
		refusal := c.refusal
		c.mu.Unlock()
		if refusal != "" {
			var s metav1.Status
			if err := json.Unmarshal([]byte(refusal), &s); err != nil {
				return nil, err
			}
			return &http.Response{
				StatusCode: int(s.Code), Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(refusal)),
			}, nil
		}
		return &http.Response{
			StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)),
		}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	c.loop = newLoop(live{c.client}, core, newMetrics(), Options{
		Mode: mode, Log: slog.New(slog.DiscardHandler),
		Event:  func(_ runtime.Object, _ bool, reason, _, _ string) { c.event(reason) },
		Fenced: func(context.Context) (map[string]bool, error) { return nil, nil },
	})
	config := affinity.DefaultConfig()
	config.Enforce, config.EvictBare = mode == Enforce, true
	c.loop.setConfig(config)
	c.node("a", "expired")
	c.node("b", "valid")
	return c
}

// node sets a node and its label.
func (c *cluster) node(name, licence string) {
	c.t.Helper()
	n := testNode(name, licence)
	c.loop.index.setNode(n.DeepCopy())
	err := c.client.Create(c.t.Context(), n)
	if err != nil {
		err = c.client.Update(c.t.Context(), n)
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now().Add(20 * time.Second)}},
	}
	if err := errors.Join(err, client.IgnoreAlreadyExists(c.client.Create(c.t.Context(), lease))); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) event(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, reason)
}

// reported returns the reasons of the events.
func (c *cluster) reported() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// pod adds a pod without a controller.
func (c *cluster) pod(name, node string) {
	c.t.Helper()
	p := testPod(name, node, "", valid)
	p.OwnerReferences = nil
	if err := errors.Join(c.loop.index.Add(p), c.client.Create(c.t.Context(), p)); err != nil {
		c.t.Fatal(err)
	}
}

// start runs the loop until the test ends.
func (c *cluster) start() {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.loop.run(ctx)
	}()
	c.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// sent returns the evictions that were sent.
func (c *cluster) sent() string {
	synctest.Wait()
	var all []string
	for len(c.requests) > 0 {
		all = append(all, <-c.requests)
	}
	return strings.Join(all, " ")
}

const evictionOfP = "/api/v1/namespaces/default/pods/p/eviction"

func TestLoop(t *testing.T) {
	for name, tt := range map[string]struct {
		mode Mode
		run  func(c *cluster)
		// want are the evictions until a minute after the start.
		want string
	}{
		"enforce": {Enforce, func(*cluster) {}, evictionOfP},
		"observe": {Observe, func(*cluster) {}, ""},
		"label back": {Enforce, func(c *cluster) {
			time.Sleep(20 * time.Second)
			c.node("a", "valid")
		}, ""},
		// The violation ends between two decisions, and there is no other: its debounce begins again.
		"label flaps": {Enforce, func(c *cluster) {
			time.Sleep(29 * time.Second)
			c.node("a", "valid")
			c.node("a", "expired")
			time.Sleep(28 * time.Second)
		}, ""},
		// An update of the pod, such as of its status, does not begin the debounce again.
		"pod updated": {Enforce, func(c *cluster) {
			time.Sleep(29500 * time.Millisecond)
			p := testPod("p", "a", "", valid)
			p.OwnerReferences, p.Status.Conditions = nil, nil
			if err := c.loop.index.Add(p); err != nil {
				c.t.Error(err)
			}
		}, evictionOfP},
		"observed from then on": {Enforce, func(c *cluster) {
			time.Sleep(20 * time.Second)
			c.loop.setConfig(affinity.DefaultConfig())
		}, ""},
		"fences unknown": {Enforce, func(c *cluster) {
			c.loop.fenced = func(context.Context) (map[string]bool, error) { return nil, errors.New("no cache") }
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, tt.mode)
				c.pod("p", "a")
				if name == "fences unknown" {
					tt.run(c)
				}
				c.start()
				begin := time.Now()
				synctest.Wait()
				if name != "fences unknown" {
					tt.run(c)
				}
				time.Sleep(time.Until(begin.Add(58 * time.Second)))
				if got := c.sent(); got != tt.want {
					t.Errorf("evictions %q; want %q", got, tt.want)
				}
			})
		})
	}
}

// A refusal that never ends is met with ever fewer requests, and one event an hour. The budget lets go in the end.
func TestEndlessRefusals(t *testing.T) {
	for name, refusal := range map[string]string{
		"409 storm": status(409, "Conflict", "the object has been modified; please apply your changes to the latest version", ""),
		"PodDisruptionBudget": status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.",
			`"causes":[{"reason":"DisruptionBudget","message":"needs 1"}]`),
		"API server down": status(503, "ServiceUnavailable", "shutting down", ""),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, Enforce)
				c.refusal, c.renews = refusal, true
				c.pod("p", "a")
				c.start()
				time.Sleep(time.Hour)
				// 5, 10 … 160 s, and then 4 to 5 min.
				if n := len(strings.Fields(c.sent())); n < 15 || n > 22 {
					t.Errorf("%d requests in the first hour; want 15 to 22", n)
				}
				time.Sleep(2 * time.Hour)
				if n := len(strings.Fields(c.sent())); n < 24 || n > 30 {
					t.Errorf("%d requests in two hours; want one in 4 to 5 min", n)
				}
				events := 0
				for _, reason := range c.reported() {
					if reason == affinity.EventNotEvicted {
						events++
					}
				}
				if events != 3 {
					t.Errorf("%d events in three hours; want 3", events)
				}
				c.mu.Lock()
				c.refusal = ""
				c.mu.Unlock()
				time.Sleep(6 * time.Minute)
				if got := c.sent(); got != evictionOfP {
					t.Errorf("evictions when nothing refuses %q; want %q", got, evictionOfP)
				}
			})
		})
	}
}

// A watch that shows no change any more evicts no pod: what is read live decides. It is looked at ever more rarely, and
// reported.
func TestStaleWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Enforce)
		c.pod("p", "a")
		n := testNode("a", "valid")
		if err := c.client.Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		c.renews = true
		c.start()
		time.Sleep(time.Hour)
		if got := c.sent(); got != "" {
			t.Errorf("evictions %q; want none", got)
		}
		ended := testutil.ToFloat64(c.loop.metrics.evictions.WithLabelValues(string(affinity.Changed)))
		if ended < 35 || ended > 50 {
			t.Errorf("%v evictions in an hour were not sent; want about one in 80 s", ended)
		}
		if got := strings.Join(c.reported(), " "); got != affinity.EventViolated+" "+affinity.EventNotEvicted {
			t.Errorf("events %q; want the violation, and once that it is not evicted", got)
		}
	})
}

// The last violation is forgotten when it ends, not at the next one.
func TestLoopForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Enforce)
		c.pod("p", "a")
		c.start()
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(c.loop.state.Violations); n != 1 {
			t.Fatalf("%d violations; want 1", n)
		}
		c.node("a", "valid")
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(c.loop.state.Violations); n != 0 {
			t.Errorf("%d violations after the label is back; want 0", n)
		}
	})
}

// A panic ends one iteration, or one eviction, and never the process.
func TestLoopPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Enforce)
		c.pod("p", "a")
		var calls atomic.Int32
		c.loop.fenced = func(context.Context) (map[string]bool, error) {
			if calls.Add(1) == 1 {
				panic("test")
			}
			return nil, nil
		}
		c.start()
		for range 50 {
			time.Sleep(time.Second)
			c.loop.notify()
		}
		synctest.Wait()
		if n := calls.Load(); n != 1 {
			t.Errorf("%d iterations within the interval after a panic; want 1", n)
		}
		time.Sleep(time.Minute)
		if got := c.sent(); got != evictionOfP {
			t.Errorf("evictions after a panic: %q; want %q", got, evictionOfP)
		}
	})
	e := &evictor{config: func() affinity.Config { panic("test") }}
	if out := e.evict(t.Context(), &order{expires: time.Now().Add(time.Hour)}); out.Kind != affinity.RequestError || out.At.IsZero() {
		t.Errorf("outcome of a panic = %+v; want %s", out, affinity.RequestError)
	}
	w := newWorkloads(live{}, slog.New(slog.DiscardHandler)) // its client is nil
	if _, _, err := w.read(t.Context(), owner{kind: "Job"}); err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("read: %v; want the panic as an error", err)
	}
	if v := (&shape{requirement: &affinity.Requirement{}}).violates(nil, true); !v.Match {
		t.Error("a comparison that panics is a violation; want none")
	}
}

// Step takes an eviction for lost after two minutes and may order another one of the workload. An order that has waited
// is not sent then, and none waits for slow ones.
func TestOrdersExpire(t *testing.T) {
	e := &evictor{config: func() affinity.Config { t.Error("the order is checked"); return affinity.Config{} }}
	if out := e.evict(t.Context(), &order{expires: time.Now().Add(-time.Second)}); out.Kind != affinity.Changed {
		t.Errorf("outcome = %s; want %s", out.Kind, affinity.Changed)
	}
	const lost = 2 * time.Minute // outcomeTimeout of agent/affinity
	if longest := maxWait + checkTimeout + evictTimeout + maxInterval; longest >= lost {
		t.Errorf("an eviction may take %s; want less than %s", longest, lost)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Enforce)
		c.delay = time.Minute
		for i := range 60 {
			c.node(fmt.Sprint("valid-", i), "valid")
		}
		for i := range 12 {
			name := fmt.Sprint("p", i)
			c.node(name, "expired")
			c.pod(name, name)
		}
		c.start()
		time.Sleep(35 * time.Second)
		if n := len(strings.Fields(c.sent())); n != 12 {
			t.Errorf("%d evictions sent while all are slow; want 12", n)
		}
	})
}

// Annotations that do not parse can't flood the API server with events.
func TestInvalidEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Enforce)
		for i := range 500 {
			p := testPod(fmt.Sprint("p", i), "b", "set", "not a selector")
			if err := c.loop.index.Add(p); err != nil {
				t.Fatal(err)
			}
		}
		c.start()
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			c.loop.notify()
		}
		synctest.Wait()
		if n := len(c.reported()); n != maxInvalidEvents {
			t.Errorf("%d events in half a minute; want %d", n, maxInvalidEvents)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(c.reported()); n != 500 {
			t.Errorf("%d events; want one of each of 500 pods", n)
		}
	})
}

// The loop rests after a long iteration.
func TestLoopRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Enforce)
		c.pod("p", "a")
		var calls atomic.Int32
		c.loop.fenced = func(context.Context) (map[string]bool, error) {
			calls.Add(1)
			time.Sleep(500 * time.Millisecond) // the work of an iteration
			return nil, nil
		}
		c.start()
		for range 250 {
			time.Sleep(100 * time.Millisecond)
			c.loop.notify()
		}
		synctest.Wait()
		if n := calls.Load(); n < 9 || n > 11 {
			t.Errorf("%d iterations of 0.5 s in 25 s; want 10", n)
		}
	})
}
