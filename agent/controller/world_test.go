package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

const (
	// bmcDevice switches the machine of n1, portDevice cuts it off from the SAN.
	bmcDevice, portDevice = "bmc1", "port1"
	// actTime is how long a device takes to switch.
	actTime = 2 * time.Second
	// bootTime is the time from power on to Ready.
	bootTime = 30 * time.Second
)

// world is all that is not the controller: the machine of n1 with its devices, its kubelet, the attach/detach
// controller and people. It also observes each write of a controller and each act on a device, and fails the test if
// one breaks a rule. It knows nothing of the states of a fence.
type world struct {
	t   *testing.T
	api client.WithWatch // of the world; controllers have the one of observed
	// each is called every second, for what people and devices do.
	each func(context.Context, *world)

	mu       sync.Mutex
	on       map[string]bool // by device
	ignores  map[string]bool // devices that accept commands and do nothing
	silent   map[string]bool // devices that do not answer
	lost     bool            // the machine runs, and nothing of it reaches the API server
	boots    int
	bootedAt time.Time
	beatAt   time.Time
	detached bool
	fence    *nodefence.NodeFence // as it was saved last, nil if it is gone
	tainted  bool                 // n1 is out of service
	// cutBoots is how often the machine had booted when pods were released because of the port, -1 if none were.
	cutBoots int
	inFlight map[string]string // the act by device
	acts     map[string]int    // how often each intent was executed
	offs     int               // how often the machine was switched off
	intents  []string          // all, in order
	// secretUntil is until when devices can't be opened.
	secretUntil time.Time
	begun       time.Time
	// erased says that what the NodeFence says of acts was changed by hand.
	erased bool
	// moved says that the NodeFence may be gone or changed while an act is executed.
	moved bool
	// removed says that the Node is gone for good.
	removed bool
	// skew is how far the clock of the machine is ahead of that of the controller.
	skew time.Duration
}

func newWorld(t *testing.T, api client.WithWatch) *world {
	return &world{
		t: t, api: api, on: map[string]bool{bmcDevice: true, portDevice: true}, ignores: map[string]bool{}, silent: map[string]bool{},
		lost: true, begun: time.Now(), cutBoots: -1, inFlight: map[string]string{}, acts: map[string]int{},
	}
}

// broken reports a rule that was broken.
func (w *world) broken(format string, args ...any) {
	w.t.Errorf("rule broken: %s; intents %v, fence %+v", fmt.Sprintf(format, args...), w.intents, w.fence)
}

// observed returns a client whose writes are observed when they take effect.
func (w *world) observed() client.WithWatch {
	return interceptor.NewClient(w.api, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := c.Create(ctx, o, opts...); err != nil {
				return err
			}
			w.saw(o)
			return nil
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := c.Update(ctx, o, opts...); err != nil {
				return err
			}
			w.saw(o)
			return nil
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := c.Patch(ctx, o, p, opts...); err != nil {
				return err
			}
			w.saw(o)
			return nil
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			w.deletes(ctx, o)
			if err := c.Delete(ctx, o, opts...); err != nil {
				return err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if _, ok := o.(*nodefence.NodeFence); ok {
				w.fence = nil
			}
			return nil
		},
	})
}

// saw takes an object as it was just written.
func (w *world) saw(o client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := o.(type) {
	case *nodefence.NodeFence:
		w.fence = o.DeepCopy()
	case *corev1.Node:
		w.sawNode(o)
	}
}

func (w *world) sawNode(n *corev1.Node) {
	tainted := taintIndex(n, &outOfService) >= 0
	if tainted && !w.tainted && w.on[bmcDevice] {
		w.broken("the Node becomes out of service, and its machine is on")
	}
	w.tainted = tainted
}

