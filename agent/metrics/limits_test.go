package metrics

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// countingListener counts its open connections.
type countingListener struct {
	net.Listener
	mu         sync.Mutex
	open, most int
}

type countedConn struct {
	net.Conn
	once     sync.Once
	listener *countingListener
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.add(1)
		c = &countedConn{Conn: c, listener: l}
	}
	return c, err
}

func (l *countingListener) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
	l.most = max(l.most, l.open)
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.listener.add(-1) })
	return c.Conn.Close()
}

// TestServeLimitsConnections opens connections without a request, with incomplete
// headers, and idle between requests. They must not exceed maxConnections or
// prevent a scrape.
func TestServeLimitsConnections(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &countingListener{Listener: inner}
	serveOn(t, l, options(Mux(newMetrics().Handler(discard), &Heartbeat{}, time.Second), ""))
	address := inner.Addr().String()
	for n := range 4 * maxConnections {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		switch n % 3 {
		case 1:
			io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: ")
		case 2:
			io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatalf("scrape with %d idle connections: %v", 4*maxConnections, err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("scrape with idle connections = %s; want 200", response.Status)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// One more is accepted before another is closed to make room.
	if l.most > maxConnections+1 {
		t.Errorf("%d connections were open at once; want at most %d", l.most, maxConnections+1)
	}
}

// addressedConn is a connection with given addresses.
type addressedConn struct {
	net.Conn
	remote, local net.Addr
}

func (c *addressedConn) RemoteAddr() net.Addr { return c.remote }
func (c *addressedConn) LocalAddr() net.Addr  { return c.local }

func tcpAddress(t *testing.T, text string) *net.TCPAddr {
	t.Helper()
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		t.Fatal(err)
	}
	return net.TCPAddrFromAddrPort(a)
}

// TestConnectionsOfOnePeer checks that connections from one peer, however many,
// close no connection of another peer.
func TestConnectionsOfOnePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipes := newPipes()
		l := newListener(pipes, func() error { return nil }, discard)
		connect := func(remote string) *conn {
			_, server := net.Pipe()
			go func() {
				pipes.conns <- &addressedConn{Conn: server, remote: tcpAddress(t, remote), local: tcpAddress(t, "192.0.2.1:9908")}
			}()
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return c.(*conn)
		}
		isOpen := func(c *conn) bool {
			select {
			case <-c.closed:
				return false
			default:
				return true
			}
		}
		scraper := connect("192.0.2.7:1000")
		for i := range 3 * maxConnections {
			connect(fmt.Sprintf("127.0.0.%d:%d", i+1, 2000+i))
			connect(fmt.Sprintf("192.0.2.1:%d", 2000+i)) // from the node, too
		}
		if !isOpen(scraper) {
			t.Error("connections of the node's processes closed the connection of another peer")
		}
		again := connect("192.0.2.7:1001")
		connect("[2001:db8::1]:1")
		connect("[2001:db8::2]:1")
		for i := range 3 * maxConnections {
			connect(fmt.Sprintf("[2001:db8::%x]:2", i+3))
		}
		if !isOpen(scraper) || !isOpen(again) {
			t.Error("connections of one IPv6 network closed the connections of another peer")
		}
		if n := len(l.open); n != maxConnections {
			t.Errorf("%d connections are open; want %d", n, maxConnections)
		}
		// A peer whose connections all have a request in progress delays no other peer.
		for _, c := range l.open {
			c.active, c.changed = true, time.Now()
		}
		_, flood := net.Pipe()
		began := time.Now()
		admitted := l.admit(&addressedConn{Conn: flood, remote: tcpAddress(t, "[2001:db8::1]:9"), local: tcpAddress(t, "192.0.2.1:9908")})
		if waited := time.Since(began); admitted != nil || waited > time.Second {
			t.Errorf("admit() = %v after %v; want nil without waiting for a request to end", admitted, waited)
		}
		for _, c := range slices.Clone(l.open) {
			c.Close()
		}
	})
}

// serveOn serves until the test ends.
func serveOn(t *testing.T, l net.Listener, o Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v; want nil when its context ends", err)
		}
	})
}

// TestServeOnOwnThreads checks that each connection is served on a thread for which
// Options.Thread was called.
func TestServeOnOwnThreads(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	prepared := map[int]bool{}
	served := make(chan int, 1)
	serveOn(t, inner, Options{
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served <- unix.Gettid() }),
		PrepareThread: func() error {
			mu.Lock()
			defer mu.Unlock()
			prepared[unix.Gettid()] = true
			return nil
		},
		Log: discard,
	})
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for n := range 3 {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		tid := <-served
		mu.Lock()
		if !prepared[tid] || len(prepared) != 1 {
			t.Errorf("request %d was served on thread %d; want the one for which PrepareThread was called: %v", n, tid, prepared)
		}
		mu.Unlock()
	}
}

// pipes is a listener of in-memory connections, which work with synctest.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// TestServeLimitsRequests checks that a client that sends requests in a loop is
// throttled to cpuShare.
func TestServeLimitsRequests(t *testing.T) {
	const maxRequests = 2000
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- Serve(ctx, l, options(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ""))
		}()
		c := l.dial()
		responses := bufio.NewReader(c)
		began := time.Now()
		n := 0
		for ; n < maxRequests && time.Since(began) < 10*time.Second; n++ {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			r, err := http.ReadResponse(responses, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
		}
		c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v; want nil", err)
		}
		limit := int((cpuBurst.Seconds() + 10*cpuShare) / minReadCost.Seconds())
		if n > limit+1 || n < 1 {
			t.Errorf("%d requests were served in %v; want at most %d", n, time.Since(began), limit)
		}
	})
}

// TestConnClosedWhileItWaits checks that Close ends a Read that waits for the
// budget.
func TestConnClosedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListener(newPipes(), func() error { return nil }, discard)
		l.budget.take(3600) // the whole budget for a long time
		client, server := net.Pipe()
		c := &conn{Conn: server, listener: l, closed: make(chan struct{})}
		read := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 10))
			read <- err
		}()
		io.WriteString(client, "x")
		synctest.Wait()
		c.Close()
		if err := <-read; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read() of a closed connection = %v; want %v", err, net.ErrClosed)
		}
	})
}

// TestConnStateOfTLS checks that the state of a TLS connection is recorded for the
// connection below it.
func TestConnStateOfTLS(t *testing.T) {
	l := newListener(newPipes(), func() error { return nil }, discard)
	c := &conn{listener: l}
	l.open = []*conn{c}
	l.connState(tls.Server(c, nil), http.StateActive)
	if !c.active {
		t.Error("TLS connection with a request in progress is not active")
	}
	l.connState(tls.Server(c, nil), http.StateIdle)
	if c.active {
		t.Error("idle TLS connection is active")
	}
}

func TestServeReadsNoBody(t *testing.T) {
	address := start(t, http.NotFoundHandler(), "")
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\nx")
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || r.StatusCode != http.StatusRequestEntityTooLarge || !r.Close {
		t.Errorf("response to a request with a body = %+v, %v; want 413 and the connection closed", r, err)
	}
}
