package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/evictd/evictd/agent/affinity/extender"
	"github.com/evictd/evictd/agent/controller/serving"
)

// registerExtender returns the handler of the scheduler extender, which answers from the manager's cache of Nodes, and
// adds its metrics and its readiness.
func registerExtender(ctx context.Context, m manager.Manager, o *Options) (*extender.Handler, error) {
	nodes := &nodeNames{nodes: make(map[string]*corev1.Node)}
	if err := nodes.watch(ctx, m.GetCache()); err != nil {
		return nil, err
	}
	h := extender.New(nodes, serving.ClientOf, o.Log)
	for _, c := range h.Collectors() {
		if err := ctrlmetrics.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the extender: %w", err)
		}
	}
	return h, m.AddReadyzCheck("extender", func(*http.Request) error {
		if !nodes.Synced() {
			return errors.New("the cache of Nodes is not complete")
		}
		return nil
	})
}

// nodeNames has the Nodes of an informer by name. A read from the manager's cache would copy each.
type nodeNames struct {
	synced cache.InformerSynced

	mu    sync.RWMutex
	nodes map[string]*corev1.Node
}

// watch adds it to the informer of Nodes.
func (n *nodeNames) watch(ctx context.Context, informers ctrlcache.Informers) error {
	informer, err := informers.GetInformer(ctx, &corev1.Node{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch Nodes for the extender: %w", err)
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: n.set, UpdateFunc: func(_, object any) { n.set(object) }, DeleteFunc: n.remove,
	})
	if err != nil {
		return fmt.Errorf("watch Nodes for the extender: %w", err)
	}
	n.synced = registration.HasSynced
	return nil
}

func (n *nodeNames) set(object any) {
	if node, ok := object.(*corev1.Node); ok {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.nodes[node.Name] = node
	}
}

func (n *nodeNames) remove(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if node, ok := object.(*corev1.Node); ok {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.nodes, node.Name)
	}
}

// Node implements extender.Nodes. Objects of an informer are never changed.
func (n *nodeNames) Node(name string) *corev1.Node {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.nodes[name]
}

// Synced implements extender.Nodes.
func (n *nodeNames) Synced() bool { return n.synced() }
