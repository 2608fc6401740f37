package kube

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

	// writing is held while messages are taken and written. It guards the following: the
	// connection, nil while write does not run and for one without a descriptor; what the socket
	// has not taken of the last messages, and who waits for that; and why writeNow failed.
	writing sync.Mutex
	conn    syscall.RawConn
	lookup  func(key string) *Message
	left    []byte
	waiting []chan struct{}
	err     error
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
	b.begin(conn, lookup)
	defer b.begin(nil, nil)
	for {
		n, err := b.writeNext(conn, lookup)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		}
	}
}

// begin sets what writeNow writes to. Without a connection it writes nothing.
func (b *outbox) begin(conn net.Conn, lookup func(key string) *Message) {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.conn, b.lookup = nil, lookup
	if c, ok := conn.(syscall.Conn); ok {
		b.conn, _ = c.SyscallConn() // which fails if conn is closed
	}
}

// writeNext writes the next messages, and returns their number.
func (b *outbox) writeNext(conn net.Conn, lookup func(key string) *Message) (n int, err error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	if len(b.left) > 0 {
		if err := write(conn, [][]byte{b.left}); err != nil {
			return 0, err
		}
		b.wrote(nil)
	}
	next, full := b.take()
	if full {
		return 0, errNotRead
	}
	batch, err := linesOf(next, lookup)
	if err != nil {
		return 0, err
	}
	if err := write(conn, batch); err != nil {
		return 0, err
	}
	b.wrote(next)
	return len(next), nil
}

// writeNow writes the next messages on the goroutine of the caller, which saves the time until
// that of write runs: on a busy machine milliseconds. It never blocks. What the socket does not
// take at once is left to write, and so is all while that writes. add has woken it.
func (b *outbox) writeNow() {
	if !b.writing.TryLock() {
		return
	}
	defer b.writing.Unlock()
	if b.conn == nil || b.err != nil || len(b.left) > 0 {
		return
	}
	next, _ := b.take()
	batch, err := linesOf(next, b.lookup)
	if err != nil {
		b.err = err
		return
	}
	b.left = bytes.Join(batch, nil)
	err = b.conn.Control(func(fd uintptr) {
		n, sendErr := unix.SendmsgN(int(fd), b.left, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if sendErr == nil {
			b.left = b.left[n:]
		} else if !errors.Is(sendErr, unix.EAGAIN) && !errors.Is(sendErr, unix.EINTR) {
			b.err = sendErr
		}
	})
	if b.err == nil {
		b.err = err
	}
	if len(b.left) == 0 {
		b.wrote(next)
		return
	}
	for _, m := range next {
		if m.written != nil {
			b.waiting = append(b.waiting, m.written)
		}
	}
}

// wrote tells those who wait for them that messages were written, and all before.
func (b *outbox) wrote(messages []outgoing) {
	for _, written := range b.waiting {
		close(written)
	}
	for _, m := range messages {
		if m.written != nil {
			close(m.written)
		}
	}
	b.left, b.waiting = nil, nil
}

// linesOf returns the lines of messages that were taken.
func linesOf(messages []outgoing, lookup func(key string) *Message) (batch [][]byte, err error) {
	for _, m := range messages {
		if m.key != "" {
			m.message = lookup(m.key)
		}
		if m.message == nil {
			continue
		}
		line, err := encode(m.message)
		if err != nil {
			return nil, err
		}
		batch = append(batch, line)
	}
	return batch, nil
}
