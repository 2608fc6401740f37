package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/fence/plan"
)

// strict makes the API server refuse a NodeFence with fields that its CustomResourceDefinition does not have. Else it
// would drop them, and orders would be carried out of a state that was not saved.
const strict = client.FieldValidation(metav1.FieldValidationStrict)

// pass is one look at a node.
type pass struct {
	*reconciler
	name   string
	config *plan.Config
	saved  *saved
	asked  time.Time    // when it began to read
	node   *corev1.Node // nil if there is none
	// forbidden says that the gate withholds all acts, also a release that has begun.
	forbidden bool
	// wake is when the node must be looked at again.
	wake time.Time
}

// until makes the next look at the node no later than t.
func (p *pass) until(t time.Time) {
	if !t.IsZero() && (p.wake.IsZero() || t.Before(p.wake)) {
		p.wake = t
	}
}

// reads returns the context of what a pass reads.
func (p *pass) reads(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, p.asked.Add(readTimeout))
}

func (p *pass) run(ctx context.Context) error {
	p.asked = time.Now()
	reads, cancel := p.reads(ctx)
	defer cancel()
	node, nf, known := p.observer.objects(reads, p.name)
	if !known {
		p.until(p.observer.failed.next())
		// Another worker may just have read what failed here; then next is zero, and nothing else would repeat this
		// pass.
		p.until(time.Now().Add(longestWait))
		return nil
	}
	p.node = node
	if nf == nil {
		if err := p.sweep(ctx); err != nil {
			return err
		}
		return p.detect(ctx, nil)
	}
	if err := nf.Normalize(); err != nil {
		// Without a Step nothing tells that the machine is still off.
		if p.node != nil && hasOwned(p.node, &outOfService, annotationOutOfService) {
			err = errors.Join(err, p.setTaints(ctx, fence.Taints{Quarantine: true}, string(nf.UID)))
		}
		return err
	}
	if drillRequested(nf) {
		return p.drill(ctx, nf)
	}
	if !finished(nf) {
		return p.step(ctx, nf)
	}
	if err := p.sweep(ctx); err != nil {
		return err
	}
	expires := expiry(nf, p.config)
	if !time.Now().Before(expires) {
		return p.remove(ctx, nf)
	}
	p.until(expires)
	return p.detect(ctx, nf)
}

// step makes a Step of a fence, saves the new state, and carries out the orders.
func (p *pass) step(ctx context.Context, nf *nodefence.NodeFence) error {
	reads, cancel := p.reads(ctx)
	defer cancel()
	state, uid := stateOf(nf), string(nf.UID)
	in := fence.Inputs{Asked: p.asked}
	in.Outcomes, in.Readings, in.InFlight = p.executor.pending(p.name, uid)
	in.Node, in.Executor = nodeFacts(p.node), p.identity
	in.Lease = p.observer.lease(reads, p.name)
	in.Watchdog = watchdogFacts(p.node, in.Lease, p.observer.leases, time.Now())
	in.Kdump = kdumpFacts(p.kdump, p.name)
	if p.node != nil {
		in.Load = p.observer.loadAs(reads, p.name, cutOff(&state))
	}
	p.adopt(&state, &in)
	in.IntentSince = p.saved.intentSince(&state, in.InFlight, time.Now())
	next, orders, err := p.decide(ctx, nf, &state, &in)
	if err != nil {
		return err
	}
	p.executor.consumed(p.name, len(in.Outcomes), len(in.Readings))
	if finished(nf) || waitsForPerson(next) {
		p.remediators.release(ctx, p.name)
	}
	p.until(orders.Wake)
	p.until(p.observer.failed.next())
	if !finished(nf) {
		p.until(time.Now().Add(longestWait))
	}
	return p.carryOut(ctx, nf, next, &orders, in.Lease.Renewed)
}

