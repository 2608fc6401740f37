package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/fence/plan"
)

const (
	// passTimeout bounds one pass over a node, and readTimeout what it reads. What could not be read is unknown: what
	// follows is saved in the time that is left.
	passTimeout, readTimeout = time.Minute, 30 * time.Second
	// longestWait is the time between two passes over a node with a fence, and over one that is not Ready: Leases are
	// not watched.
	longestWait = 10 * time.Second
	// configWait is the time until a pass is repeated that came before the configuration, or before the kdump listener
	// was started: it could not delay anything.
	configWait = time.Second
	// firstConflictWait is the time until a pass is repeated whose write had a conflict. It doubles up to longestWait.
	firstConflictWait = 50 * time.Millisecond
	// manyConflicts in a row are reported: they last longer than another writer would cause them.
	manyConflicts = 10
)

// reconciler fences nodes. A request is the name of a node.
type reconciler struct {
	cached   client.Reader // says which nodes are looked at
	observer *observer
	writer   client.Writer
	config   *configuration
	executor *executor
	// remediators exclude other programs that work on the same node.
	remediators *remediatorLeases
	// objects are those by which such programs work on nodes.
	objects  *remediatorObjects
	recorder recorder
	log      *slog.Logger
	kdump    kdumpListener // nil if there is none
	// identity identifies this process, and ownNode the node that it runs on.
	identity, ownNode string

	// deciding is locked from the list of fences to the accepted write, so that two fences don't take one free slot.
	deciding sync.Mutex
	mu       sync.Mutex
	nodes    map[string]*saved
	pauses   map[string][2]string // by node: the values of the annotations of a pause that were reported as invalid
}

// saved is the state of a fence that was saved last. It is locked during a pass over its node.
type saved struct {
	sync.Mutex
	resourceVersion string
	// earlier is the fence that was deleted for the next one, until that is created.
	earlier *fence.State
	// intent is the UID of the fence and the id of an intent that this process does not execute, seen is since when.
	intent string
	seen   time.Time
	// conflicts counts those in a row.
	conflicts int
	// pruned says that it is no longer the one of its node.
	pruned bool
}

// lock returns what is remembered of the fence of a node, locked.
func (r *reconciler) lock(node string) *saved {
	for {
		s := r.saved(node)
		s.Lock()
		if !s.pruned {
			return s
		}
		s.Unlock()
	}
}

// intentSince returns since when this process has seen the intent of a fence without executing it, zero if there is no
// such intent. It is counted back from now by the monotonic clock: the other one may have been set since.
func (s *saved) intentSince(state *fence.State, inFlight string, now time.Time) time.Time {
	if state.Intent == nil || state.Intent.ID == inFlight {
		s.intent, s.seen = "", time.Time{}
		return time.Time{}
	}
	if id := state.UID + "/" + state.Intent.ID; s.intent != id {
		s.intent, s.seen = id, now
	}
	return now.Round(0).Add(-now.Sub(s.seen))
}

// prune removes what is remembered of nodes that have neither Node nor NodeFence, and for which nothing is in flight.
func (r *reconciler) prune(present map[string]bool) {
	r.executor.prune(present)
	r.remediators.forget(present)
	r.mu.Lock()
	defer r.mu.Unlock()
	forget(r.pauses, present)
	for node, s := range r.nodes {
		if !present[node] && s.TryLock() {
			s.pruned = true
			delete(r.nodes, node)
			s.Unlock()
		}
	}
}

// forget removes the nodes from a map that are not present.
func forget[V any](m map[string]V, present map[string]bool) {
	maps.DeleteFunc(m, func(node string, _ V) bool { return !present[node] })
}

// saved returns what is remembered of the fence of a node.
func (r *reconciler) saved(node string) *saved {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.nodes[node]
	if s == nil {
		s = &saved{}
		if r.nodes == nil {
			r.nodes = make(map[string]*saved)
		}
		r.nodes[node] = s
	}
	return s
}

