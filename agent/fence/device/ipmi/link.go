package ipmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// link is the UDP socket of one go-ipmi client, as its proxy dialer and connection. Received datagrams pass the guard.
//
// The client gets no context: it would return when that ends, while a goroutine of it goes on with the socket. Instead,
// the link ends reads and writes.
type link struct {
	ctx     context.Context // of the dialling
	address string

	mu    sync.Mutex
	conn  net.Conn
	guard guard
	limit time.Time // reads and writes end here, whatever deadline the client sets; zero without a limit
	cause error     // what they return then
	final bool      // the limit does not change any more
}

var errSlowClose = errors.New("the BMC did not answer the end of the session")

// Dial implements proxy.Dialer. go-ipmi's own way knows no context, and no IPv6 literals.
func (l *link) Dial(network, _ string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(l.ctx, network, l.address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	return &linkConn{conn, l}, conn.SetReadDeadline(l.limit)
}

// interrupt ends reads and writes now, until finish.
func (l *link) interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.final {
		// Wrapped: context.DeadlineExceeded itself is a timeout, after which go-ipmi would try again.
		l.end(time.Now(), fmt.Errorf("gave up: %w", l.ctx.Err()))
	}
}

// finish lets reads and writes go on until a limit.
func (l *link) finish(limit time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final = true
	l.end(limit, errSlowClose)
}

// end sets the limit. The caller has the lock.
func (l *link) end(limit time.Time, cause error) {
	l.limit, l.cause = limit, cause
	if l.conn != nil {
		_ = l.conn.SetReadDeadline(limit) // fails only if it is closed
	}
}

// ended returns why reads and writes have ended. The caller has the lock.
func (l *link) ended() error {
	if l.guard.err != nil {
		return l.guard.err
	}
	if !l.limit.IsZero() && !time.Now().Before(l.limit) {
		return l.cause
	}
	return nil
}

// close closes the socket. go-ipmi does that too, but not where it could not connect.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

// state returns what the guard knows.
func (l *link) state() guard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.guard
}

type linkConn struct {
	net.Conn
	link *link
}

func (c *linkConn) SetReadDeadline(t time.Time) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if limit := c.link.limit; !limit.IsZero() && t.After(limit) {
		t = limit
	}
	return c.Conn.SetReadDeadline(t)
}

// Write sends a datagram, unless the attempt has ended: go-ipmi would go on with the next suite.
func (c *linkConn) Write(b []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if err := c.link.ended(); err != nil {
		return 0, err
	}
	c.link.guard.sent(b)
	return c.Conn.Write(b)
}

// Read returns the next datagram that the guard accepts.
func (c *linkConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		c.link.mu.Lock()
		accepted := err == nil && c.link.guard.accept(b[:n])
		ended := c.link.ended()
		c.link.mu.Unlock()
		switch {
		case ended != nil: // no timeout: go-ipmi does not try again
			return 0, ended
		case err != nil:
			return 0, err
		case accepted:
			return n, nil
		}
	}
}
