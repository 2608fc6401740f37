package controller

import (
	"context"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/kdump"
)

// noAddress is the value of an address flag that means: nowhere.
const noAddress = "0"

// kdumpListener says what dump kernels have sent.
type kdumpListener interface {
	// Tried reports whether the first attempt to listen is over.
	Tried() bool
	// Since returns since when it has listened without a gap, zero if it does not listen.
	Since() time.Time
	// Session returns the last session of a node, the zero one if there is none.
	Session(node string) kdump.Session
}

// newKdumpListener returns the listener for datagrams of dump kernels, nil if there is none.
func newKdumpListener(
	ctx context.Context, o *Options, cached client.Reader, datagrams *prometheus.CounterVec, began func(node string),
) *kdump.Listener {
	if o.KdumpAddress == "" || o.KdumpAddress == noAddress {
		return nil
	}
	return &kdump.Listener{
		Address: o.KdumpAddress, Log: o.Log, Began: began,
		Count: func(r kdump.Result) { datagrams.WithLabelValues(string(r)).Inc() },
		Nodes: func() map[netip.Addr]string {
			nodes := &corev1.NodeList{}
			if err := cached.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
				o.Log.Warn("kdump: addresses of nodes are not known", "error", err)
			}
			return internalAddresses(nodes.Items)
		},
	}
}

// internalAddresses returns the nodes by their InternalIPs. An address that two nodes have belongs to neither.
func internalAddresses(nodes []corev1.Node) map[netip.Addr]string {
	owners := make(map[netip.Addr]string, len(nodes))
	shared := make(map[netip.Addr]bool)
	for i := range nodes {
		for _, a := range nodes[i].Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if err != nil || a.Type != corev1.NodeInternalIP {
				continue
			}
			ip = ip.Unmap()
			if owner, ok := owners[ip]; ok && owner != nodes[i].Name {
				shared[ip] = true
			}
			owners[ip] = nodes[i].Name
		}
	}
	for ip := range shared {
		delete(owners, ip)
	}
	return owners
}

// kdumpFacts returns what the dump kernel of a node has sent.
func kdumpFacts(l kdumpListener, node string) fence.Kdump {
	if l == nil {
		return fence.Kdump{}
	}
	s := l.Session(node)
	return fence.Kdump{Since: l.Since(), First: s.First, Last: s.Last, Datagrams: s.Datagrams}
}