// Reconcile implements reconcile.Reconciler.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	config, loaded := r.config.current()
	if !loaded || r.kdump != nil && !r.kdump.Tried() {
		return reconcile.Result{RequeueAfter: configWait}, nil
	}
	look, wake, err := r.suspected(ctx, request.Name, &config)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !look {
		return after(wake), nil
	}
	s := r.lock(request.Name)
	defer s.Unlock()
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	p := &pass{reconciler: r, name: request.Name, config: &config, saved: s}
	err = p.run(ctx)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		wait := min(firstConflictWait<<min(s.conflicts, 16), longestWait)
		s.conflicts++
		level := slog.LevelDebug
		if s.conflicts%manyConflicts == 0 {
			level = slog.LevelWarn // the API server may refuse the write for another reason, with the same code
		}
		r.log.Log(ctx, level, "object changed since it was read; the node is read again", "node", request.Name,
			"conflicts", s.conflicts, "error", err)
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	s.conflicts = 0
	if err != nil {
		return reconcile.Result{}, err
	}
	return after(p.wake), nil
}

// after returns a result with which the node is looked at again at a time, never if it is zero.
func after(wake time.Time) reconcile.Result {
	if wake.IsZero() {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(time.Until(wake), 10*time.Millisecond)}
}

// suspected reports whether a node must be read from the API server: it has a plan and is not Ready, or its Lease is
// too old; or it has a fence that has not ended, has taints of the controller, or has a fence that is old enough to be
// deleted. wake is when that changes by itself.
func (r *reconciler) suspected(ctx context.Context, name string, config *plan.Config) (look bool, wake time.Time, err error) {
	node, nf := &corev1.Node{}, &nodefence.NodeFence{}
	found, err := r.get(ctx, name, node)
	if err != nil {
		return false, time.Time{}, err
	}
	fenced, err := r.get(ctx, nodefence.ObjectName(name), nf)
	if err != nil {
		return false, time.Time{}, err
	}
	if fenced {
		expires := expiry(nf, config)
		if !finished(nf) || drillRequested(nf) || !time.Now().Before(expires) {
			return true, time.Time{}, nil
		}
		wake = expires
	}
	if !found {
		return false, wake, nil
	}
	r.reportPause(node)
	if marked(node) {
		return true, time.Time{}, nil
	}
	if ready(node) {
		return r.silent(name, config), wake, nil
	}
	_, planned := config.Plans[name]
	if !planned {
		r.log.Debug("node is not Ready and has no plan; it is not fenced", "node", name)
	}
	return planned, wake, nil
}

// silent reports whether the Lease of a node with a plan has not been renewed for the grace period. If it is Ready in
// the cache, the cache may be late.
func (r *reconciler) silent(name string, config *plan.Config) bool {
	p, planned := config.Plans[name]
	return planned && r.observer.leases.unchanged(name, p.Timings.Grace.Duration)
}

// get reads an object from the cache.
func (r *reconciler) get(ctx context.Context, name string, o client.Object) (found bool, err error) {
	err = r.cached.Get(ctx, types.NamespacedName{Name: name}, o)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s from the cache: %w", o, name, err)
	}
	return true, nil
}

// checkAct is the last check before a device switches off or on. It returns why the act must not be done. No Step of
// the node is made while it reads.
func (r *reconciler) checkAct(ctx context.Context, o *order) error {
	s := r.lock(o.node)
	defer s.Unlock()
	live := r.observer.live
	nf, err := live.nodeFence(ctx, o.node)
	switch {
	case err != nil:
		return err
	case nf == nil || string(nf.UID) != o.fence:
		return fmt.Errorf("the NodeFence %s is gone", nodefence.ObjectName(o.node))
	case nf.ResourceVersion != s.resourceVersion || nf.State.Intent == nil || nf.State.Intent.ID != o.intent.ID:
		return fmt.Errorf("the NodeFence %s was changed since the act was decided on", nf.Name)
	}
	node, err := live.node(ctx, o.node)
	switch {
	case err != nil:
		return err
	case node == nil || string(node.UID) != o.target.UID:
		return fmt.Errorf("the Node %s was deleted or replaced", o.node)
	}
	// Recovery goes on: what was isolated by the fence stays so otherwise.
	if config, _ := r.config.current(); o.intent.Step != fence.Recovery {
		if g := r.withheld(node, config.Policy.Enforce); !g.Open {
			return errors.New(g.Message)
		}
	}
	if err := checkAction(o, nf, node); err != nil {
		return err
	}
	if o.intent.Action != fence.On && o.intent.Action != fence.Uncordon {
		check := r.checkDead
		if nf.State.Drill && nf.State.Phase == "" {
			check = r.checkDrill
		}
		if err := check(ctx, node, o); err != nil {
			return err
		}
	}
	// It is taken last, so that an act that is refused leaves no Lease behind.
	return r.exclude(ctx, node, o)
}

