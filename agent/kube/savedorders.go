package kube

import (
	"cmp"
	"slices"
	"time"
)

// SavedOrder is an order as it is saved.
type SavedOrder struct {
	Order Order `json:"order"`
	// Began is when the order was made, and Killed when it reached StageKilled; zero if it did
	// not. Order.Decided is never converted to another clock, because evictd-kube recognizes by
	// it what it has written.
	Began  time.Time `json:"began"`
	Killed time.Time `json:"killed,omitzero"`
	// KilledAt is Killed by the wall clock of that time, in nanoseconds since 1970, as the runtime
	// says when a container was created, or when the newest of those that were killed was created if that is
	// later: the clock was set back since. It is never converted either.
	KilledAt int64 `json:"killedAt,omitempty"`
	// Answer is the last answer, or the first final one, which came at Answered.
	Answer   Answer    `json:"answer,omitempty"`
	Why      string    `json:"why,omitempty"`
	Answered time.Time `json:"answered,omitzero"`
	// Ended means that no process of the pod's containers is left, and CgroupGone that the
	// pod's cgroup was removed.
	Ended      bool `json:"ended,omitempty"`
	CgroupGone bool `json:"cgroupGone,omitempty"`
}

// noteKill notes a kill. lastStart is when the newest of the killed containers was created; 0 if unknown.
func (s *SavedOrder) noteKill(now time.Time, lastStart int64) {
	s.Killed, s.KilledAt = now, max(now.UnixNano(), lastStart)
}

// EachTime calls f with each time that is set and that moves with the wall clock.
func (s *SavedOrder) EachTime(f func(*time.Time)) {
	for _, t := range []*time.Time{&s.Began, &s.Killed, &s.Answered} {
		if !t.IsZero() {
			f(t)
		}
	}
}

// Has reports whether an order for a pod is pending.
func (o *Orders) Has(uid string) bool {
	if o == nil { // there is no evictd-kube
		return false
	}
	_, ok := o.Order(uid)
	return ok
}

// Order returns the pending order for a pod; ok is false if it has none.
func (o *Orders) Order(uid string) (saved SavedOrder, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.byUID[uid]; p != nil {
		return p.SavedOrder, true
	}
	return SavedOrder{}, false
}

// Saved returns the orders that are pending, the oldest first.
func (o *Orders) Saved() []SavedOrder {
	o.mu.Lock()
	defer o.mu.Unlock()
	var list []SavedOrder
	for _, p := range o.oldestFirst() {
		list = append(list, p.SavedOrder)
	}
	return list
}

// oldestFirst returns the orders that are pending, the oldest first.
func (o *Orders) oldestFirst() []*pending {
	list := make([]*pending, 0, len(o.byUID))
	for _, p := range o.byUID {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *pending) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.Order.ID, b.Order.ID))
	})
	return list
}

// Restore loads the orders of an earlier evictd of this boot, before Run and the first
// session. Their times but Order.Decided are already converted to the present clock
// ([SavedOrder.EachTime]). It ignores orders that are not valid. A fence may have been lifted since
// the order was saved, so no order is fenced before [Orders.Fenced].
func (o *Orders) Restore(saved []SavedOrder, now time.Time) {
	o.mu.Lock()
	defer o.unlock()
	for _, s := range saved {
		if len(o.byUID) == MaxOrders || s.check() != nil || o.byUID[s.Order.UID] != nil || o.byID[s.Order.ID] != nil {
			continue
		}
		s.EachTime(func(t *time.Time) {
			if t.After(now) { // else an order might never end
				*t = now
			}
		})
		s.Order.Fenced = false
		p := &pending{SavedOrder: s}
		o.byUID[s.Order.UID], o.byID[s.Order.ID] = p, p
		if p.Answer == AnswerForbidden {
			o.forbid(p)
		}
	}
}

// check returns an error if no evictd has saved the order.
func (s *SavedOrder) check() error {
	if err := s.Order.check(); err != nil {
		return err
	}
	if s.Answer == "" {
		return checkID(s.Order.ID)
	}
	r := Report{ID: s.Order.ID, Answer: s.Answer, Why: s.Why}
	return r.check()
}
