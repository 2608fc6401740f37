package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// server is an API server with a fault for a while.
type server struct {
	from, until time.Time
	// answer does a request, or what the fault has in place of it. carryOut does it; its context is never done.
	answer func(ctx context.Context, verb, kind string, carryOut func() error) error

	mu   sync.Mutex
	seen map[string]int // requests during the fault, such as "get Node"
}

// do does a request.
func (s *server) do(ctx context.Context, verb string, o any, carryOut func() error) error {
	if now := time.Now(); now.Before(s.from) || now.After(s.until) {
		return carryOut()
	}
	name := fmt.Sprintf("%T", o)
	kind := strings.TrimSuffix(name[strings.LastIndex(name, ".")+1:], "List")
	s.mu.Lock()
	s.seen[verb+" "+kind]++
	s.mu.Unlock()
	return s.answer(ctx, verb, kind, carryOut)
}

// client returns a client of the server.
func (s *server) client(api client.WithWatch) client.WithWatch {
	s.seen = map[string]int{}
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return s.do(ctx, "get", o, func() error { return c.Get(context.WithoutCancel(ctx), key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return s.do(ctx, "list", list, func() error { return c.List(context.WithoutCancel(ctx), list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return s.do(ctx, "create", o, func() error { return c.Create(context.WithoutCancel(ctx), o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return s.do(ctx, "update", o, func() error { return c.Update(context.WithoutCancel(ctx), o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return s.do(ctx, "patch", o, func() error { return c.Patch(context.WithoutCancel(ctx), o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return s.do(ctx, "delete", o, func() error { return c.Delete(context.WithoutCancel(ctx), o, opts...) })
		},
	})
}

// writes reports whether a verb is that of a write.
func writes(verb string) bool { return verb != "get" && verb != "list" }

// refusing is a fault in which requests are not carried out.
func refusing(err func(verb, kind string) error) func(context.Context, string, string, func() error) error {
	return func(_ context.Context, verb, kind string, carryOut func() error) error {
		if err := err(verb, kind); err != nil {
			return err
		}
		return carryOut()
	}
}

func throttled(string, string) error {
	return apierrors.NewTooManyRequests("the server has received too many requests", 1)
}

func refusedConnection(string, string) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

// conflicting refuses writes as the API server does to one that is late: with 422 if it is a JSON Patch.
func conflicting(verb, kind string) error {
	switch {
	case verb == "patch":
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", corev1.Resource("nodes"), "n1", "", 0, false)
	case writes(verb):
		return apierrors.NewConflict(corev1.Resource(kind), "n1", errors.New("the object has been modified"))
	}
	return nil
}

// unanswered carries writes out and answers with a timeout.
func unanswered(_ context.Context, verb, _ string, carryOut func() error) error {
	err := carryOut()
	if writes(verb) && err == nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	return err
}

// lateWrites carries writes out 9 s after it has answered with a timeout.
func lateWrites(_ context.Context, verb, _ string, carryOut func() error) error {
	if !writes(verb) {
		return carryOut()
	}
	go func() {
		time.Sleep(9 * time.Second)
		_ = carryOut() // it fails if what it changes was changed meanwhile
	}()
	return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
}

var serverFaults = map[string]func(context.Context, string, string, func() error) error{
	"away":                  refusing(func(string, string) error { return unavailable() }),
	"no connection":         refusing(refusedConnection),
	"429":                   refusing(throttled),
	"409":                   refusing(conflicting),
	"writes, but times out": unanswered,
	"writes late":           lateWrites,
}

// TestServerFaults: an API server that is away, overloaded or refuses writes, from any time of a fence on, has nothing
// released that runs and nothing done twice, and the node recovers when the fault is over.
func TestServerFaults(t *testing.T) {
	for name, answer := range serverFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A fence begins after a minute. Without isolation its machine is off, released and on within 40 s.
			for at := 50 * time.Second; at < 110*time.Second; at += time.Duration(stride(5, 17)) * time.Second {
				faulty(t, scenarios()[0], &server{answer: answer}, at, 5*time.Minute, nil)
			}
			for at := 50 * time.Second; at < 8*time.Minute; at += time.Duration(stride(53, 163)) * time.Second {
				faulty(t, scenarios()[1], &server{answer: answer}, at, 5*time.Minute, nil)
			}
		})
	}
}

// faulty runs a whole fence with an API server that has a fault from a time after the beginning on. It returns the log
// of the time of the fault.
func faulty(t *testing.T, s *scenario, api *server, from, lasts time.Duration, change func(*world, *life)) string {
	var log strings.Builder
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		w, base := s.begin(t)
		w.moved = true // a write that the controller takes for failed may have been done
		if err := w.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: remediatorNamespace}}); err != nil {
			t.Fatal(err)
		}
		api.from = time.Now().Add(from)
		api.until = api.from.Add(lasts)
		base.log = slog.New(slog.NewTextHandler(&during{api: api, text: &log}, nil))
		l := &life{killAt: -1, server: api.client}
		l.cache = l.client(w.api)
		if change != nil {
			change(w, l)
		}
		go w.run(ctx)
		live(ctx, t, w, l, base, 0)
		w.judge(t)
		end()
		synctest.Wait()
		time.Sleep(10 * time.Minute)
		if t.Failed() {
			t.Logf("%s: fault after %v", s.name, from)
		}
	})
	return log.String()
}

// during keeps what is written during a fault.
type during struct {
	api *server

	mu   sync.Mutex
	text *strings.Builder
}

func (d *during) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); !now.Before(d.api.from) && now.Before(d.api.until) {
		d.text.Write(b)
	}
	return len(b), nil
}

// TestServerForbids: with each right of the account missing for a while, nothing is released that runs, the log says
// what is refused, and the node recovers when the right is back.
func TestServerForbids(t *testing.T) {
	used := map[string]int{}
	for _, s := range scenarios()[1:3] {
		api := &server{answer: refusing(func(string, string) error { return nil })}
		faulty(t, s, api, 0, time.Hour, nil)
		maps.Copy(used, api.seen)
	}
	// The Leases that are written are those of the remediators.
	want := []string{
		"create Lease", "create NodeFence", "delete Lease", "delete Pod", "delete VolumeAttachment", "get Lease", "get Node",
		"get NodeFence", "get PersistentVolume", "get PersistentVolumeClaim", "list Lease", "list NodeFence", "list Pod",
		"list VolumeAttachment", "patch Node", "update Lease", "update NodeFence",
	}
	if got := slices.Sorted(maps.Keys(used)); !slices.Equal(got, want) {
		t.Fatalf("requests of a fence: %q; want %q", got, want)
	}
	for _, request := range want {
		t.Run(request, func(t *testing.T) {
			t.Parallel()
			refused := 0
			for _, s := range scenarios()[1:3] {
				for from := time.Duration(0); from < 8*time.Minute; from += time.Duration(stride(163, 1000)) * time.Second {
					refused += forbidden(t, s, request, from)
				}
			}
			if refused == 0 {
				t.Error("no request was refused")
			}
		})
	}
}

// forbidden runs a whole fence without a right for 10 minutes, and returns how many requests were refused.
func forbidden(t *testing.T, s *scenario, request string, from time.Duration) int {
	t.Helper()
	verb, kind, _ := strings.Cut(request, " ")
	api := &server{answer: refusing(func(v, k string) error {
		if v != verb || k != kind {
			return nil
		}
		return apierrors.NewForbidden(corev1.Resource(strings.ToLower(kind)+"s"), "n1", errors.New("no right to "+verb))
	})}
	var change func(*world, *life)
	if request == "patch Node" {
		// The node need not be uncordoned for its recovery. Here a person does it.
		change = func(w *world, _ *life) { w.each = uncordonedByHand(w.each) }
	}
	log := faulty(t, s, api, from, 10*time.Minute, change)
	// Later on a read that is refused may concern nothing that is still to be done.
	refused := api.seen[request]
	if from == 0 && refused > 0 && !strings.Contains(log, "no right to "+verb) {
		t.Errorf("%s: the log does not say what is refused:\n%s", s.name, log)
	}
	return refused
}

// uncordonedByHand has a person uncordon a node that has recovered.
func uncordonedByHand(each func(context.Context, *world)) func(context.Context, *world) {
	return func(ctx context.Context, w *world) {
		if each != nil {
			each(ctx, w)
		}
		w.mu.Lock()
		ended := w.fence != nil && w.fence.State.Result == fence.Recovered
		w.mu.Unlock()
		if ended {
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
				`{"metadata":{"annotations":{%q:null}},"spec":{"unschedulable":null}}`, annotationCordon))
			if err := w.api.Patch(ctx, deadNode(), patch); err != nil {
				w.t.Errorf("uncordon: %v", err)
			}
		}
	}
}

