package controller

import (
	"context"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/device"
	"github.com/evictd/evictd/agent/fence/device/ipmi"
	"github.com/evictd/evictd/agent/fence/device/redfish"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/fence/plan"
)

const (
	// leaseNamespace has the Leases of the kubelets.
	leaseNamespace = "kube-node-lease"
	// pageSize bounds the objects of one answer.
	pageSize = 500
)

// liveReader reads from the API server, never from the cache. Decisions take a liveReader, so that they can't take the
// manager's client, which reads from the cache, by mistake.
type liveReader struct {
	reader    client.Reader
	namespace string // of the controller
	agents    *fenceAgents
}

// newLiveReader returns a liveReader. The reader must be the manager's GetAPIReader().
func newLiveReader(reader client.Reader, namespace string) liveReader {
	return liveReader{reader: reader, namespace: namespace}
}

// node returns a Node, nil if there is none.
func (l liveReader) node(ctx context.Context, name string) (*corev1.Node, error) {
	n := &corev1.Node{}
	if err := l.reader.Get(ctx, types.NamespacedName{Name: name}, n); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	return n, nil
}

// nodeFence returns the NodeFence of a node, nil if there is none.
func (l liveReader) nodeFence(ctx context.Context, node string) (*nodefence.NodeFence, error) {
	name := nodefence.ObjectName(node)
	f := &nodefence.NodeFence{}
	if err := l.reader.Get(ctx, types.NamespacedName{Name: name}, f); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read NodeFence %s: %w", name, err)
	}
	return f, nil
}

// nodeFences returns all NodeFences.
func (l liveReader) nodeFences(ctx context.Context) ([]nodefence.NodeFence, error) {
	var all []nodefence.NodeFence
	err := pages(ctx, l.reader, func(list *nodefence.NodeFenceList) { all = append(all, list.Items...) })
	if err != nil {
		return nil, fmt.Errorf("list NodeFences: %w", err)
	}
	return all, nil
}

// lease returns the Lease of a node. found is false if there is none, and if it was never renewed.
func (l liveReader) lease(ctx context.Context, node string) (r renewal, found bool, err error) {
	lease := &coordinationv1.Lease{}
	err = l.reader.Get(ctx, types.NamespacedName{Namespace: leaseNamespace, Name: node}, lease)
	switch {
	case apierrors.IsNotFound(err):
		return renewal{}, false, nil
	case err != nil:
		return renewal{}, false, fmt.Errorf("read Lease %s/%s: %w", leaseNamespace, node, err)
	}
	r, found = renewalOf(lease)
	return r, found, nil
}

// leases returns the Leases of all nodes, by node. They are those of the API server's watch cache, which answers a
// resourceVersion of 0 without asking etcd, and in one page whatever the limit: they may be late.
func (l liveReader) leases(ctx context.Context) (map[string]renewal, error) {
	list := &coordinationv1.LeaseList{}
	err := l.reader.List(ctx, list,
		&client.ListOptions{Namespace: leaseNamespace, Raw: &metav1.ListOptions{ResourceVersion: "0"}})
	if err != nil {
		return nil, fmt.Errorf("list Leases of namespace %s: %w", leaseNamespace, err)
	}
	all := make(map[string]renewal, len(list.Items))
	for i := range list.Items {
		if r, ok := renewalOf(&list.Items[i]); ok {
			all[list.Items[i].Name] = r
		}
	}
	return all, nil
}

// leader returns the identity of the controller that has the lease of leader election.
func (l liveReader) leader(ctx context.Context) (string, error) {
	lease := &coordinationv1.Lease{}
	if err := l.reader.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: leaseName}, lease); err != nil {
		return "", err
	}
	return holder(lease), nil
}

// replica returns the name of a ready pod of the controller on another node, empty if there is none.
func (l liveReader) replica(ctx context.Context, node string) (string, error) {
	list := &corev1.PodList{}
	err := l.reader.List(ctx, list, client.InNamespace(l.namespace), client.MatchingLabels{labelName: programName})
	if err != nil {
		return "", fmt.Errorf("list pods of evictd-controller: %w", err)
	}
	for i := range list.Items {
		p := &list.Items[i]
		up := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if up && p.DeletionTimestamp == nil && p.Spec.NodeName != node {
			return p.Name, nil
		}
	}
	return "", nil
}

