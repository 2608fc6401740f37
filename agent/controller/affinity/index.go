package affinity

import (
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/evictd/evictd/agent/affinity"
)

// index has all pods and nodes, and knows which pods violate. After a change of a Node's labels it compares just the
// pods of that node, each shape once. It is the store of the pods' reflector.
type index struct {
	shapes shapes
	// changed is called, with the lock held, after a change that a decision may depend on. It must not block.
	changed func()

	mu             sync.Mutex
	enforceIgnored bool
	pods           map[types.NamespacedName]*pod
	nodes          map[string]*node
	// ready counts the ready pods of a controller. A pod may name one of another namespace, which is not its own.
	ready     map[controllerKey]int
	violating map[*pod]violation
	invalid   map[*pod]struct{}
	synced    chan struct{} // closed when the first list is there
}

// controllerKey identifies a controller of pods.
type controllerKey struct {
	namespace string
	uid       types.UID
}

// node has the pods of a node. Its object is nil for a node that is not known, or deleted.
type node struct {
	object *corev1.Node
	pods   []*pod
}

func newIndex(changed func()) *index {
	return &index{
		changed: changed, pods: make(map[types.NamespacedName]*pod), nodes: make(map[string]*node), ready: make(map[controllerKey]int),
		violating: make(map[*pod]violation), invalid: make(map[*pod]struct{}), synced: make(chan struct{}),
	}
}

// Transformer implements cache.TransformingStore: the reflector's own store of the first list has no whole pods either.
func (x *index) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return x.stripped(object) }
}

// stripped returns what is kept of a pod.
func (x *index) stripped(object any) (*pod, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return newPod(o, &x.shapes), nil
	case *pod:
		return o, nil
	}
	return nil, fmt.Errorf("index of pods: object is %T; want a Pod", object)
}

// Add implements cache.ReflectorStore.
func (x *index) Add(object any) error {
	p, err := x.stripped(object)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(p, true)
	return nil
}

// Update implements cache.ReflectorStore.
func (x *index) Update(object any) error { return x.Add(object) }