// decide makes a Step and saves the new state in nf. The orders are valid only if there is no error.
func (p *pass) decide(
	ctx context.Context, nf *nodefence.NodeFence, state *fence.State, in *fence.Inputs,
) (*fence.State, fence.Orders, error) {
	p.deciding.Lock()
	defer p.deciding.Unlock()
	reads, cancel := p.reads(ctx)
	defer cancel()
	in.Gate = p.gate(reads, state, in)
	p.forbidden = in.Gate.Withheld
	next, orders := fence.Step(*state, *in, time.Now())
	if orders.Drilled != "" {
		if err := p.keepDrill(ctx, &next, orders.Drilled); err != nil {
			return nil, fence.Orders{}, err
		}
	}
	changed := withState(nf, &next)
	if !equality.Semantic.DeepEqual(nf, changed) {
		if err := p.writer.Update(ctx, changed, strict); err != nil {
			err = fmt.Errorf("save NodeFence %s: %w", nf.Name, err)
			if !apierrors.IsConflict(err) {
				err = errors.Join(err, p.takeBack(ctx, nf, &orders))
			}
			return nil, fence.Orders{}, err
		}
		*nf = *changed
	}
	p.saved.resourceVersion = nf.ResourceVersion
	return &next, orders, nil
}

// takeBack removes the out-of-service taint although the state that orders this was not saved: without the taint
// nothing is released, and with it the volumes of a machine that runs again are detached. The next pass decides again.
func (p *pass) takeBack(ctx context.Context, nf *nodefence.NodeFence, orders *fence.Orders) error {
	if orders.Taints.OutOfService || p.node == nil || !hasOwned(p.node, &outOfService, annotationOutOfService) {
		return nil
	}
	quarantined := hasOwned(p.node, &quarantine, annotationFence)
	return p.setTaints(ctx, fence.Taints{Quarantine: quarantined}, string(nf.UID))
}

// carryOut does what was ordered after state was saved in nf. Acts and readings do not wait for the other orders.
func (p *pass) carryOut(
	ctx context.Context, nf *nodefence.NodeFence, state *fence.State, orders *fence.Orders, lease time.Time,
) error {
	p.report(nf, orders.Events)
	if orders.Act != nil && !state.DryRun {
		p.act(state, orders.Act, lease)
	}
	for _, name := range orders.Read {
		if m := methodOfDevice(state, name); m != nil {
			p.executor.read(p.name, state.UID, m)
		}
	}
	if p.node == nil || state.DryRun {
		return nil
	}
	// Another controller may have decided otherwise since the state was saved, and left the Node as it was read here.
	if !p.executor.leads() {
		return errNotLeading
	}
	want := orders.Taints
	if string(p.node.UID) != state.Target.UID {
		want = fence.Taints{}
	}
	release := want.OutOfService && releasable(state)
	if want.OutOfService && !release {
		p.log.Error("out-of-service taint ordered without a proof; it is not set", "node", p.name, "fence", state.UID)
	}
	if release && p.forbidden {
		release = false
		p.log.Error("release ordered although it is withheld; the out-of-service taint is removed", "node", p.name, "fence", state.UID)
	}
	want.OutOfService = release
	if err := p.setTaints(ctx, want, state.UID); err != nil {
		return err
	}
	same := string(p.node.UID) == state.Target.UID
	switch {
	case same && storageReleasable(state):
		return errors.Join(p.deletePods(ctx, p.name, orders.Delete), p.deleteAttachments(ctx, orders.Detach))
	case release, same && dumpReleasable(state) && !p.forbidden:
		return p.deletePods(ctx, p.name, orders.Delete)
	}
	return nil
}

// act starts an act that was saved as intent.
func (p *pass) act(state *fence.State, intent *fence.Intent, lease time.Time) {
	o := &order{node: p.name, fence: state.UID, intent: *intent, target: state.Target, lease: lease}
	m := methodOf(state, intent)
	if m == nil {
		p.executor.finish(o, fence.Refused, "the plan of the fence does not have this method", false)
		return
	}
	o.method = *m
	p.log.Info("act starts", "node", p.name, "fence", state.UID, "intent", intent.ID, "method", m.Name, "action", intent.Action,
		"device", m.Device, "deadline", intent.Deadline.Time)
	p.executor.act(o)
}