// pods returns the pods that are bound to a node.
func (l liveReader) pods(ctx context.Context, node string) ([]corev1.Pod, error) {
	var all []corev1.Pod
	err := pages(ctx, l.reader, func(list *corev1.PodList) { all = append(all, list.Items...) },
		client.MatchingFields{"spec.nodeName": node})
	if err != nil {
		return nil, fmt.Errorf("list pods of Node %s: %w", node, err)
	}
	return all, nil
}

// attachments returns the VolumeAttachments of a node. The API server can't select them by node.
func (l liveReader) attachments(ctx context.Context, node string) ([]storagev1.VolumeAttachment, error) {
	var all []storagev1.VolumeAttachment
	err := pages(ctx, l.reader, func(list *storagev1.VolumeAttachmentList) {
		for i := range list.Items {
			if list.Items[i].Spec.NodeName == node {
				all = append(all, list.Items[i])
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list VolumeAttachments: %w", err)
	}
	return all, nil
}

// claim returns namespace and name of the PersistentVolumeClaim that a PersistentVolume is bound to.
func (l liveReader) claim(ctx context.Context, volume string) (types.NamespacedName, error) {
	v := &corev1.PersistentVolume{}
	if err := l.reader.Get(ctx, types.NamespacedName{Name: volume}, v); apierrors.IsNotFound(err) {
		return types.NamespacedName{}, nil
	} else if err != nil {
		return types.NamespacedName{}, fmt.Errorf("read PersistentVolume %s: %w", volume, err)
	}
	if v.Spec.ClaimRef == nil {
		return types.NamespacedName{}, nil
	}
	return types.NamespacedName{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}, nil
}

// pages lists all objects and calls add with each page. A page is decoded into a list of its own: decoding into one
// that is in use would change its objects.
func pages[L any, P interface {
	*L
	client.ObjectList
}](ctx context.Context, reader client.Reader, add func(P), options ...client.ListOption) error {
	return pagesOf(ctx, reader, func() P { return new(L) }, add, options...)
}

// pagesOf is pages of lists that empty returns.
func pagesOf[P client.ObjectList](
	ctx context.Context, reader client.Reader, empty func() P, add func(P), options ...client.ListOption,
) error {
	next := ""
	for {
		list := empty()
		if err := reader.List(ctx, list, append(options, client.Limit(pageSize), client.Continue(next))...); err != nil {
			return err
		}
		add(list)
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// open returns the device of a method. The secrets are read each time, and are in no log and in no error.
func (l liveReader) open(ctx context.Context, m *fence.Method) (device.Device, error) {
	read := func(s plan.Source) (plan.Data, error) { return l.source(ctx, s) }
	if plan.FenceAgent(m.Agent) {
		return l.agents.open(ctx, m, read)
	}
	parameters, err := plan.Resolve(*m, read)
	if err != nil {
		return nil, err
	}
	switch m.Agent {
	case "ipmi":
		d, err := ipmi.New(parameters)
		if err != nil {
			return nil, fmt.Errorf("open device of method %s: %w", m.Name, err)
		}
		return d, nil
	case "redfish":
		d, err := redfish.New(parameters)
		if err != nil {
			return nil, fmt.Errorf("open device of method %s: %w", m.Name, err)
		}
		return d, nil
	}
	return nil, fmt.Errorf("open device of method %s: agent %q is not built in", m.Name, m.Agent)
}

// source returns the data of a ConfigMap or Secret of the controller's namespace.
func (l liveReader) source(ctx context.Context, s plan.Source) (plan.Data, error) {
	key := types.NamespacedName{Namespace: l.namespace, Name: s.Name}
	if s.ConfigMap {
		o := &corev1.ConfigMap{}
		if err := l.reader.Get(ctx, key, o); err != nil {
			return plan.Data{}, fmt.Errorf("namespace %s: %w", l.namespace, err)
		}
		return plan.Data{UID: string(o.UID), Values: o.Data}, nil
	}
	o := &corev1.Secret{}
	if err := l.reader.Get(ctx, key, o); err != nil {
		return plan.Data{}, fmt.Errorf("namespace %s: %w", l.namespace, err)
	}
	data := plan.Data{UID: string(o.UID), Values: make(map[string]string, len(o.Data))}
	for k, v := range o.Data {
		data.Values[k] = string(v)
	}
	return data, nil
}
