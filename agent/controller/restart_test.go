package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
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

	mu     sync.Mutex
	points int
	where  string
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
	if l.points == l.killAt {
		l.where = where
		if l.then != nil {
			l.then()
		} else {
			l.killed = true
			l.kill()
		}
	}
	l.points++
	return l.killed
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
			o.SetUID(types.UID(fmt.Sprintf("uid-%d-%d", time.Now().UnixNano(), l.points)))
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

// host is the machine of n1 with its BMC, its kubelet, and the attach/detach controller.
type host struct {
	t   *testing.T
	api client.WithWatch

	mu       sync.Mutex
	on       bool
	boots    int
	bootedAt time.Time
	offs     []string // ids of the intents, in order
	ons      int
}

// plug is the device as one life of the controller uses it.
type plug struct {
	*host
	life *life
	id   func() string
}

func (p *plug) Status(context.Context) (fence.Power, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.life.dead():
		return "", errKilled
	case p.on:
		return fence.PowerOn, nil
	}
	return fence.PowerOff, nil
}

func (p *plug) Off(context.Context) error {
	return p.life.do("off", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.on = false
		p.offs = append(p.offs, p.id())
		return nil
	})
}

func (p *plug) On(context.Context) error {
	return p.life.do("on", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.on {
			p.on, p.bootedAt = true, time.Now()
			p.boots++
		}
		p.ons++
		return nil
	})
}

func (p *plug) UUID(context.Context) (string, error) { return machine, nil }

// run is what happens around the controller: a machine that was switched on is Ready 30 s later and renews its Lease,
// and the volumes of a node that is out of service are detached, all without a look at the controller.
func (h *host) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		h.mu.Lock()
		on, booted, boot := h.on, !h.bootedAt.IsZero() && time.Since(h.bootedAt) > 30*time.Second, fmt.Sprint("boot", h.boots+1)
		h.mu.Unlock()
		node := &corev1.Node{}
		if err := h.api.Get(ctx, request.NamespacedName, node); err != nil {
			h.t.Errorf("read the Node: %v", err)
			return
		}
		if taintIndex(node, &outOfService) >= 0 {
			if on {
				h.t.Errorf("the Node is out of service, and its machine is on")
				return
			}
			h.detach(ctx)
		}
		if on && booted {
			h.beat(ctx, node, boot)
		}
	}
}

// detach deletes the VolumeAttachment of a node without pods.
func (h *host) detach(ctx context.Context) {
	pods := &corev1.PodList{}
	if err := h.api.List(ctx, pods); err != nil {
		h.t.Errorf("list pods: %v", err)
	}
	if len(pods.Items) > 0 {
		return
	}
	err := h.api.Delete(ctx, attachment("volume", "n1", "pv"))
	if err != nil && !apierrors.IsNotFound(err) {
		h.t.Errorf("detach: %v", err)
	}
}

// beat renews the Lease and the status of the Node.
func (h *host) beat(ctx context.Context, node *corev1.Node, boot string) {
	lease := &coordinationv1.Lease{}
	if err := h.api.Get(ctx, types.NamespacedName{Namespace: leaseNamespace, Name: "n1"}, lease); err != nil {
		h.t.Errorf("read the Lease: %v", err)
		return
	}
	if time.Since(lease.Spec.RenewTime.Time) >= 10*time.Second {
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		if err := h.api.Update(ctx, lease); err != nil {
			h.t.Errorf("renew the Lease: %v", err)
		}
	}
	if node.Status.NodeInfo.BootID != boot {
		node.Status.NodeInfo.BootID = boot
		node.Status.Conditions[0].Status = corev1.ConditionTrue
		if err := h.api.Status().Update(ctx, node); err != nil {
			h.t.Errorf("update the Node: %v", err)
		}
	}
}

