package kube

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// maxOutgoing is the maximum number of messages that wait for the peer of a session. Each order
// waits once, whatever its stages, and so does the NodeState, so that only a peer that reads nothing
// while hundreds of pods are evicted has more.
const maxOutgoing = 4 * MaxOrders

// flushTimeout bounds flush. Writing to a peer that reads takes less than a millisecond.
const flushTimeout = time.Second

// errNotRead is returned if the peer does not read.
var errNotRead = errors.New("evictd-kube does not read its messages")

// outbox has the messages that wait for the peer of a session. Its methods but write never
// block.
type outbox struct {
	wake chan struct{}

	mu     sync.Mutex
	queue  []outgoing
	queued map[string]bool // the keys in queue
	full   bool
}

// outgoing is a message, the key of one that is made when it is sent, or a channel that is closed
// when all before it was written.
type outgoing struct {
	message *Message
	key     string // the ID of an order, nodeKey or marksKey
	written chan struct{}
}

// nodeKey is the key of the NodeState. It can't be the ID of an order.
const nodeKey = "/node"

// marksKey is the key of the NodeMarks.
const marksKey = "/marks"

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), queued: map[string]bool{}}
}

// message adds a message.
func (b *outbox) message(m *Message) { b.add(outgoing{message: m}) }

// order adds the present stage of an order.
func (b *outbox) order(id string) { b.add(outgoing{key: id}) }

// node adds the newest NodeState.
func (b *outbox) node() { b.add(outgoing{key: nodeKey}) }

// marks adds the newest NodeMarks.
func (b *outbox) marks() { b.add(outgoing{key: marksKey}) }

func (b *outbox) add(m outgoing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case m.key != "" && b.queued[m.key]:
		return
	case len(b.queue) == maxOutgoing:
		b.full = true
	default:
		b.queue = append(b.queue, m)
		if m.key != "" {
			b.queued[m.key] = true
		}
	}
	wakeUp(b.wake)
}

// flush waits until all messages were written, at most flushTimeout.
func (b *outbox) flush() {
	written := make(chan struct{})
	b.add(outgoing{written: written})
	select {
	case <-time.After(flushTimeout):
	case <-written:
	}
}

// take returns the next messages, at most chunk, and whether messages were lost.
func (b *outbox) take() (next []outgoing, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.queue), chunk)
	next = append(next, b.queue[:n]...)
	b.queue = append(b.queue[:0], b.queue[n:]...)
	for _, m := range next {
		delete(b.queued, m.key)
	}
	return next, b.full
}

// write writes the messages until ctx ends or that fails. For a key it writes what lookup
// returns, or nothing if that is nil.
func (b *outbox) write(ctx context.Context, conn net.Conn, lookup func(key string) *Message) error {
	for {
		next, full := b.take()
		if full {
			return errNotRead
		}
		if err := b.writeNext(conn, next, lookup); err != nil {
			return err
		}
		if len(next) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		}
	}
}

// writeNext writes messages that were taken.
func (b *outbox) writeNext(conn net.Conn, next []outgoing, lookup func(key string) *Message) error {
	var batch [][]byte
	for _, m := range next {
		if m.key != "" {
			m.message = lookup(m.key)
		}
		if m.message == nil {
			continue
		}
		line, err := encode(m.message)
		if err != nil {
			return err
		}
		batch = append(batch, line)
	}
	if err := write(conn, batch); err != nil {
		return err
	}
	for _, m := range next {
		if m.written != nil {
			close(m.written)
		}
	}
	return nil
}
