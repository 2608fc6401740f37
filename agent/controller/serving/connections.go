package serving

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// maxConnections bounds the open connections.
const maxConnections = 512

// boundedListener bounds the open connections. One too many takes the place of the oldest connection of the client
// address that has the most, so that a client with many connections does not keep others out.
type boundedListener struct {
	net.Listener
	metrics *Metrics

	mu      sync.Mutex
	open    int
	clients map[netip.Addr][]*boundedConn // oldest first
}

// boundedConn is an open connection.
type boundedConn struct {
	net.Conn
	listener *boundedListener
	client   netip.Addr
	closed   sync.Once
	err      error
}

func newBoundedListener(l net.Listener, m *Metrics) *boundedListener {
	return &boundedListener{Listener: l, metrics: m, clients: make(map[netip.Addr][]*boundedConn)}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, listener: l, client: ClientOf(conn.RemoteAddr().String())}
	if displaced := l.add(c); displaced != nil {
		l.metrics.refused(refusedConnections)
		displaced.Close()
	}
	return c, nil
}

// add adds a connection, and returns the one whose place it takes, if any.
func (l *boundedListener) add(c *boundedConn) *boundedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients[c.client] = append(l.clients[c.client], c)
	l.open++
	if l.open <= maxConnections {
		return nil
	}
	most := l.clients[c.client]
	for _, conns := range l.clients {
		if len(conns) > len(most) {
			most = conns
		}
	}
	return most[0]
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.closed.Do(func() {
		c.err = c.Conn.Close()
		c.listener.remove(c)
	})
	return c.err
}

func (l *boundedListener) remove(c *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conns := l.clients[c.client]
	i := slices.Index(conns, c)
	if i < 0 {
		return
	}
	l.open--
	if conns = slices.Delete(conns, i, i+1); len(conns) > 0 {
		l.clients[c.client] = conns
	} else {
		delete(l.clients, c.client)
	}
}

// ClientOf returns whom a remote address belongs to: an IPv4 address, or the network of an IPv6 address, of which one
// client has many.
func ClientOf(remote string) netip.Addr {
	address, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	client := address.Addr().Unmap().WithZone("")
	if client.Is6() {
		if network, err := client.Prefix(64); err == nil {
			client = network.Addr()
		}
	}
	return client
}