// Delete implements cache.ReflectorStore.
func (x *index) Delete(object any) error {
	o, err := meta.Accessor(object)
	if err != nil {
		return fmt.Errorf("index of pods: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.remove(types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()})
	return nil
}

// Replace implements cache.ReflectorStore.
func (x *index) Replace(list []any, _ string) error {
	fresh := make(map[types.NamespacedName]*pod, len(list))
	for _, object := range list {
		p, err := x.stripped(object)
		if err != nil {
			return err
		}
		fresh[p.key()] = p
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for key := range x.pods {
		if fresh[key] == nil {
			x.remove(key)
		}
	}
	for _, p := range fresh {
		x.put(p, false)
	}
	select {
	case <-x.synced:
	default:
		close(x.synced)
	}
	x.changed()
	return nil
}

// Resync implements cache.ReflectorStore.
func (x *index) Resync() error { return nil }

// put has a pod. watched says that it is of the watch and not of a list: one that is new on its node was just bound.
func (x *index) put(p *pod, watched bool) {
	earlier, before := x.pods[p.key()], violation{}
	there := earlier != nil && earlier.UID == p.UID && earlier.node == p.node
	if there && earlier.shape == p.shape {
		before = x.violating[earlier]
	}
	x.remove(p.key())
	x.pods[p.key()] = p
	if p.ready {
		x.ready[p.controller()]++
	}
	if p.shape != nil && p.shape.err != nil {
		x.invalid[p] = struct{}{}
	}
	if p.node != "" {
		n := x.node(p.node)
		p.place = len(n.pods)
		n.pods = append(n.pods, p)
		x.compare(p, n.object, nil)
		if v, ok := x.violating[p]; ok {
			if v.atBinding, v.own = watched && !there, watched; !before.since.IsZero() {
				v.since, v.atBinding, v.own = before.since, before.atBinding, before.own
			}
			x.violating[p] = v
		}
	}
	x.touched()
}

// remove removes a pod if it is there.
func (x *index) remove(key types.NamespacedName) {
	p := x.pods[key]
	if p == nil {
		return
	}
	delete(x.pods, key)
	if key := p.controller(); p.ready {
		if x.ready[key]--; x.ready[key] == 0 {
			delete(x.ready, key)
		}
	}
	x.touched()
	delete(x.violating, p)
	delete(x.invalid, p)
	if p.node == "" {
		return
	}
	n := x.nodes[p.node]
	last := len(n.pods) - 1
	n.pods[p.place] = n.pods[last]
	n.pods[p.place].place = p.place
	n.pods[last] = nil
	n.pods = n.pods[:last]
	if last == 0 && n.object == nil {
		delete(x.nodes, p.node)
	}
}

func (x *index) node(name string) *node {
	n := x.nodes[name]
	if n == nil {
		n = &node{}
		x.nodes[name] = n
	}
	return n
}

// setNode has a Node, which must not be changed afterwards.
func (x *index) setNode(object *corev1.Node) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.node(object.Name)
	earlier := n.object
	n.object = object
	if earlier == nil || !maps.Equal(earlier.Labels, object.Labels) {
		verdicts := make(map[*shape]affinity.Verdict)
		for _, p := range n.pods {
			x.compare(p, object, verdicts)
		}
	}
	x.touched()
}

// deleteNode removes a Node. Its pods violate nothing any more.
func (x *index) deleteNode(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.nodes[name]
	if n == nil {
		return
	}
	n.object = nil
	x.touched()
	for _, p := range n.pods {
		delete(x.violating, p)
	}
	if len(n.pods) == 0 {
		delete(x.nodes, name)
	}
}

// compare sets whether a pod violates. The verdicts are those of the node so far, by shape; nil for none.
func (x *index) compare(p *pod, object *corev1.Node, verdicts map[*shape]affinity.Verdict) {
	before, violated := x.violating[p]
	if p.shape == nil || p.shape.err != nil || object == nil {
		x.ended(p, violated)
		return
	}
	v, known := verdicts[p.shape]
	if !known {
		v = p.shape.violates(object, x.enforceIgnored)
		if verdicts != nil {
			verdicts[p.shape] = v
		}
	}
	if v.Match {
		x.ended(p, violated)
		return
	}
	since := before.since
	if !violated {
		since = time.Now()
	}
	x.violating[p] = violation{p, v, since, before.atBinding, before.own}
	x.touched()
}

// ended removes the violation of a pod, and reports it: the decision must know that the last one is gone.
func (x *index) ended(p *pod, violated bool) {
	if violated {
		delete(x.violating, p)
		x.changed()
	}
}

// touched reports a change while a pod violates: what a decision depends on is then more than the violations.
func (x *index) touched() {
	if len(x.violating) > 0 || len(x.invalid) > 0 {
		x.changed()
	}
}

// setEnforceIgnored compares all pods again if the value changes.
func (x *index) setEnforceIgnored(enforce bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.enforceIgnored == enforce {
		return
	}
	x.enforceIgnored = enforce
	for _, n := range x.nodes {
		verdicts := make(map[*shape]affinity.Verdict)
		for _, p := range n.pods {
			x.compare(p, n.object, verdicts)
		}
	}
	x.changed()
}

// violation is a pod that violates.
type violation struct {
	*pod
	verdict affinity.Verdict
	// since is when it began to. A violation that ended and began again between two decisions is another one.
	since time.Time
	// atBinding says that it began when the watch showed the pod on its node for the first time.
	atBinding bool
	// own says that it began with a change of the pod that the watch has shown, and not with one of the node.
	own bool
}

// violations returns the pods that violate, those whose annotation does not parse, and, unless both are empty, all
// Nodes.
func (x *index) violations() (list []violation, invalid []*pod, nodes []*corev1.Node) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.violating) == 0 && len(x.invalid) == 0 {
		return nil, nil, nil
	}
	list = make([]violation, 0, len(x.violating))
	for _, v := range x.violating {
		list = append(list, v)
	}
	for p := range x.invalid {
		invalid = append(invalid, p)
	}
	nodes = make([]*corev1.Node, 0, len(x.nodes))
	for _, n := range x.nodes {
		if n.object != nil {
			nodes = append(nodes, n.object)
		}
	}
	return list, invalid, nodes
}

// present returns which pods are there.
func (x *index) present(pods []affinity.PodKey) map[types.UID]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	there := make(map[types.UID]bool, len(pods))
	for _, key := range pods {
		if p := x.pods[types.NamespacedName{Namespace: key.Namespace, Name: key.Name}]; p != nil && p.UID == key.UID {
			there[key.UID] = true
		}
	}
	return there
}

// readyOf counts the ready pods of controllers of a namespace.
func (x *index) readyOf(namespace string, controllers []types.UID) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, uid := range controllers {
		n += x.ready[controllerKey{namespace, uid}]
	}
	return n
}
