package kube

import (
	"errors"
	"net"
	"slices"
	"time"
)

// OrderHandler carries out evictd's orders. Its methods are called by one goroutine at a time, and
// must not block.
type OrderHandler interface {
	// Reset is called at the beginning of each session, before its first order. It withdraws all
	// orders: those that are still pending follow at once. The handler may keep what it knows
	// about them. Between two sessions it goes on with the orders that it has, for a minute:
	// then it is called too. Without evictd their pods may run again for another reason.
	Reset()
	// Order is called for a new order, for each later stage of it, and once in each session. The
	// handler reports its present answer each time: the one before may have been lost with the
	// session. It must not change o.
	Order(o *Order)
	// Withdraw is called when an order has ended or is void. Its ID may be unknown.
	Withdraw(id string)
}

// rightsUnknown is why evictions can't be reported before the first call of CannotReport. It is a
// part of the protocol: evictd compares it (Facts.noteCannotReport).
const rightsUnknown = "evictd-kube has not looked at its rights yet"

// CannotReport records why evictions can't be reported; "" if they can. Before the first call
// they can't, unless an earlier evictd-kube has said to evictd that they can.
func (f *Feed) CannotReport(why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cannotReport == why {
		return
	}
	f.cannotReport, f.sendState = why, true
	f.notify()
}

// Report sends the answer to an order soon, or drops it if evictd has not sent the order in
// this session. It never blocks. Only the newest answer to an order is sent.
func (f *Feed) Report(r *Report) {
	answer := &Report{ID: r.ID, Answer: r.Answer, Why: printable(r.Why)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.orders[r.ID] {
		return
	}
	if i := slices.IndexFunc(f.reports, func(r *Report) bool { return r.ID == answer.ID }); i >= 0 {
		f.reports[i] = answer
	} else {
		f.reports = append(f.reports, answer)
	}
	wakeUp(f.reported)
}

// resetOrders withdraws all orders.
func (f *Feed) resetOrders() {
	f.mu.Lock()
	f.orders, f.reports = map[string]bool{}, nil
	f.mu.Unlock()
	if f.Orders != nil {
		f.Orders.Reset()
	}
}

// forget withdraws the orders and the NodeState of the last session.
func (f *Feed) forget() {
	f.mu.Lock()
	n := len(f.orders)
	f.mu.Unlock()
	f.resetOrders()
	f.forgetNode()
	if n > 0 {
		f.Log.Warn("evictd does not come back; its orders are not carried out any more", "orders", n, "after", ordersKept.String())
	}
}

// order passes on an order.
func (f *Feed) order(o *Order) error {
	if err := errors.Join(checkID(o.ID), o.check()); err != nil {
		return err
	}
	if f.Orders == nil {
		return nil
	}
	f.mu.Lock()
	f.orders[o.ID] = true
	n := len(f.orders)
	f.mu.Unlock()
	if n > MaxOrders {
		return errors.New("more orders than evictd may have")
	}
	f.Orders.Order(o)
	return nil
}

// withdraw passes on that an order was withdrawn.
func (f *Feed) withdraw(id string) {
	f.mu.Lock()
	delete(f.orders, id)
	f.reports = slices.DeleteFunc(f.reports, func(r *Report) bool { return r.ID == id })
	f.mu.Unlock()
	if f.Orders != nil {
		f.Orders.Withdraw(id)
	}
}

// writeReports writes the answers to orders, NodeStates and NodeMarks.
func (f *Feed) writeReports(conn net.Conn) error {
	batch, err := f.takeReports(time.Now())
	return errors.Join(err, write(conn, batch))
}

// takeReports encodes the answers to orders, NodeStates and NodeMarks.
func (f *Feed) takeReports(now time.Time) (batch [][]byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.reports {
		if batch, err = f.first(batch, &Message{Report: r}, now); err != nil {
			break
		}
	}
	if f.nodeReport != nil && err == nil {
		batch, err = f.first(batch, &Message{NodeReport: f.nodeReport}, now)
	}
	if f.marksReport != nil && err == nil {
		batch, err = f.first(batch, &Message{MarksReport: f.marksReport}, now)
	}
	f.reports, f.nodeReport, f.marksReport = nil, nil, nil
	return batch, err
}
