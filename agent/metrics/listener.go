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

// What all clients together may have. Every local user, and every pod in the
// host's network, can connect: beyond this a client waits.
const (
	// maxConnections is how many connections are open at once.
	maxConnections = 16
	// acceptsPerSecond is how many connections are accepted, and backlog how many
	// the kernel keeps that are not accepted yet.
	acceptsPerSecond = 50
	backlog          = 128
	// sendBuffer is what the kernel keeps of answers that a client does not read,
	// in bytes for each connection: a scrape fits.
	sendBuffer = 128 << 10
	// stuckAnswer is how long an answer may take before its connection can be
	// closed for another.
	stuckAnswer = 2 * time.Second
	// crowdedLogInterval is how often the log says that there are too many.
	crowdedLogInterval = time.Hour
)

// listener bounds the connections of a listener. When there are maxConnections
// and another client connects, a connection of the peer with the most is closed: the one
// that has been without a request for the longest time. So clients which only hold
// connections open, or open ever new ones, keep no client at another address from its
// answer.
type listener struct {
	net.Listener
	accepts *bucket
	budget  *bucket
	thread  func() error
	log     *slog.Logger

	mu      sync.Mutex
	open    []*conn // oldest change of state first
	freed   sync.Cond
	crowded time.Time // when the log said so last
}

// newListener returns a listener whose connections are served at the priority
// that thread gives to the calling thread, within a share of a processor.
func newListener(l net.Listener, thread func() error, log *slog.Logger) *listener {
	if tcp, ok := l.(*net.TCPListener); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			// On a socket that listens already, listen(2) only sets the backlog
			// (net/ipv4/af_inet.c: __inet_listen_sk). Go takes somaxconn, mostly 4096.
			_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), backlog) })
		}
	}
	bounded := &listener{
		Listener: l, thread: thread, log: log,
		accepts: newBucket(acceptsPerSecond, acceptsPerSecond), budget: newBucket(cpuShare, cpuBurst.Seconds()),
	}
	bounded.freed.L = &bounded.mu
	return bounded
}

// Accept waits for a connection and for the right to have one more.
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

// admit makes room for a connection, and returns nil where its peer has the most
// connections and each of them has a request to answer: waiting for one of those would
// keep the connections of other peers waiting.
func (l *listener) admit(inner net.Conn) *conn {
	if tcp, ok := inner.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer) // else the kernel lets it grow to tcp_wmem
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

// peerOf names the peer of a connection: its address, of IPv6 the /64 network. The node's
// own processes are one peer: they may use any address of the loopback network, and the
// kernel gives them the address that they connect to (net/ipv4/route.c:
// ip_route_output_key_hash_rcu).
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

// makeRoom closes a connection for one of a peer, or waits a moment where each of those
// with the most connections has a request to answer; it returns false where the peer
// itself is one of those. The caller holds mu, which is released.
func (l *listener) makeRoom(newcomer string) bool {
	of, most := map[string]int{newcomer: 1}, 1
	for _, c := range l.open {
		of[c.peer]++
		most = max(most, of[c.peer])
	}
	for _, c := range l.open {
		if of[c.peer] == most && (!c.answering || time.Since(c.changed) > stuckAnswer) {
			first := time.Since(l.crowded) > crowdedLogInterval
			if first {
				l.crowded = time.Now()
			}
			l.mu.Unlock()
			if first {
				l.log.Warn("too many connections to the metrics port, closing idle ones", "most", maxConnections)
			}
			c.Close()
			return true
		}
	}
	if of[newcomer] == most {
		l.mu.Unlock()
		return false
	}
	wake := time.AfterFunc(stuckAnswer, l.freed.Broadcast)
	l.freed.Wait()
	l.mu.Unlock()
	wake.Stop()
	return true
}

// follow is the http.Server.ConnState of connections of the listener.
func (l *listener) follow(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	if state == http.StateClosed {
		c.settle()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := slices.Index(l.open, c)
	if n < 0 {
		return
	}
	c.answering, c.changed = state == http.StateActive, time.Now()
	l.open = append(slices.Delete(l.open, n, n+1), c)
	l.freed.Broadcast()
}

// remove forgets a connection that is closed.
func (l *listener) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := slices.Index(l.open, c); n >= 0 {
		l.open = slices.Delete(l.open, n, n+1)
		l.freed.Broadcast()
	}
}
