package kube

import (
	"maps"
	"time"
)

// OrdersStatus describes the orders.
type OrdersStatus struct {
	// Pending are the orders, the oldest first. Unanswered is how many of them have no final
	// answer.
	Pending    []PendingOrder
	Unanswered int
	// Forbidden is the number of pods that are not evicted because their report was forbidden,
	// also of those that are gone. At most maxUIDs are remembered.
	Forbidden int
	// These count since the start: orders that began, evictions for which there was no room
	// (Rejected), orders that ended by FenceTimeout (TimedOut), and those whose fence was lifted
	// for whatever reason (Lifted).
	Begun, Rejected, TimedOut, Lifted uint64
	// Answers counts the answers. An answer that repeats the one before is not counted, except
	// AnswerAsserted: each is a report that the kubelet had undone.
	Answers map[Answer]uint64
	// Unknown counts the answers to orders that are not pending.
	Unknown uint64
}

// PendingOrder describes an order.
type PendingOrder struct {
	Order  Order
	Began  time.Time
	Killed time.Time // zero if the pod was not killed
	Answer Answer    // "" before the first
	Final  bool      // nothing more is expected of evictd-kube
	Why    string
	// CgroupGone means that only the answer is waited for, and AwaitsProcesses that evictd-kube
	// waits for the end of the processes: there is no final answer before.
	CgroupGone, AwaitsProcesses bool
}

// WaitsSince returns since when the present step of an order is waited for.
func (p *PendingOrder) WaitsSince() time.Time {
	if p.AwaitsProcesses {
		return p.Killed // Began may be that of a grace period
	}
	return p.Began
}

// Status returns the present status.
func (o *Orders) Status() OrdersStatus {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.counts
	s.Answers, s.Forbidden = maps.Clone(s.Answers), len(o.forbidden.order)
	for _, p := range o.oldestFirst() {
		s.Pending = append(s.Pending, PendingOrder{p.Order, p.Began, p.Killed, p.Answer, p.Answer.final(), p.Why, p.CgroupGone, !p.Answer.final() && p.Order.awaitsProcesses()})
		if !p.Answer.final() {
			s.Unanswered++
		}
	}
	return s
}

// attach begins a session: all orders are sent, and from then on their changes.
func (o *Orders) attach(session *outbox) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.session = session
	for _, p := range o.oldestFirst() {
		session.order(p.Order.ID)
	}
}

// detach ends a session.
func (o *Orders) detach(session *outbox) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.session == session {
		o.session = nil
	}
}

// send sends the present stage of an order, if there is a session.
func (o *Orders) send(p *pending) {
	if o.session != nil {
		o.session.order(p.Order.ID)
	}
}

// lookup returns a copy of an order; nil if it has ended or is void.
func (o *Orders) lookup(id string) *Order {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.byID[id]; p != nil && p.lift == "" {
		return new(p.Order)
	}
	return nil
}
