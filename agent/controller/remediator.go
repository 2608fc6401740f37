package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// remediatorNamespace has one Lease for each node that a medik8s remediator, or one that works like them, is
	// working on. Without the namespace there is no such remediator.
	remediatorNamespace = "medik8s-leases"
	// remediatorDuration is how long the controller's Lease of a node is valid after it was renewed.
	remediatorDuration = 5 * time.Minute
	// remediatorSkew is by how much the clocks of remediators may differ.
	remediatorSkew = 30 * time.Second
)

// remediatorLeases are the Leases by which the remediators of a cluster exclude each other: node-NODE in the namespace
// medik8s-leases. All replicas of the controller are one holder, as leader election excludes them.
type remediatorLeases struct {
	live   liveReader
	writer client.Writer
	log    *slog.Logger

	mu sync.Mutex
	// held are the nodes whose Lease this process has taken or renewed.
	held map[string]bool
	// foreign is what was seen first of the Leases of others, by node: a clock that is ahead must not make one valid for
	// longer than its duration.
	foreign map[string]foreignLease
}

// foreignLease is when a version of another holder's Lease was seen first.
type foreignLease struct {
	version string
	since   time.Time
}

// heldError says that another remediator works on the node.
type heldError struct {
	name, holder string
	until        time.Time
}

func (e *heldError) Error() string {
	return fmt.Sprintf("Lease %s/%s is held by %q until %s: another remediator, or maintenance, works on the node; it is "+
		"fenced when the Lease has expired or is deleted", remediatorNamespace, e.name, e.holder, e.until.UTC().Format(time.RFC3339))
}

// remediatorTaint returns the key of a taint that a medik8s remediator, or its node maintenance, sets while it has an
// object for the node; empty if there is none.
func remediatorTaint(n *corev1.Node) string {
	for i := range n.Spec.Taints {
		domain, _, _ := strings.Cut(n.Spec.Taints[i].Key, "/")
		if domain == "medik8s.io" || strings.HasSuffix(domain, ".medik8s.io") {
			return n.Spec.Taints[i].Key
		}
	}
	return ""
}

// remediatorLeaseName returns the name of the Lease of a node, empty if it would be too long to exist.
func remediatorLeaseName(node string) string {
	name := "node-" + node
	if len(name) > validation.DNS1123SubdomainMaxLength {
		return ""
	}
	return name
}

// acquire takes the Lease of a node, or renews it. If take is false, it is only read. It returns a [heldError] if
// another holder has it. Without the namespace it does nothing.
func (l *remediatorLeases) acquire(ctx context.Context, node *corev1.Node, take bool) error {
	name := remediatorLeaseName(node.Name)
	if name == "" {
		return nil
	}
	lease, err := l.live.remediatorLease(ctx, name)
	if err != nil {
		return l.unusable(ctx, err)
	}
	now := time.Now()
	if lease != nil {
		if err := l.foreignHolder(lease, node.Name, now); err != nil {
			return err
		}
	}
	if !take || lease != nil && fresh(lease, now) {
		if take {
			l.setHeld(node.Name)
		}
		return nil
	}
	wanted := takenLease(lease, name, node, now)
	if lease == nil {
		err = l.writer.Create(ctx, wanted)
	} else {
		err = l.writer.Update(ctx, wanted)
	}
	if err != nil {
		return l.unusable(ctx, fmt.Errorf("take Lease %s/%s: %w", remediatorNamespace, name, err))
	}
	if lease == nil || holder(lease) != programName {
		l.log.Info("Lease of the node's remediators taken", "node", node.Name, "lease", remediatorNamespace+"/"+name)
	}
	l.setHeld(node.Name)
	return nil
}

// foreignHolder returns a [heldError] if another holder has a Lease that is valid.
func (l *remediatorLeases) foreignHolder(lease *coordinationv1.Lease, node string, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := holder(lease); h == "" || h == programName {
		delete(l.foreign, node)
		return nil
	}
	seen := l.foreign[node]
	if version := string(lease.UID) + "/" + lease.ResourceVersion; seen.version != version {
		seen = foreignLease{version, now}
		if l.foreign == nil {
			l.foreign = make(map[string]foreignLease)
		}
		l.foreign[node] = seen
	}
	delete(l.held, node)
	if until := leaseExpiry(lease, seen.since); now.Before(until) {
		return &heldError{lease.Name, holder(lease), until}
	}
	return nil
}