// flow runs a whole fence with controllers that are killed one after the other at these points; the last one is not. It
// returns how many points the last one had, and where the others were killed.
func flow(t *testing.T, killAt ...int) (points int, where []string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		defer end()
		h, base := newHost(ctx, t)
		var l *life
		for i, at := range append(killAt, -1) {
			l = &life{killAt: at}
			live(ctx, t, h, l, base, i)
			if l.dead() {
				where = append(where, l.where)
			} else if at >= 0 {
				break // it had fewer points
			}
		}
		h.judge(t)
		points = l.points
		end()
		synctest.Wait()
	})
	return points, where
}

// newHost returns a host whose Lease is not renewed, and the reconciler that the controllers are copies of.
func newHost(ctx context.Context, t *testing.T) (*host, *reconciler) {
	t.Helper()
	base, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), healthyNode("n2"), healthyNode("n3"),
		leaseOf("n1", time.Now().Add(-time.Hour)), pod("db-0", "StatefulSet", nil), attachment("volume", "n1", "pv"))
	on := offMethod()
	on.Name, on.Action, on.MustSuccess = "bmc-on", fence.On, false
	plan := testPlan()
	plan.PowerManagement[0].Methods = append(plan.PowerManagement[0].Methods, on)
	base.config.config.Plans["n1"] = plan
	h := &host{t: t, api: api.(client.WithWatch), on: true}
	go h.run(ctx)
	return h, base
}

// live runs a controller until it is killed, or the fence has ended.
func live(ctx context.Context, t *testing.T, h *host, l *life, base *reconciler, number int) {
	ctx, l.kill = context.WithCancel(ctx)
	defer l.kill()
	api := l.client(h.api)
	r := &reconciler{
		cached: api, writer: api, config: base.config, recorder: base.recorder, log: base.log, identity: fmt.Sprint("c", number),
		observer: &observer{live: newLiveReader(api, "evictd"), leases: &leases{}, failed: &unreadable{log: base.log}},
	}
	r.remediators = &remediatorLeases{live: r.observer.live, writer: api, log: base.log}
	d := &plug{host: h, life: l}
	r.executor = testExecutor(ctx, d)
	r.executor.check = r.checkAct
	d.id = func() string {
		nf := getFence(t, h.api)
		if nf == nil || nf.State.Intent == nil {
			if l.then == nil { // else it may have been deleted after the last look at it
				t.Error("the machine is switched off without a saved intent")
			}
			return fmt.Sprint("none at ", time.Now())
		}
		return string(nf.UID) + "/" + nf.State.Intent.ID
	}
	wake := make(chan struct{}, 1)
	r.executor.done = func(string) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for deadline := time.Now().Add(2 * time.Hour); ctx.Err() == nil; {
		result, err := r.Reconcile(ctx, request)
		if err != nil {
			result.RequeueAfter = firstPassBackoff
		}
		if h.settled(t) {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("the fence has not ended: %+v", getFence(t, h.api))
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
	l.kill()
	r.executor.running.Wait()
}

// settled reports whether the fence has ended, and the Node is Ready and has none of the controller's taints.
func (h *host) settled(t *testing.T) bool {
	t.Helper()
	nf, node := getFence(t, h.api), getNode(t, h.api)
	return (nf == nil || finished(nf)) && !marked(node) && ready(node)
}

// judge fails the test unless the node has recovered from one fence, and no intent was executed twice.
func (h *host) judge(t *testing.T) {
	t.Helper()
	if nf := getFence(t, h.api); nf == nil || nf.State.Result != fence.Recovered {
		t.Errorf("fence = %+v; want Recovered", nf)
	}
	if h.boots != 1 {
		t.Errorf("booted %d times; want once", h.boots)
	}
	h.judgeMachine(t)
}

// judgeMachine fails the test unless the machine was switched off and on, its pods and volumes were released, and no
// intent was executed twice.
func (h *host) judgeMachine(t *testing.T) {
	t.Helper()
	node := getNode(t, h.api)
	seen := map[string]bool{}
	for _, id := range h.offs {
		if seen[id] {
			t.Errorf("intent %s was executed twice: %v", id, h.offs)
		}
		seen[id] = true
	}
	if len(h.offs) == 0 || h.ons == 0 {
		t.Errorf("switched off %d times and on %d times; want both", len(h.offs), h.ons)
	}
	if len(node.Spec.Taints) > 0 || marked(node) {
		t.Errorf("the Node has the taints %v and annotations %v; want none", node.Spec.Taints, node.Annotations)
	}
	for _, o := range []client.Object{pod("db-0", "", nil), attachment("volume", "n1", "pv")} {
		if err := h.api.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s: %v; want that it is gone", o, o.GetName(), err)
		}
	}
}

// TestRestartAtEveryPoint: a controller that is killed right before or right after any write to the API server and any
// act on a device is followed by one that goes on correctly.
func TestRestartAtEveryPoint(t *testing.T) {
	points, _ := flow(t)
	if points < 30 {
		t.Fatalf("the flow has %d points; want at least 30", points)
	}
	for at := 0; at < points; at += stride(1, 7) {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			_, where := flow(t, at)
			if len(where) != 1 {
				t.Errorf("killed %d times; want once", len(where))
			}
			t.Logf("killed %s", where)
		})
	}
}

