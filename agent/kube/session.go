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

// run sends the orders and the NodeState, and applies the peer's messages, until one of both
// fails. A peer that does not read does not keep evictd from reading.
func (t *session) run(ctx context.Context, conn net.Conn, lines *lineReader) error {
	if t.Node != nil {
		t.Node.attach(t.out)
		defer t.Node.detach(t.out)
		repeating, stop := context.WithCancel(ctx)
		defer stop()
		go t.Node.repeatUntil(repeating, t.out)
	}
	if t.Marks != nil {
		t.Marks.attach(t.out)
		defer t.Marks.detach(t.out)
	}
	if t.Orders != nil {
		t.Orders.attach(t.out)
		defer t.Orders.detach(t.out)
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	defer t.startAsking(writing)()
	if t.KubeletCertificates != nil {
		t.asker.attach(t.out, t.Facts.kubelet.wake)
		defer t.asker.detach(t.out)
	}
	written := make(chan error, 1)
	go func() {
		written <- t.out.write(writing, conn, t.lookup)
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

// lookup returns the message for a key of the outbox; nil if there is nothing to send.
func (t *session) lookup(key string) *Message {
	if key == nodeKey {
		return &Message{NodeState: t.Node.take()}
	}
	if key == marksKey {
		return &Message{NodeMarks: t.Marks.take()}
	}
	if order := t.Orders.lookup(key); order != nil {
		return &Message{Order: order}
	}
	return nil
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
		if err := m.State.AffinityAdmission.check(); err != nil {
			return err
		}
		if c := m.State.Peers; c != nil {
			if err := c.Check(); err != nil {
				return fmt.Errorf("peers: %w", err)
			}
			if t.Marks != nil && t.Marks.Peers != nil {
				t.Marks.Peers(*c)
			}
		}
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
	case m.Report != nil, m.NodeReport != nil, m.MarksReport != nil:
		return t.applyReport(m, now)
	case m.Kubelet != nil:
		if err := m.Kubelet.check(); err != nil {
			return err
		}
		t.setKubelet(m.Kubelet, now)
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

// applyReport applies an answer to an order, a NodeState or NodeMarks.
func (t *session) applyReport(m *Message, now time.Time) error {
	switch {
	case m.Report != nil:
		if err := m.Report.check(); err != nil || t.Orders == nil {
			return err
		}
		t.Orders.report(m.Report, now)
	case m.NodeReport != nil:
		if err := m.NodeReport.check(); err != nil || t.Node == nil {
			return err
		}
		t.Node.report(m.NodeReport, now)
	case m.MarksReport != nil:
		if err := m.MarksReport.check(); err != nil || t.Marks == nil {
			return err
		}
		t.Marks.report(m.MarksReport, now)
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

// setKubelet stores the kubelet's configuration, and logs what has changed: evictd decides by it.
func (t *session) setKubelet(c *KubeletConfiguration, now time.Time) {
	before := t.Facts.KubeletError()
	changed := t.Facts.setKubelet(c, now)
	if !changed && c.Error == before {
		return
	}
	skipped, ok := t.kubelets.Allow(now)
	switch {
	case !ok:
	case c.Error != "":
		t.Log.Warn("could not read the kubelet's configuration; evictd uses the last known one, if there is one", "reason", c.Error, "not_logged", skipped)
	default:
		t.Log.Info("kubelet's configuration read", "changed", changed, "hard_thresholds", thresholdTexts(t.Facts.KubeletThresholds()), "shuts_down", c.ShutsDown(), "not_logged", skipped)
	}
}

func (t *session) logRefusal(p *Pod, reason string, now time.Time) {
	if skipped, ok := t.refusals.Allow(now); ok {
		t.Log.Warn("refused facts about a pod", "pod", p.key(), "reason", printable(reason), "not_logged", skipped)
	}
}