// leaseExpiry returns when a Lease of another holder that was seen first at a time is no longer valid. Without a time or a
// duration it is not valid for ever.
func leaseExpiry(lease *coordinationv1.Lease, seen time.Time) time.Time {
	from, duration := seen, remediatorDuration
	if t := lease.Spec.RenewTime; t != nil && t.Time.Before(seen) {
		from = t.Time
	}
	if s := lease.Spec.LeaseDurationSeconds; s != nil {
		duration = time.Duration(*s) * time.Second
	}
	return from.Add(duration + remediatorSkew)
}

// fresh reports whether a Lease is the controller's, and more than half of its duration is left.
func fresh(lease *coordinationv1.Lease, now time.Time) bool {
	if holder(lease) != programName || lease.Spec.RenewTime == nil {
		return false
	}
	age := now.Sub(lease.Spec.RenewTime.Time)
	return age >= 0 && age < remediatorDuration/2
}

func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// takenLease returns the Lease of a node with the controller as its holder. lease is the present one, nil if there is
// none; the API server refuses the new one if the present one has changed.
func takenLease(lease *coordinationv1.Lease, name string, node *corev1.Node, now time.Time) *coordinationv1.Lease {
	at := metav1.NewMicroTime(now)
	if lease == nil {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: remediatorNamespace, Name: name}}
	}
	lease = lease.DeepCopy()
	spec := &lease.Spec
	if holder(lease) != programName {
		transitions := int32(1)
		if spec.LeaseTransitions != nil {
			transitions += *spec.LeaseTransitions
		}
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = new(programName), &at, &transitions
	}
	spec.RenewTime, spec.LeaseDurationSeconds = &at, new(int32(remediatorDuration/time.Second))
	// It is deleted with the Node.
	lease.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID,
	}}
	return lease
}

// unusable returns the error of a request for a Lease, nil if the namespace does not exist. The API server refuses a
// request without the right before it looks for the namespace.
func (l *remediatorLeases) unusable(ctx context.Context, err error) error {
	if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
		return err
	}
	exists, readErr := l.live.remediatorNamespace(ctx)
	switch {
	case readErr != nil:
		return errors.Join(err, readErr)
	case !exists:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: apply deploy/kubernetes/controller/medik8s", err)
	}
	return err
}

// release deletes the Lease of a node, as other remediators do, if this process has taken it. If it can't, the Lease
// expires.
func (l *remediatorLeases) release(ctx context.Context, node string) {
	l.mu.Lock()
	held := l.held[node]
	delete(l.held, node)
	l.mu.Unlock()
	if !held {
		return
	}
	name := remediatorLeaseName(node)
	lease, err := l.live.remediatorLease(ctx, name)
	if err == nil && lease != nil && holder(lease) == programName {
		err = l.writer.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		l.log.Warn("could not release the Lease of the node's remediators; it expires", "node", node,
			"lease", remediatorNamespace+"/"+name, "valid_for", remediatorDuration, "error", err)
		return
	}
	l.log.Info("Lease of the node's remediators released", "node", node, "lease", remediatorNamespace+"/"+name)
}

func (l *remediatorLeases) setHeld(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = make(map[string]bool)
	}
	l.held[node] = true
}

func (l *remediatorLeases) holds(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[node]
}

// forget removes what is remembered of nodes that are gone.
func (l *remediatorLeases) forget(present map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	forget(l.held, present)
	forget(l.foreign, present)
}

// remediatorLease returns a Lease of the remediators, nil if there is none.
func (l liveReader) remediatorLease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := l.reader.Get(ctx, types.NamespacedName{Namespace: remediatorNamespace, Name: name}, lease)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Lease %s/%s: %w", remediatorNamespace, name, err)
	}
	return lease, nil
}

// remediatorNamespace reports whether the namespace of the remediators' Leases exists.
func (l liveReader) remediatorNamespace(ctx context.Context) (bool, error) {
	err := l.reader.Get(ctx, types.NamespacedName{Name: remediatorNamespace}, &corev1.Namespace{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read namespace %s: %w", remediatorNamespace, err)
	}
	return true, nil
}