// stride returns the distance between the points that are tried.
func stride(full, short int) int {
	if testing.Short() {
		return short
	}
	return full
}

// TestRestartRepeatedly: so are several controllers that are killed one after the other.
func TestRestartRepeatedly(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for i := 0; i < 60; i += stride(1, 12) {
		killAt := make([]int, 2+random.IntN(6))
		for i := range killAt {
			killAt[i] = random.IntN(30)
		}
		if _, where := flow(t, killAt...); t.Failed() {
			t.Fatalf("seed %d: killed %q", seed, where)
		}
	}
}

// TestChangeAtAnyPoint: what others change in the middle of a fence never releases a machine that is on, and the node
// recovers: by a second fence if the first one is gone before the machine has booted.
func TestChangeAtAnyPoint(t *testing.T) {
	for _, change := range []struct {
		name string
		do   func(context.Context, *host, *reconciler) error
	}{
		{"NodeFence deleted", func(ctx context.Context, h *host, _ *reconciler) error {
			return client.IgnoreNotFound(h.api.Delete(ctx, runningFence(nil)))
		}},
		{"NodeFence edited", func(ctx context.Context, h *host, _ *reconciler) error {
			nf := &nodefence.NodeFence{}
			if err := h.api.Get(ctx, client.ObjectKeyFromObject(runningFence(nil)), nf); err != nil {
				return client.IgnoreNotFound(err)
			}
			nf.Annotations = map[string]string{"edited": "yes"}
			return h.api.Update(ctx, nf)
		}},
		{"Node replaced", func(ctx context.Context, h *host, _ *reconciler) error {
			node := &corev1.Node{}
			if err := h.api.Get(ctx, request.NamespacedName, node); err != nil {
				return err
			}
			next := deadNode()
			next.UID, next.Status = "uid-of-the-next", node.Status
			if err := h.api.Delete(ctx, node); err != nil {
				return err
			}
			return h.api.Create(ctx, next)
		}},
		{"configuration deleted", func(_ context.Context, _ *host, r *reconciler) error {
			r.config.mu.Lock()
			defer r.config.mu.Unlock()
			r.config.config.Plans = nil
			return nil
		}},
	} {
		t.Run(change.name, func(t *testing.T) {
			points, _ := flow(t)
			for at := rand.IntN(4); at < points; at += stride(4, 20) {
				synctest.Test(t, func(t *testing.T) {
					ctx, end := context.WithCancel(t.Context())
					defer end()
					h, base := newHost(ctx, t)
					l := &life{killAt: at}
					l.then = func() {
						if err := change.do(ctx, h, base); err != nil {
							t.Errorf("change: %v", err)
						}
					}
					live(ctx, t, h, l, base, 0)
					h.judgeMachine(t)
					if t.Failed() {
						t.Fatalf("changed at point %d, %s", at, l.where)
					}
					end()
					synctest.Wait()
				})
			}
		})
	}
}