// exclude checks that no other remediator has an object for the node, and takes the Lease of its remediators. Recovery
// goes on without both: after its attempts the node would stay isolated when the other remediator, which repaired it, has
// long ended, or when the Lease can be read and written again.
func (r *reconciler) exclude(ctx context.Context, node *corev1.Node, o *order) error {
	if o.intent.Step != fence.Recovery {
		if err := r.objects.check(ctx, o.node); err != nil {
			return err
		}
	}
	err := r.remediators.acquire(ctx, node, true)
	if err == nil || o.intent.Step != fence.Recovery {
		return err
	}
	if held := (*heldError)(nil); !errors.As(err, &held) {
		r.log.Warn("Lease of the node's remediators could not be taken; recovery goes on without it", "node", o.node, "error", err)
	}
	return nil
}

// checkDead returns why a node must not be acted against.
func (r *reconciler) checkDead(ctx context.Context, node *corev1.Node, o *order) error {
	if ready(node) {
		return fmt.Errorf("the Node %s is Ready", o.node)
	}
	if err := r.checkUUID(ctx, node, o); err != nil {
		return err
	}
	lease, found, err := r.observer.live.lease(ctx, o.node)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("the Node %s has no Lease", o.node)
	case !lease.renewed.Equal(o.lease):
		return fmt.Errorf("the Lease of Node %s was renewed at %s", o.node, lease.renewed.UTC().Format(time.RFC3339))
	}
	return nil
}

// checkUUID returns why the UUID that a method compares does not identify the machine of a node.
func (r *reconciler) checkUUID(ctx context.Context, node *corev1.Node, o *order) error {
	if o.method.Identity == fence.CheckNone {
		return nil
	}
	other, err := r.sameUUID(ctx, node)
	switch {
	case err != nil:
		return err
	case other != "":
		return fmt.Errorf("the Node %s has the same systemUUID as Node %s: delete the one that is out of date", other, o.node)
	}
	return nil
}

// checkAction returns why an action must not be done to a node in its present state.
func checkAction(o *order, nf *nodefence.NodeFence, node *corev1.Node) error {
	switch o.intent.Action {
	case fence.CleanPods:
		if !cleanable(nf) {
			return fmt.Errorf("the NodeFence %s has no proof that the machine is off, or something was switched on since", nf.Name)
		}
	case fence.On, fence.Uncordon:
		// With any effect: volumes are detached because of its key.
		if slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == outOfService.Key }) {
			return fmt.Errorf("the Node %s has the out-of-service taint, with which volumes are detached from a running node: remove it", o.node)
		}
	}
	if o.intent.Step == fence.Recovery {
		return unfenceable(nf, node)
	}
	return nil
}

// unfenceable returns why the isolation of a node must not be undone. After pods were released because the node was cut
// off from their storage, only a machine that has booted again has nothing left to write to it.
func unfenceable(nf *nodefence.NodeFence, node *corev1.Node) error {
	f, is := nf.State.Storage, node.Status.NodeInfo.BootID
	if was := nf.State.Target.BootID; f == nil || f.Released.IsZero() || was != "" && is != "" && was != is {
		return nil
	}
	return fmt.Errorf("the pods of Node %s were released because it was cut off from their storage, and it has the boot ID "+
		"that it had before: reboot it", node.Name)
}
