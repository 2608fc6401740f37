package affinity

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/affinity"
)

const (
	// workloadTTL is how long what was read of a workload is used for a decision. It is read again before the act.
	workloadTTL = 10 * time.Second
	// ownerTTL is how long the controller of a ReplicaSet counts as known.
	ownerTTL = 10 * time.Minute
	// readTimeout bounds reading what one workload needs.
	readTimeout = 5 * time.Second
)

// workloads reads the replicas of workloads, when a pod of theirs could be evicted, and keeps them for a short time.
type workloads struct {
	live live
	log  *slog.Logger

	mu     sync.Mutex
	owners map[owner]known[owner] // of ReplicaSets
	facts  map[owner]known[*replicas]
}

// known is what was read, or the error, and when.
type known[T any] struct {
	value T
	err   error
	at    time.Time
}

// replicas is what is known of those of a workload.
type replicas struct {
	desired  int
	selector labels.Selector
	// controllers are those whose pods are the replicas: the workload itself, or its ReplicaSets.
	controllers []types.UID
	budgets     []labels.Selector // of the namespace
}

func newWorkloads(l live, log *slog.Logger) *workloads {
	return &workloads{live: l, log: log, owners: make(map[owner]known[owner]), facts: make(map[owner]known[*replicas])}
}

// cached returns the workload of a pod's controller and its replicas, as far as they are known. due says that they must
// be read, and at when they were read last, zero if they never were.
func (w *workloads) cached(o owner, now time.Time) (top owner, r *replicas, at time.Time, due bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	top = o
	if o.kind == replicaSet {
		k, ok := w.owners[o]
		if !ok {
			return o, nil, at, true
		}
		// A ReplicaSet that can't be read still belongs to the workload that it belonged to: an eviction in flight is
		// that of the workload.
		top = k.value
		if k.err != nil {
			return top, nil, k.at, now.Sub(k.at) > workloadTTL
		}
		if now.Sub(k.at) > ownerTTL {
			return top, nil, k.at, true
		}
	}
	k, ok := w.facts[top]
	if !ok || k.err != nil {
		return top, nil, k.at, !ok || now.Sub(k.at) > workloadTTL
	}
	return top, k.value, k.at, now.Sub(k.at) > workloadTTL
}

// replicaSet is the kind that is not a workload by itself if it has a controller.
const replicaSet = "ReplicaSet"

// refresh reads the workload of a pod's controller and its replicas.
func (w *workloads) refresh(ctx context.Context, o owner) {
	top, r, err := w.read(ctx, o)
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.facts[top]
	if err != nil && (last.err == nil || last.err.Error() != err.Error()) {
		w.log.Warn("could not read a workload; its pods are not evicted until it can be read", "workload", o.String(), "error", err)
	}
	if o.kind == replicaSet {
		// Without the controller, top is the ReplicaSet, and its own facts have the error.
		k, ok := w.owners[o]
		if err == nil || top != o || !ok {
			k.value = top
		}
		if k.err, k.at = nil, now; err != nil && top == o {
			k.err = err
		}
		w.owners[o] = k
	}
	w.facts[top] = known[*replicas]{r, err, now}
}

// read reads the workload of a pod's controller and its replicas. The workload is returned with an error, too, as far
// as it is known.
func (w *workloads) read(ctx context.Context, o owner) (top owner, r *replicas, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	top = o
	defer func() {
		if p := recover(); p != nil {
			r, err = nil, fmt.Errorf("read %s: panic: %v", top, p)
		}
	}()
	if o.kind == replicaSet {
		m, err := w.live.metadata(ctx, o)
		if err != nil {
			return o, nil, err
		}
		if c := controllerOf(m); c.uid != "" {
			top = c
		}
	}
	r = &replicas{controllers: []types.UID{top.uid}}
	if r.desired, r.selector, err = w.live.scale(ctx, top); err != nil {
		return top, nil, err
	}
	if top != o {
		if r.controllers, err = w.live.replicaSets(ctx, top, r.selector); err != nil {
			return top, nil, err
		}
	}
	r.budgets, err = w.live.budgets(ctx, o.namespace)
	if err != nil {
		return top, nil, err
	}
	return top, r, nil
}

// confirm reads the replicas of a pod's workload again, and returns why the pod is not evicted now, empty if there is
// no reason. The workload must be the one that was decided on.
func (w *workloads) confirm(ctx context.Context, o owner, podLabels map[string]string, workload string) (string, error) {
	top, r, err := w.read(ctx, o)
	if err != nil {
		return "", err
	}
	if top.workload() != workload {
		return fmt.Sprintf("the pod belongs to %s by now", top), nil
	}
	if selects(r.budgets, podLabels) {
		return "", nil
	}
	ready, err := w.live.readyPods(ctx, top, r.selector, r.controllers)
	if err != nil {
		return "", err
	}
	if ready < r.desired {
		return fmt.Sprintf("%s has %d of %d replicas ready, and no PodDisruptionBudget", top, ready, r.desired), nil
	}
	return "", nil
}

// workloadFacts returns what a decision needs of a workload.
func workloadFacts(r *replicas, ready int, podLabels map[string]string) affinity.Workload {
	return affinity.Workload{Desired: r.desired, Ready: ready, Budget: selects(r.budgets, podLabels)}
}

// forget removes what is older than it can be used. The workloads of controllers that are in use are kept.
func (w *workloads) forget(now time.Time, used map[owner]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.owners, func(o owner, k known[owner]) bool { return !used[o] && now.Sub(k.at) > 2*ownerTTL })
	maps.DeleteFunc(w.facts, func(_ owner, k known[*replicas]) bool { return now.Sub(k.at) > 2*ownerTTL })
}
