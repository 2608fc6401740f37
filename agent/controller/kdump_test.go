package controller

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

// addressed gives a Node addresses.
func addressed(n *corev1.Node, kind corev1.NodeAddressType, addresses ...string) *corev1.Node {
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: a})
	}
	return n
}

func TestInternalAddresses(t *testing.T) {
	nodes := []corev1.Node{
		*addressed(healthyNode("n1"), corev1.NodeInternalIP, "192.0.2.1", "2001:db8::1", "192.0.2.1"),
		*addressed(healthyNode("n2"), corev1.NodeInternalIP, "192.0.2.2", "192.0.2.7", "nonsense"),
		*addressed(healthyNode("n3"), corev1.NodeInternalIP, "192.0.2.7", "192.0.2.3"),
		*addressed(healthyNode("n4"), corev1.NodeInternalIP, "::ffff:192.0.2.7", "::ffff:192.0.2.4"),
		*addressed(healthyNode("n5"), corev1.NodeExternalIP, "192.0.2.5"),
		*addressed(healthyNode("n6"), corev1.NodeHostName, "192.0.2.6"),
	}
	got := map[string]string{}
	for ip, node := range internalAddresses(nodes) {
		got[ip.String()] = node
	}
	want := map[string]string{"192.0.2.1": "n1", "2001:db8::1": "n1", "192.0.2.2": "n2", "192.0.2.3": "n3", "192.0.2.4": "n4"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

func TestNoKdumpListener(t *testing.T) {
	for _, address := range []string{"", "0"} {
		if l := newKdumpListener(t.Context(), &Options{KdumpAddress: address}, nil, nil, nil); l != nil {
			t.Errorf("with the address %q there is a listener", address)
		}
	}
	if k := kdumpFacts(nil, "n1"); k != (fence.Kdump{}) {
		t.Errorf("facts without a listener: %v", k)
	}
}

// A node that sends datagrams is not switched off, and no pass is made before it is known whether it does.
func TestKdumpWait(t *testing.T) {
	nf := runningFence(func(s *fence.State) {
		s.Status, s.Attempt, s.Plan.Kdump = fence.New, 0, fence.KdumpDelay
	})
	d := &faultyDevice{uuid: machine}
	node := addressed(deadNode(), corev1.NodeInternalIP, "127.0.0.1")
	renewed := time.Now().Add(-time.Hour).Truncate(time.Second)
	r, api := testReconciler(t, d, interceptor.Funcs{}, node, nf, leaseOf("n1", renewed),
		healthyNode("n2"), leaseOf("n2", time.Now()), healthyNode("n3"), leaseOf("n3", time.Now()))
	r.observer.leases.observe("n1", renewal{renewed: renewed}, renewed)
	free, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(free.LocalAddr().(*net.UDPAddr).Port))
	free.Close()
	began := make(chan string, 1)
	numbers := newMetrics(api)
	o := &Options{KdumpAddress: address.String(), Log: slog.New(slog.DiscardHandler)}
	listener := newKdumpListener(t.Context(), o, api, numbers.datagrams, func(node string) { began <- node })
	r.kdump = listener
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: "n1"}}
	pass := func() *nodefence.NodeFence {
		t.Helper()
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		after := &nodefence.NodeFence{}
		if err := api.Get(t.Context(), types.NamespacedName{Name: nf.Name}, after); err != nil {
			t.Fatal(err)
		}
		return after
	}
	if result, err := r.Reconcile(t.Context(), request); err != nil || result.RequeueAfter != configWait {
		t.Fatalf("pass before the listener was started: %v, %v; want another one after %v", result, err, configWait)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { listener.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	for !r.kdump.Tried() {
		time.Sleep(time.Millisecond)
	}
	conn, err := net.Dial("udp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{0x40, 0x2a, 0x30, 0x1b, 1, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if node := <-began; node != "n1" {
		t.Fatalf("session of %s; want n1", node)
	}
	after := pass()
	k := after.State.Kdump
	waits := meta.IsStatusConditionTrue(after.State.Conditions, fence.ConditionKdumpWait)
	if !waits || k == nil || k.Datagrams != 1 || after.Status != fence.New {
		t.Errorf("fence %s/%s, kdump %+v, conditions %v; want one that waits", after.Step, after.Status, k, after.State.Conditions)
	}
	cancel()
	<-ended
	if after = pass(); after.Status != fence.Running {
		t.Errorf("fence %s/%s without a listener; want one that goes on: %v", after.Step, after.Status, after.State.Conditions)
	}
}