// deletes checks the deletion of an object of n1 by a controller: its machine is off, or what uses the object is cut
// off from the SAN.
func (w *world) deletes(ctx context.Context, o client.Object) {
	name := o.GetName()
	switch o := o.(type) {
	case *corev1.Pod:
		if w.api.Get(ctx, client.ObjectKeyFromObject(o), &corev1.Pod{}) != nil {
			return // it is gone
		}
	case *storagev1.VolumeAttachment:
		if w.api.Get(ctx, client.ObjectKeyFromObject(o), &storagev1.VolumeAttachment{}) != nil {
			return
		}
	default:
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch usesSAN := strings.HasPrefix(name, "db-") || name == "volume"; {
	case !w.on[bmcDevice]:
	case w.on[portDevice] || !usesSAN:
		w.broken("%T %s is deleted, and the machine of its node is on", o, name)
	default:
		w.cutBoots = w.boots
	}
}

// begins notes an act that begins on a device, and returns its intent.
func (w *world) begins(device string, action fence.Action) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	intent := fmt.Sprint("none at ", time.Now())
	if w.fence != nil && w.fence.State.Intent != nil {
		i := w.fence.State.Intent
		intent = string(w.fence.UID) + "/" + i.ID
		if i.Action != action && !w.moved {
			w.broken("%s of %s, but the saved intent is %s", action, device, i.Action)
		}
	} else if !w.moved {
		w.broken("%s of %s without a saved intent", action, device)
	}
	for busy, other := range w.inFlight {
		w.broken("%s begins on %s while %s is in flight on %s", intent, device, other, busy)
	}
	w.executed(intent)
	w.inFlight[device] = intent
	return intent
}

// executed counts an act.
func (w *world) executed(intent string) {
	w.intents = append(w.intents, intent)
	if w.acts[intent]++; w.acts[intent] > 1 && !w.erased {
		w.broken("%s is executed twice", intent)
	}
}

// ends notes that an act has ended: the device has switched.
func (w *world) ends(device string, action fence.Action, intent string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inFlight[device] == intent {
		delete(w.inFlight, device)
	}
	on := action == fence.On
	if !w.ignores[device] {
		w.power(device, on)
	}
}

// power switches a device.
func (w *world) power(device string, on bool) {
	was := w.on[device]
	w.on[device] = on
	switch {
	case was == on:
	case device == portDevice && on && w.cutBoots == w.boots && w.on[bmcDevice]:
		w.broken("the machine gets its storage back with what it had in memory when its pods were released")
	case device == bmcDevice && on:
		w.boots, w.bootedAt, w.beatAt, w.lost = w.boots+1, time.Now(), time.Time{}, false
		if w.tainted {
			w.broken("the machine is switched on while its Node is out of service")
		}
	case device == bmcDevice:
		w.offs++
	}
}

// run is what happens around the controller: a machine that was switched on is Ready 30 s later and renews its Lease,
// and the volumes of a node that is out of service, or runs, are detached, all without a look at the controller.
func (w *world) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		if w.each != nil {
			w.each(ctx, w)
		}
		w.mu.Lock()
		now := time.Now()
		up := w.on[bmcDevice] && !w.lost && now.Sub(w.bootedAt) >= bootTime
		beat := up && now.Sub(w.beatAt) >= leasePeriod
		detach := w.tainted || beat
		boot := fmt.Sprint("boot", w.boots+1)
		silent := !up && !w.beatAt.IsZero() && now.Sub(w.beatAt) > 40*time.Second
		switch {
		case beat:
			w.beatAt = now
		case silent:
			w.beatAt = time.Time{}
		}
		w.mu.Unlock()
		if detach {
			w.detach(ctx)
		}
		if beat {
			w.beat(ctx, boot)
		}
		if silent {
			w.setReady(ctx, "", corev1.ConditionUnknown)
		}
	}
}

// detach deletes the VolumeAttachment if its pod is gone.
func (w *world) detach(ctx context.Context) {
	if w.detached || !apierrors.IsNotFound(w.api.Get(ctx, client.ObjectKeyFromObject(pod("db-0", "", nil)), &corev1.Pod{})) {
		return
	}
	w.detached = true
	if err := w.api.Delete(ctx, attachment("volume", "n1", "pv")); err != nil && !apierrors.IsNotFound(err) {
		w.t.Errorf("detach: %v", err)
	}
}

