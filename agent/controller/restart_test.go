package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// errKilled is what a killed controller gets of each call: no effect, no answer.
var errKilled = errors.New("the controller was killed")

// life is one process of the controller, which is killed at one of its writes and acts.
type life struct {
	// killAt is the number of the point at which it is killed: an even one is right before a write or act, an odd one
	// right after it; -1 is none.
	killAt int

	// then is what happens at that point instead, if it is not nil.
	then func()
	// late is how long after its death the command takes effect at which it is killed, zero if it was not sent.
	late time.Duration

	// yields says that it ends, too, when the fence waits for a person.
	yields bool
	// server stands between the controller and the API server, and cache is the controller's cache. Nil: there is
	// nothing between them, and the cache is never late.
	server func(client.WithWatch) client.WithWatch
	cache  client.Reader

	mu     sync.Mutex
	points []string // all that were passed
	where  string   // it was killed
	killed bool
	kill   context.CancelFunc
}

// do does a write or an act, unless the controller is killed before. Afterwards the result is lost.
func (l *life) do(what string, f func() error) error {
	if l.point("before " + what) {
		return errKilled
	}
	err := f()
	if l.point("after " + what) {
		return errKilled
	}
	return err
}

// point reports whether the controller is dead.
func (l *life) point(where string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.killed {
		return true
	}
	if len(l.points) == l.killAt {
		l.where = where
		if l.then != nil {
			l.then()
		} else {
			l.killed = true
			l.kill()
		}
	}
	l.points = append(l.points, where)
	return l.killed
}

// passed returns how many points were passed.
func (l *life) passed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.points)
}

func (l *life) dead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.killed
}

// client returns a client whose calls end with the life.
func (l *life) client(api client.WithWatch) client.WithWatch {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if l.dead() {
				return errKilled
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if l.dead() {
				return errKilled
			}
			return c.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			o.SetUID(types.UID(fmt.Sprintf("uid-%d-%d", time.Now().UnixNano(), l.passed())))
			return l.do(fmt.Sprintf("create %T", o), func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			what := fmt.Sprintf("update %T", o)
			if nf, ok := o.(*nodefence.NodeFence); ok {
				what = fmt.Sprintf("save %s/%s %s", nf.Step, nf.Status, nf.State.Phase)
			}
			return l.do(what, func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return l.do(fmt.Sprintf("patch %T", o), func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return l.do(fmt.Sprintf("delete %T", o), func() error { return c.Delete(ctx, o, opts...) })
		},
	})
}

// runResult is what a run had.
type runResult struct {
	points []string // of the last controller
	where  []string // the others were killed
}

// flow runs a whole fence with controllers that are killed one after the other at these points; the last one is not. A
// command at which one is killed takes effect late after it, if that is not zero.
func flow(t *testing.T, s *scenario, late time.Duration, killAt ...int) (o runResult) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		w, base := s.begin(t)
		go w.run(ctx)
		var l *life
		for i, at := range append(killAt, -1) {
			l = &life{killAt: at, late: late}
			live(ctx, t, w, l, base, i)
			if l.dead() {
				o.where = append(o.where, l.where)
			} else if at >= 0 {
				break // it had fewer points
			}
		}
		w.judge(t)
		o.points = l.points
		end()
		synctest.Wait()
		time.Sleep(10 * time.Minute) // what is late ends in the bubble
		if t.Failed() {
			t.Logf("%s: killed at %d, %q; late: %v", s.name, killAt, o.where, late)
		}
	})
	return o
}

// mostPasses is how often a controller may look at one node in a minute.
const mostPasses = 600