// lateCache is a cache whose watch is late: it has the Nodes and NodeFences as they were a minute ago.
type lateCache struct {
	client.Reader // of the present

	mu     sync.Mutex
	copies []lateCopy // one for each second
}

type lateCopy struct {
	nodes  corev1.NodeList
	fences nodefence.NodeFenceList
}

// copy takes a copy of the present, and forgets those that are older than a minute.
func (c *lateCache) copy(ctx context.Context, w *world) {
	var now lateCopy
	if err := errors.Join(c.Reader.List(ctx, &now.nodes), c.Reader.List(ctx, &now.fences)); err != nil {
		w.t.Errorf("copy for the cache: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.copies = append(c.copies, now); len(c.copies) > 60 {
		c.copies = c.copies[1:]
	}
}

func (c *lateCache) oldest() *lateCopy {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.copies) == 0 {
		return &lateCopy{}
	}
	return &c.copies[0]
}

func (c *lateCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	old := c.oldest()
	switch o := o.(type) {
	case *corev1.Node:
		for i := range old.nodes.Items {
			if old.nodes.Items[i].Name == key.Name {
				old.nodes.Items[i].DeepCopyInto(o)
				return nil
			}
		}
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	case *nodefence.NodeFence:
		for i := range old.fences.Items {
			if old.fences.Items[i].Name == key.Name {
				old.fences.Items[i].DeepCopyInto(o)
				return nil
			}
		}
		return apierrors.NewNotFound(corev1.Resource("nodefences"), key.Name)
	}
	return c.Reader.Get(ctx, key, o, opts...)
}

func (c *lateCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch list := list.(type) {
	case *corev1.NodeList:
		c.oldest().nodes.DeepCopyInto(list)
		return nil
	case *nodefence.NodeFenceList:
		c.oldest().fences.DeepCopyInto(list)
		return nil
	}
	return c.Reader.List(ctx, list, opts...)
}

// TestLateWatch: a watch that is late by a minute releases nothing that runs, and the node recovers.
func TestLateWatch(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			faulty(t, s, &server{answer: unanswered}, 24*time.Hour, 0, func(w *world, l *life) {
				late := &lateCache{Reader: w.api}
				l.cache = late
				each := w.each
				w.each = func(ctx context.Context, w *world) {
					late.copy(ctx, w)
					if each != nil {
						each(ctx, w)
					}
				}
			})
		})
	}
}
