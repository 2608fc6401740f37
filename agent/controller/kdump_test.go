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
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// The controller checks again that a release without a proof is what the plan says, whatever was ordered.
func TestKdumpOrders(t *testing.T) {
	now := metav1.NowMicro()
	dumping := func(change func(*fence.State, *fence.KdumpSession)) func(*fence.State) {
		return func(s *fence.State) {
			s.Status, s.Plan.Kdump = fence.New, fence.KdumpRelease
			s.Kdump = &fence.KdumpSession{Phase: fence.KdumpDumping, Heard: []metav1.MicroTime{now, now}, Released: now}
			if change != nil {
				change(s, s.Kdump)
			}
		}
	}
	for name, tt := range map[string]struct {
		change    func(*fence.State)
		node      string
		forbidden bool
		release   bool
	}{
		"dumping":        {change: dumping(nil), release: true},
		"another plan":   {change: dumping(func(s *fence.State, _ *fence.KdumpSession) { s.Plan.Kdump = fence.KdumpDelay })},
		"no session":     {change: dumping(func(s *fence.State, _ *fence.KdumpSession) { s.Kdump = nil })},
		"finished":       {change: dumping(func(_ *fence.State, k *fence.KdumpSession) { k.Phase = fence.KdumpFinished })},
		"one datagram":   {change: dumping(func(_ *fence.State, k *fence.KdumpSession) { k.Heard = k.Heard[1:] })},
		"not saved":      {change: dumping(func(_ *fence.State, k *fence.KdumpSession) { k.Released = metav1.MicroTime{} })},
		"proving":        {change: dumping(func(s *fence.State, _ *fence.KdumpSession) { s.Phase = fence.Proving })},
		"recovery":       {change: dumping(func(s *fence.State, _ *fence.KdumpSession) { s.Step = fence.Recovery })},
		"dry run":        {change: dumping(func(s *fence.State, _ *fence.KdumpSession) { s.DryRun = true })},
		"another Node":   {change: dumping(nil), node: "other"},
		"gate withholds": {change: dumping(nil), forbidden: true},
	} {
		n := deadNode()
		if tt.node != "" {
			n.UID = types.UID(tt.node)
		}
		r, api := testReconciler(t, nil, interceptor.Funcs{}, n, pod("db-0", "StatefulSet", nil), attached("a1", "pv", san))
		nf := runningFence(tt.change)
		state := stateOf(nf)
		p := &pass{reconciler: r, name: "n1", node: getNode(t, api), forbidden: tt.forbidden}
		orders := fence.Orders{
			Taints: fence.Taints{Quarantine: true}, Delete: []fence.Pod{{UID: "uid-of-db-0", Namespace: "default", Name: "db-0"}},
			Detach: []fence.Attachment{{UID: "uid-of-a1", Name: "a1"}},
		}
		if err := p.carryOut(t.Context(), nf, &state, &orders, time.Time{}); err != nil {
			t.Errorf("%s: carryOut = %v", name, err)
		}
		err := api.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "db-0"}, &corev1.Pod{})
		if apierrors.IsNotFound(err) != tt.release {
			t.Errorf("%s: pod %v; want released: %t", name, err, tt.release)
		}
		err = api.Get(t.Context(), types.NamespacedName{Name: "a1"}, &storagev1.VolumeAttachment{})
		if err != nil || taintIndex(getNode(t, api), &outOfService) >= 0 {
			t.Errorf("%s: the volumes were released: %v", name, err)
		}
	}
}
