package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// session is a connection whose hellos were exchanged.
type session struct {
	*Server
	out  *outbox
	list *ListID // the list that is being sent; nil for none

	warned bool // of a node without facts
}

// run sends the orders, and applies the peer's messages, until one of both fails. A peer that
// does not read does not keep evictd from reading.
func (t *session) run(ctx context.Context, conn net.Conn, lines *lineReader) error {
	lookup := func(string) *Order { return nil }
	if t.Orders != nil {
		lookup = t.Orders.lookup
		t.Orders.attach(t.out)
		defer t.Orders.detach(t.out)
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	defer t.startAsking(writing)()
	written := make(chan error, 1)
	go func() {
		written <- t.out.write(writing, conn, lookup)
		conn.Close()
	}()
	err := t.read(ctx, conn, lines)
	select {
	case writeErr := <-written: // which ended read
		switch {
		case errors.Is(writeErr, os.ErrDeadlineExceeded):
			err = errNotRead
		case writeErr != nil:
			err = fmt.Errorf("write to evictd-kube: %w", writeErr)
		}
	default:
		stop()
		conn.Close()
		<-written
	}
	return err
}

// read applies messages until one fails.
func (t *session) read(ctx context.Context, conn net.Conn, lines *lineReader) error {
	for {
		if err := conn.SetReadDeadline(time.Now().Add(silenceTimeout)); err != nil {
			return err
		}
		line, err := lines.next()
		if err != nil {
			return err
		}
		if !t.throttle(ctx, decodedSize(line)) {
			return net.ErrClosed
		}
		m, err := decode(line)
		if err != nil {
			return err
		}
		if m.Listed != nil && !sleep(ctx, time.Until(t.listedAt.Add(listInterval))) {
			return net.ErrClosed
		}
		if err := t.apply(m); err != nil {
			return err
		}
	}
}

// apply applies a message.
func (t *session) apply(m *Message) error {
	now := time.Now()
	switch {
	case m.State != nil:
		t.Facts.setState(m.State, now)
		t.allow(now)
		t.checkNode(now)
		t.ask(now)
		return nil
	case m.List != nil:
		t.list = m.List
		t.Facts.begin()
		return nil
	case m.Pod != nil:
		if why := t.Facts.put(m.Pod, now); why != "" {
			t.logRefusal(m.Pod, why, now)
		}
	case m.Report != nil:
		if err := m.Report.check(); err != nil || t.Orders == nil {
			return err
		}
		t.Orders.report(m.Report, now)
		return nil
	case m.Gone != nil:
		t.Facts.gone(m.Gone.UID, now)
	case m.Listed != nil:
		if t.list == nil || *t.list != *m.Listed {
			return fmt.Errorf("end of list %d, which did not begin", m.Listed.ID)
		}
		t.list, t.listedAt = nil, now
		pods, refused := t.Facts.listed(now)
		t.allow(now)
		t.out.message(&Message{Accepted: &Accepted{Pods: pods, Refused: refused}})
	default:
		return errors.New("a message that only evictd sends")
	}
	if t.Facts.takeChanged() {
		t.change(now)
	}
	return nil
}

// ask asks for the complete list if it has facts for which there was no room before.
// evictd-kube sends a state at least every StateInterval.
func (t *session) ask(now time.Time) {
	if t.list == nil && t.Facts.wantsList(now) {
		t.out.message(&Message{Resend: &Resend{}})
	}
}

// allow ends the exemption of pods whose report was forbidden when evictd-kube can report again.
func (t *session) allow(now time.Time) {
	if t.Facts.takeCanReportAgain() && t.Orders != nil {
		t.Orders.allow()
		t.change(now)
	}
}

// change calls Changed, now or changeInterval after the last call.
func (t *session) change(now time.Time) {
	if t.changedAt.After(now) {
		return // that call comes after this change
	}
	wait := max(0, t.changedAt.Add(changeInterval).Sub(now))
	t.changedAt = now.Add(wait)
	time.AfterFunc(wait, t.Changed)
}

func (t *session) logRefusal(p *Pod, reason string, now time.Time) {
	if skipped, ok := t.refusals.Allow(now); ok {
		t.Log.Warn("refused facts about a pod", "pod", p.key(), "reason", printable(reason), "not_logged", skipped)
	}
}