// adopt looks for the Job of an intent of another controller, unless this one executes it or has its outcome.
func (p *pass) adopt(state *fence.State, in *fence.Inputs) {
	i := state.Intent
	if i == nil || in.InFlight == i.ID || i.Executor == p.identity {
		return
	}
	has := func(o fence.Outcome) bool { return o.Intent == i.ID }
	if m := methodOf(state, i); m != nil && m.Executor == fence.InJob && !slices.ContainsFunc(in.Outcomes, has) {
		p.executor.adopt(&order{node: p.name, fence: state.UID, intent: *i, method: *m, target: state.Target, lease: in.Lease.Renewed})
	}
}

// setTaints gives the Node the taints of a fence.
func (p *pass) setTaints(ctx context.Context, want fence.Taints, uid string) error {
	patch, err := taintPatch(p.node, want, uid)
	if err != nil || patch == nil {
		return err
	}
	// The API server answers 422 to a patch whose test of resourceVersion fails.
	err = p.writer.Patch(ctx, p.node.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	switch {
	case apierrors.IsInvalid(err):
		return apierrors.NewConflict(corev1.Resource("nodes"), p.name, err)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("patch taints of Node %s: %w", p.name, err)
	}
	p.log.Info("taints set", "node", p.name, "fence", uid, "quarantine", want.Quarantine, "out_of_service", want.OutOfService)
	return nil
}

// report writes events and log lines.
func (p *pass) report(nf *nodefence.NodeFence, events []fence.Event) {
	for _, e := range events {
		level := slog.LevelInfo
		if e.Warning {
			level = slog.LevelWarn
		}
		p.log.Log(context.Background(), level, "fence", "node", p.name, "fence", nf.UID, "reason", e.Reason, "message", e.Message,
			"dry_run", nf.State.DryRun)
		if p.node != nil {
			p.recorder.event(p.node, e.Warning, e.Reason, "Fence", e.Message)
		} else {
			p.recorder.event(nf, e.Warning, e.Reason, "Fence", e.Message)
		}
	}
}

// sweep removes the taints that the controller set for a fence that has ended or is gone.
func (p *pass) sweep(ctx context.Context) error {
	if p.node == nil || !marked(p.node) {
		return nil
	}
	p.log.Warn("Node has taints of a fence that has ended or is gone; they are removed", "node", p.name)
	return p.setTaints(ctx, fence.Taints{}, "")
}

// detect creates the NodeFence of a node that is dead. earlier is the finished fence of the node, nil if there is none.
func (p *pass) detect(ctx context.Context, earlier *nodefence.NodeFence) error {
	if p.node == nil {
		return nil
	}
	reads, cancel := p.reads(ctx)
	defer cancel()
	state, events := p.open(reads, earlier)
	if state == nil {
		return nil
	}
	return p.create(ctx, state, events, earlier)
}

// create creates the NodeFence of a new fence in place of an earlier one, which is nil if there is none.
func (p *pass) create(ctx context.Context, state *fence.State, events []fence.Event, earlier *nodefence.NodeFence) error {
	if earlier != nil {
		before := stateOf(earlier)
		if err := p.remove(ctx, earlier); err != nil {
			return err
		}
		p.saved.earlier = &before
	}
	if p.saved.earlier != nil {
		state.Inherit(p.saved.earlier)
	}
	nf := newNodeFence(state)
	if err := p.writer.Create(ctx, nf, strict); err != nil {
		return fmt.Errorf("create NodeFence %s: %w", nf.Name, err)
	}
	p.saved.earlier = nil
	p.report(nf, events)
	p.wake = time.Now()
	return nil
}

// remove deletes a finished NodeFence, if it is still the one that was read.
func (p *pass) remove(ctx context.Context, nf *nodefence.NodeFence) error {
	err := p.writer.Delete(ctx, nf, client.Preconditions{UID: &nf.UID, ResourceVersion: &nf.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete NodeFence %s: %w", nf.Name, err)
	}
	p.log.Info("finished NodeFence deleted", "node", p.name, "fence", nf.UID, "result", nf.State.Result)
	return nil
}
