package controller

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/evictd/evictd/agent/controller/affinity"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// registerAffinity adds the eviction of pods that violate their node affinity to the manager, unless it is off.
func registerAffinity(m manager.Manager, o *Options, events recorder) error {
	if o.Affinity == affinity.Off {
		return nil
	}
	fenced := func(ctx context.Context) (map[string]bool, error) {
		list := &nodefence.NodeFenceList{}
		if err := m.GetCache().List(ctx, list); err != nil {
			return nil, fmt.Errorf("list NodeFences from the cache: %w", err)
		}
		nodes := make(map[string]bool)
		for i := range list.Items {
			if f := &list.Items[i]; !finished(f) {
				nodes[f.Node] = true
			}
		}
		return nodes, nil
	}
	runner, err := affinity.New(m, affinity.Options{
		Mode: o.Affinity, Namespace: o.Namespace, Event: events.event, Fenced: fenced, Log: o.Log,
	})
	if err != nil {
		return err
	}
	if err := ctrlmetrics.Registry.Register(runner); err != nil {
		return fmt.Errorf("register metrics of affinity: %w", err)
	}
	if err := m.Add(runner); err != nil {
		return fmt.Errorf("add affinity to the manager: %w", err)
	}
	return nil
}

// affinityRights are those that the eviction of pods needs in addition to those of fencing, which lists pods, too.
func affinityRights() []right {
	return []right{
		{resource: "pods", verbs: []string{"get", "watch"}},
		{resource: "pods/eviction", verbs: []string{"create"}},
		{group: "policy", resource: "poddisruptionbudgets", verbs: []string{"list"}},
		{group: "apps", resource: "replicasets", verbs: []string{"get", "list"}},
		{group: "apps", resource: "deployments/scale", verbs: []string{"get"}},
		{group: "apps", resource: "replicasets/scale", verbs: []string{"get"}},
		{group: "apps", resource: "statefulsets/scale", verbs: []string{"get"}},
		{resource: "replicationcontrollers/scale", verbs: []string{"get"}},
		{group: "batch", resource: "jobs", verbs: []string{"get"}},
	}
}