// beat renews the Lease and the status of the Node.
func (w *world) beat(ctx context.Context, boot string) {
	lease := &coordinationv1.Lease{}
	if err := w.api.Get(ctx, types.NamespacedName{Namespace: leaseNamespace, Name: "n1"}, lease); err != nil {
		w.t.Errorf("read the Lease: %v", err)
		return
	}
	lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(w.skew)))
	if err := w.api.Update(ctx, lease); err != nil {
		w.t.Errorf("renew the Lease: %v", err)
	}
	w.setReady(ctx, boot, corev1.ConditionTrue)
}

// setReady sets the boot ID, unless that is empty, and whether the Node is Ready.
func (w *world) setReady(ctx context.Context, boot string, status corev1.ConditionStatus) {
	node := &corev1.Node{}
	if err := w.api.Get(ctx, request.NamespacedName, node); err != nil {
		if !w.removed {
			w.t.Errorf("read the Node: %v", err)
		}
		return
	}
	if (boot == "" || node.Status.NodeInfo.BootID == boot) && node.Status.Conditions[0].Status == status {
		return
	}
	if boot != "" {
		node.Status.NodeInfo.BootID = boot
	}
	node.Status.Conditions[0].Status = status
	if err := w.api.Status().Update(ctx, node); err != nil {
		w.t.Errorf("update the Node: %v", err)
	}
}

// plug is a device as one life of the controller uses it.
type plug struct {
	*world
	life   *life
	device string
}

func (p *plug) Status(ctx context.Context) (fence.Power, error) {
	p.mu.Lock()
	silent, on := p.silent[p.device], p.on[p.device]
	p.mu.Unlock()
	switch {
	case p.life.dead():
		return "", errKilled
	case silent:
		<-ctx.Done()
		return "", ctx.Err()
	case on:
		return fence.PowerOn, nil
	}
	return fence.PowerOff, nil
}

func (p *plug) Off(ctx context.Context) error { return p.act(ctx, fence.Off) }
func (p *plug) On(ctx context.Context) error  { return p.act(ctx, fence.On) }

// act switches. The command of a killed controller may take effect later: it is in flight until then.
func (p *plug) act(_ context.Context, action fence.Action) error {
	what, sent := fmt.Sprintf("%s of %s", action, p.device), false
	send := func(delay time.Duration) {
		sent = true
		intent := p.begins(p.device, action)
		time.Sleep(delay)
		p.ends(p.device, action, intent)
	}
	err := p.life.do(what, func() error {
		send(actTime)
		return nil
	})
	if err != nil && !sent && p.life.where == "before "+what && p.life.late > 0 {
		go send(p.life.late)
	}
	return err
}

func (p *plug) UUID(context.Context) (string, error) { return machine, nil }

// judge fails the test unless the node has recovered, nothing of the fence is left at it, and what was on the machine
// is released.
func (w *world) judge(t *testing.T) {
	t.Helper()
	if nf := getFence(t, w.api); nf == nil || nf.State.Result != fence.Recovered {
		t.Errorf("fence = %+v; want Recovered", nf)
	}
	w.judgeMachine(t)
}

// judgeMachine is judge, whatever became of the fence.
func (w *world) judgeMachine(t *testing.T) {
	t.Helper()
	if w.offs == 0 || w.boots == 0 {
		t.Errorf("off %d times and booted %d times; want both", w.offs, w.boots)
	}
	w.judgeTaints(t)
	if !w.on[portDevice] || !w.on[bmcDevice] {
		t.Errorf("on: %v; want all", w.on)
	}
	gone := []client.Object{pod("db-0", "", nil), attachment("volume", "n1", "pv")}
	for _, o := range gone {
		if err := w.api.Get(t.Context(), types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}, o); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s: %v; want that it is gone", o, o.GetName(), err)
		}
	}
}

// judgeTaints fails the test if something of a fence that has ended is left at the Node.
func (w *world) judgeTaints(t *testing.T) {
	t.Helper()
	nf, node := getFence(t, w.api), getNode(t, w.api)
	if nf != nil && !finished(nf) {
		return
	}
	if len(node.Spec.Taints) > 0 || marked(node) || node.Annotations[annotationCordon] != "" || node.Spec.Unschedulable {
		t.Errorf("the Node has the taints %v and annotations %v, unschedulable: %t; want none",
			node.Spec.Taints, node.Annotations, node.Spec.Unschedulable)
	}
}
