package metrics

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits on all clients together. Every local user, and every pod in the host's
// network, can connect; beyond the limits a client waits.
const (
	// maxConnections is the maximum number of open connections.
	maxConnections = 16
	// acceptsPerSecond limits the rate of new connections, and backlog the number of
	// connections that the kernel queues.
	acceptsPerSecond = 50
	backlog          = 128
	// sendBuffer is the kernel's send buffer of a connection, in bytes: the response
	// to a scrape fits.
	sendBuffer = 128 << 10
	// maxRequestTime is how long a request, which takes milliseconds, may take before
	// its connection can be closed in favor of another.
	maxRequestTime = 2 * time.Second
	// fullLogInterval is the minimum time between two log lines about too many
	// connections, so that clients can't fill the log.
	fullLogInterval = time.Hour
)

// listener limits the connections of a listener. If a client connects when there
// are maxConnections, the listener closes a connection of the peer that has the
// most: the one without a request for the longest time. Clients that keep
// connections open, or open new ones all the time, therefore can't prevent a
// client at another address from being served.
type listener struct {
	net.Listener
	accepts *bucket
	budget  *bucket
	thread  func() error
	log     *slog.Logger

	mu         sync.Mutex
	open       []*conn // oldest change of state first
	freed      sync.Cond
	fullLogged time.Time // when too many connections were last logged
}

// newListener returns a listener whose connections are served at the priority
// that thread sets for the calling thread, within cpuShare.
func newListener(l net.Listener, thread func() error, log *slog.Logger) *listener {
	if tcp, ok := l.(*net.TCPListener); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			// On a listening socket, listen(2) only sets the backlog
			// (net/ipv4/af_inet.c: __inet_listen_sk). Go uses somaxconn, mostly 4096.
			_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), backlog) })
		}
	}
	limited := &listener{
		Listener: l, thread: thread, log: log,
		accepts: newBucket(acceptsPerSecond, acceptsPerSecond), budget: newBucket(cpuShare, cpuBurst.Seconds()),
	}
	limited.freed.L = &limited.mu
	return limited
}

// Accept returns the next connection that is within the limits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(inner); c != nil {
			return c, nil
		}
		inner.Close()
	}
}

// admit makes room for a connection. It returns nil if the connection's peer has
// the most connections and each of them has a request in progress: waiting for one
// of those would delay the connections of other peers.
func (l *listener) admit(inner net.Conn) *conn {
	if tcp, ok := inner.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer) // by default it grows up to tcp_wmem
	}
	time.Sleep(l.accepts.take(1))
	c := &conn{Conn: inner, listener: l, peer: peerOf(inner), closed: make(chan struct{})}
	for {
		l.mu.Lock()
		if len(l.open) < maxConnections {
			c.changed = time.Now()
			l.open = append(l.open, c)
			l.mu.Unlock()
			return c
		}
		if !l.makeRoom(c.peer) {
			return nil
		}
	}
}

// peerOf returns the peer of a connection: the remote IPv4 address, or the /64
// network of an IPv6 address. All processes of the node are one peer, because they
// may use any loopback address, and the kernel gives them the address that they
// connect to (net/ipv4/route.c: ip_route_output_key_hash_rcu).
func peerOf(c net.Conn) string {
	remote, ok := c.RemoteAddr().(*net.TCPAddr)
	local, bound := c.LocalAddr().(*net.TCPAddr)
	if !ok || !bound {
		return ""
	}
	ip := remote.AddrPort().Addr().Unmap().WithZone("")
	if ip.IsLoopback() || ip == local.AddrPort().Addr().Unmap().WithZone("") {
		return "local"
	}
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}

// makeRoom closes a connection to make room for a new one of peer. If all
// connections of the peers with the most have a request in progress, it waits for
// the end of one, or returns false if peer is one of those. The caller has locked
// mu; makeRoom unlocks it.
func (l *listener) makeRoom(peer string) bool {
	count, most := map[string]int{peer: 1}, 1
	for _, c := range l.open {
		count[c.peer]++
		most = max(most, count[c.peer])
	}
	for _, c := range l.open {
		if count[c.peer] == most && (!c.active || time.Since(c.changed) > maxRequestTime) {
			logIt := time.Since(l.fullLogged) > fullLogInterval
			if logIt {
				l.fullLogged = time.Now()
			}
			l.mu.Unlock()
			if logIt {
				l.log.Warn("too many connections to the metrics port; closing idle ones", "most", maxConnections)
			}
			c.Close()
			return true
		}
	}
	if count[peer] == most {
		l.mu.Unlock()
		return false
	}
	wake := time.AfterFunc(maxRequestTime, l.freed.Broadcast)
	l.freed.Wait()
	l.mu.Unlock()
	wake.Stop()
	return true
}

// connState is the http.Server.ConnState hook of the listener's connections.
func (l *listener) connState(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	if state == http.StateClosed {
		c.chargeRest()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := slices.Index(l.open, c)
	if n < 0 {
		return
	}
	c.active, c.changed = state == http.StateActive, time.Now()
	l.open = append(slices.Delete(l.open, n, n+1), c)
	l.freed.Broadcast()
}

// remove removes a closed connection from the list.
func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := slices.Index(l.open, c); n >= 0 {
		l.open = slices.Delete(l.open, n, n+1)
		l.freed.Broadcast()
	}
}