// live runs a controller until it is killed, or the fence has ended. What a killed one has in flight goes on.
func live(ctx context.Context, t *testing.T, w *world, l *life, base *reconciler, number int) {
	ctx, l.kill = context.WithCancel(ctx)
	defer l.kill()
	api := l.client(w.observed())
	var cached client.Reader = api
	if l.cache != nil {
		cached = l.cache
	}
	if l.server != nil {
		api = l.server(api)
	}
	r := &reconciler{
		cached: cached, writer: api, config: base.config, recorder: base.recorder, log: base.log, identity: fmt.Sprint("c", number),
		kdump:    base.kdump,
		observer: &observer{live: newLiveReader(api, "evictd"), leases: &leases{}, failed: &unreadable{log: base.log}},
	}
	r.remediators = &remediatorLeases{live: r.observer.live, writer: api, log: base.log}
	r.objects = remediatorObjectsOf(api)
	r.executor = testExecutor(ctx, nil)
	r.executor.open = func(_ context.Context, u *use) (device.Device, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if time.Now().Before(w.secretUntil) {
			return nil, errNoSecret
		}
		return &plug{w, l, u.method.Device}, nil
	}
	// A look at the node and the last check before an act exclude each other. Here they wait for a channel: the clock of
	// the bubble stands still while anything waits for a mutex.
	turn := make(chan struct{}, 1)
	r.executor.check = func(ctx context.Context, o *order) error {
		turn <- struct{}{}
		defer func() { <-turn }()
		return r.checkAct(ctx, o)
	}
	r.executor.objects = func(ctx context.Context, o *order) (fence.OutcomeKind, error) {
		w.mu.Lock()
		w.executed(o.fence + "/" + o.intent.ID)
		w.mu.Unlock()
		return r.actOnObjects(ctx, o)
	}
	wake := make(chan struct{}, 1)
	r.executor.done = func(string) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	backoff := firstPassBackoff
	var minute time.Time // when the passes of a minute are counted from
	passes := 0
	for deadline := time.Now().Add(3 * time.Hour); ctx.Err() == nil; {
		if passes++; time.Since(minute) >= time.Minute {
			minute, passes = time.Now(), 0
		} else if passes > mostPasses {
			t.Errorf("%d passes in %v: %+v", passes, time.Since(minute), getFence(t, w.api))
			break
		}
		turn <- struct{}{}
		result, err := r.Reconcile(ctx, request)
		<-turn
		if err != nil { // as controller-runtime does
			r.log.Error("Reconciler error", "error", err)
			result.RequeueAfter, backoff = backoff, min(2*backoff, longestPassBackoff)
		} else {
			backoff = firstPassBackoff
		}
		if w.settled(t, l) || l.yields && w.waits(10*time.Minute) {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("the fence has not ended: %+v", getFence(t, w.api))
			break
		}
		if err == nil && result.RequeueAfter == 0 {
			result.RequeueAfter = longestWait
		}
		select {
		case <-wake:
		case <-time.After(result.RequeueAfter):
		case <-ctx.Done():
		}
	}
}

// settled reports whether the fence has ended, and the Node has none of the controller's taints, and is Ready unless
// the fence may have been ended by hand.
func (w *world) settled(t *testing.T, l *life) bool {
	t.Helper()
	w.mu.Lock()
	ended := w.fence == nil || finished(w.fence) || l.yields && w.fence.State.Result != ""
	removed := w.removed
	w.mu.Unlock()
	if removed {
		return ended
	}
	if !ended {
		return false
	}
	node := getNode(t, w.api)
	if l.yields && w.fence != nil && !finished(w.fence) {
		return true // off and released: the plan does not switch it on
	}
	return !marked(node) && (ready(node) || l.yields && w.fence != nil)
}

// waits reports whether the fence has waited for a person for a time.
func (w *world) waits(age time.Duration) bool {
	return w.condition(fence.ConditionGaveUp, age) || w.condition(fence.ConditionVerificationFailed, age) ||
		w.condition(fence.ConditionNodeDidNotReturn, age)
}

// TestRestartAtEveryPoint: a controller that is killed right before or right after any write to the API server and any
// act on a device is followed by one that goes on correctly.
func TestRestartAtEveryPoint(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			points := flow(t, s, 0).points
			if len(points) < s.points {
				t.Fatalf("the flow has %d points; want at least %d", len(points), s.points)
			}
			tried := 0
			for at := range points {
				if at >= 2 && points[at] == points[at-2] && at%16 > 1 || testing.Short() && at%7 > 0 {
					continue // the same write again, of another reading
				}
				tried++
				flow(t, s, 0, at)
			}
			t.Logf("%d of %d points after %v", tried, len(points), time.Since(began).Round(time.Second))
		})
	}
}

// TestLateCommand: the command of a controller that is killed takes effect after its death: before the deadline of the
// intent, or when its successor no longer waits for it. No other command is sent meanwhile, and nothing is released
// before it was read.
func TestLateCommand(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for at, what := range flow(t, s, 0).points {
				if !strings.HasPrefix(what, "before off") && !strings.HasPrefix(what, "before on") {
					continue
				}
				flow(t, s, 45*time.Second, at)
			}
		})
	}
}

// TestRestartRepeatedly: so are several controllers that are killed one after the other.
func TestRestartRepeatedly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	all := scenarios()
	for i := 0; i < 60; i += stride(1, 12) {
		s := all[i%len(all)]
		killAt := make([]int, 2+random.IntN(6))
		for i := range killAt {
			killAt[i] = random.IntN(30)
		}
		flow(t, s, time.Duration(random.IntN(2))*45*time.Second, killAt...)
	}
}

// stride returns the distance between the points that are tried.
func stride(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}
