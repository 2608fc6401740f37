package ipmi

import (
	"context"
	"net"
	"sync"
	"time"
)

// link is the UDP socket of one go-ipmi client, as its proxy dialer and connection. Received datagrams pass the guard.
type link struct {
	ctx     context.Context // of the dialling
	address string

	mu    sync.Mutex
	conn  net.Conn
	guard guard
	limit time.Time // reads end here, whatever deadline the client sets; zero without a limit
	final bool      // the limit does not change any more
}

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
	return &linkConn{conn, l}, nil
}

// interrupt ends reads now, and those that begin later, until finish.
func (l *link) interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.final {
		l.end(time.Now())
	}
}

// finish lets reads go on until a limit.
func (l *link) finish(limit time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.final = true
	l.end(limit)
}

// end sets the limit of reads. The caller has the lock.
func (l *link) end(limit time.Time) {
	l.limit = limit
	if l.conn != nil {
		_ = l.conn.SetReadDeadline(limit) // fails only if it is closed
	}
}

// close closes the socket. go-ipmi does that too, but not where it could not connect.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

// state returns what the guard knows: whether the BMC has a session, how many datagrams were dropped, and why the
// attempt ended.
func (l *link) state() (active bool, dropped int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.guard.active, l.guard.dropped, l.guard.err
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
	if err := c.link.guard.err; err != nil {
		return 0, err
	}
	c.link.guard.sent(b)
	return c.Conn.Write(b)
}

// Read returns the next datagram that the guard accepts.
func (c *linkConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil {
			return 0, err
		}
		c.link.mu.Lock()
		accepted, err := c.link.guard.accept(b[:n]), c.link.guard.err
		c.link.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if accepted {
			return n, nil
		}
	}
}
