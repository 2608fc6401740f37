package controller

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// change is what others do in the middle of a fence.
type change struct {
	name string
	do   func(context.Context, *world, *reconciler) error
	// waits says that the fence may end with a wait for a person.
	waits bool
}

// edited changes the NodeFence.
func edited(name string, waits bool, edit func(*nodefence.NodeFence)) change {
	return change{"NodeFence: " + name, func(ctx context.Context, w *world, _ *reconciler) error {
		nf := &nodefence.NodeFence{}
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(runningFence(nil)), nf); err != nil {
			return client.IgnoreNotFound(err)
		}
		edit(nf)
		w.mu.Lock()
		w.erased = waits
		w.mu.Unlock()
		if err := w.api.Update(ctx, nf); err != nil {
			return err
		}
		w.saw(nf)
		return nil
	}, waits}
}

// forged is a proof of readings that nobody made.
func forged(nf *nodefence.NodeFence) *fence.Proof {
	at := metav1.NewMicroTime(time.Now().Add(-20 * time.Second))
	reading := fence.Reading{Device: bmcDevice, Power: fence.PowerOff, UUID: machine, Started: at, Ended: at}
	return &fence.Proof{
		How: fence.ByReadings, At: metav1.NowMicro(), LeaseRenewed: nf.State.Target.LeaseRenewed, Readings: []fence.Reading{reading, reading},
	}
}

var changes = []change{
	{"NodeFence: deleted", func(ctx context.Context, w *world, _ *reconciler) error {
		w.mu.Lock()
		w.fence = nil
		w.mu.Unlock()
		return client.IgnoreNotFound(w.api.Delete(ctx, runningFence(nil)))
	}, false},
	edited("annotated", false, func(nf *nodefence.NodeFence) { nf.Annotations = map[string]string{"edited": "yes"} }),
	edited("without intent", true, func(nf *nodefence.NodeFence) { nf.State.Intent = nil }),
	edited("another intent", true, func(nf *nodefence.NodeFence) {
		if nf.State.Intent != nil {
			nf.State.Intent.ID = "another"
		}
	}),
	edited("without acts", true, func(nf *nodefence.NodeFence) {
		nf.State.Acts, nf.State.LastAct, nf.State.LateUntil = nil, metav1.MicroTime{}, metav1.MicroTime{}
	}),
	edited("Releasing without proof", true, func(nf *nodefence.NodeFence) { nf.State.Phase, nf.State.Proof = fence.Releasing, nil }),
	edited("Released without proof", true, func(nf *nodefence.NodeFence) { nf.State.Phase, nf.State.Proof = fence.Released, nil }),
	edited("OffProven with a forged proof", true, func(nf *nodefence.NodeFence) {
		nf.Step, nf.Status, nf.State.Phase, nf.State.Proof = fence.PowerManagement, fence.Running, fence.OffProven, forged(nf)
	}),
	edited("without proof", true, func(nf *nodefence.NodeFence) { nf.State.Proof = nil }),
	edited("New", true, func(nf *nodefence.NodeFence) { nf.Status, nf.State.Phase = fence.New, "" }),
	edited("Error", true, func(nf *nodefence.NodeFence) { nf.Status, nf.State.Phase = fence.Error, "" }),
	edited("Recovery", true, func(nf *nodefence.NodeFence) { nf.Step, nf.Status = fence.Recovery, fence.New }),
	edited("finished", true, func(nf *nodefence.NodeFence) {
		nf.State.FinishedAt, nf.State.Result = metav1.NowMicro(), fence.Recovered
	}),
	edited("another target", true, func(nf *nodefence.NodeFence) { nf.State.Target.UID = "another" }),
	edited("no methods", true, func(nf *nodefence.NodeFence) { nf.State.Plan.PowerManagement = nil }),
	edited("levels that do not exist", true, func(nf *nodefence.NodeFence) { nf.State.Level = 7 }),
	{"Node: replaced", func(ctx context.Context, w *world, _ *reconciler) error {
		node := &corev1.Node{}
		if err := w.api.Get(ctx, request.NamespacedName, node); err != nil {
			return err
		}
		next := deadNode()
		next.UID, next.Status = "uid-of-the-next", node.Status
		if err := w.api.Delete(ctx, node); err != nil {
			return err
		}
		w.saw(next)
		return w.api.Create(ctx, next)
	}, false},
	{"configuration: deleted", configured(func(r *reconciler) { r.config.config.Plans = nil }), false},
	{"configuration: another device", configured(func(r *reconciler) {
		old := r.config.config.Plans["n1"]
		p := *old.DeepCopy()
		p.PowerManagement[0].Methods[0].Device = "another"
		r.config.config.Plans = map[string]fence.Plan{"n1": p}
	}), true},
	{"configuration: dry run for some minutes", func(ctx context.Context, w *world, r *reconciler) error {
		enforce := func(on bool) { _ = configured(func(r *reconciler) { r.config.config.Policy.Enforce = on })(ctx, w, r) }
		enforce(false)
		go func() {
			time.Sleep(7 * time.Minute)
			enforce(true)
		}()
		return nil
	}, true},
	{"Secret: deleted for some minutes", func(_ context.Context, w *world, _ *reconciler) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.secretUntil = time.Now().Add(7 * time.Minute)
		return nil
	}, true},
}

// configured changes the configuration.
func configured(set func(*reconciler)) func(context.Context, *world, *reconciler) error {
	return func(_ context.Context, _ *world, r *reconciler) error {
		r.config.mu.Lock()
		defer r.config.mu.Unlock()
		set(r)
		return nil
	}
}

// errNoSecret is what a device is opened with while its Secret is deleted.
var errNoSecret = errors.New(`secrets "fence-method-template-bmc" not found`)

// TestChangeAtAnyPoint: what others change in the middle of a fence never releases a machine that is on, and the node
// recovers: by a second fence if the first one is gone before the machine has booted. A fence that was forged may end
// with a wait for a person.
func TestChangeAtAnyPoint(t *testing.T) {
	s := scenarios()[0]
	points := len(flow(t, s, 0).points)
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			recovered, waited := 0, 0
			for at := rand.IntN(stride(1, 4)); at < points; at += stride(1, 20) {
				synctest.Test(t, func(t *testing.T) {
					ctx, end := context.WithCancel(t.Context())
					w, base := s.begin(t)
					go w.run(ctx)
					l := &life{killAt: at, yields: c.waits}
					l.then = func() {
						w.mu.Lock()
						w.moved = true
						w.mu.Unlock()
						if err := c.do(ctx, w, base); err != nil {
							t.Errorf("change: %v", err)
						}
					}
					live(ctx, t, w, l, base, 0)
					if w.waits(0) {
						waited++
					} else {
						recovered++
						w.judgeTaints(t)
					}
					end()
					synctest.Wait()
					time.Sleep(10 * time.Minute)
					if t.Failed() {
						t.Logf("changed at point %d, %s", at, l.where)
					}
				})
			}
			t.Logf("%d recovered, %d wait for a person", recovered, waited)
		})
	}
}
