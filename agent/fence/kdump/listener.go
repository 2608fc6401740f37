package kdump

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// retryInterval is the time between two attempts to listen.
	retryInterval = 2 * time.Second
	// maxReads bounds the datagrams that are read in a second. What comes above it stays in the socket's buffer, of
	// which the kernel bounds the size.
	maxReads = 10_000
	// strangerInterval is the least time between two log lines about datagrams of unknown senders.
	strangerInterval = time.Minute
)

// Listener receives datagrams. Its fields are set before Run.
type Listener struct {
	// Address is HOST:PORT or :PORT, which is both address families.
	Address string
	// Nodes returns the nodes by address, without addresses that two nodes have. It is asked once in 10 s at most, and
	// only if a datagram has come.
	Nodes func() map[netip.Addr]string
	// Began is called at the first datagram of a session.
	Began func(node string)
	// Count is called at each datagram.
	Count func(Result)
	Log   *slog.Logger

	sessions sessions
	stranger time.Time // when an unknown sender was logged

	mu    sync.Mutex
	tried bool
	since time.Time
}

// Run listens until ctx ends. If that does not work, it tries again.
func (l *Listener) Run(ctx context.Context) {
	reported := ""
	for ctx.Err() == nil {
		worked, err := l.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		if text := err.Error(); worked || text != reported {
			reported = text
			l.Log.Error("kdump datagrams are not received; power is not delayed by them", "address", l.Address, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// Since returns since when the listener has listened without a gap, zero if it does not listen.
func (l *Listener) Since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since
}

// Tried reports whether the first attempt to listen is over: before, Since says nothing.
func (l *Listener) Tried() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tried
}

// Session returns the last session of a node, the zero one if there is none.
func (l *Listener) Session(node string) Session { return l.sessions.of(node) }

// listens sets what Since and Tried report.
func (l *Listener) listens(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried, l.since = true, since
}

// listen receives datagrams until ctx ends or the socket fails. It reports whether it listened.
func (l *Listener) listen(ctx context.Context) (worked bool, err error) {
	conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp", l.Address)
	if err != nil {
		l.listens(time.Time{})
		return false, fmt.Errorf("%w: free the port, or listen at another address", err)
	}
	l.listens(time.Now())
	defer l.listens(time.Time{})
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	l.Log.Info("kdump datagrams are received", "address", conn.LocalAddr())
	return true, l.receive(ctx, conn.(*net.UDPConn))
}

// receive takes datagrams, at most maxReads in a second.
func (l *Listener) receive(ctx context.Context, conn *net.UDPConn) error {
	buffer := make([]byte, size+1) // the rest of a longer one is cut off
	var rate reads
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		now := time.Now()
		l.take(buffer[:n], from.Addr(), now)
		pause := rate.next(now)
		if pause == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// reads counts the datagrams of one second.
type reads struct {
	second time.Time
	n      int
}

// next counts a datagram, and returns the pause before the next one: the rest of the second after maxReads.
func (r *reads) next(now time.Time) time.Duration {
	if age := now.Sub(r.second); age < 0 || age >= time.Second {
		*r = reads{second: now}
	}
	if r.n++; r.n < maxReads {
		return 0
	}
	return r.second.Add(time.Second).Sub(now)
}

// take deals with one datagram.
func (l *Listener) take(datagram []byte, from netip.Addr, now time.Time) {
	node, result, first := l.sessions.take(datagram, from, now, l.Nodes)
	l.Count(result)
	switch {
	case first:
		l.Log.Info("kdump session begins", "node", node, "address", from)
		l.Began(node)
	case result == UnknownSender && now.Sub(l.stranger) >= strangerInterval:
		l.stranger = now
		l.Log.Warn("kdump datagram is not from the InternalIP of one node; it is ignored", "address", from,
			"remedy", "the source address of datagrams must be kept on their way, as by externalTrafficPolicy: Local")
	}
}
