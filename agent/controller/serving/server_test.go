package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// pipeListener accepts connections that need no network, so that their times are those of synctest.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:9443"))
}

// pipeConn has the address of a client.
type pipeConn struct {
	net.Conn
	remote string
}

func (c pipeConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.remote))
}

// dial connects from an address. The connection ends before the server: to close one whose client does not read, the
// server would wait with a mutex locked, which stops the clock of synctest.
func (l *pipeListener) dial(t *testing.T, remote string) net.Conn {
	client, server := net.Pipe()
	t.Cleanup(func() {
		client.Close()
		synctest.Wait()
	})
	l.conns <- pipeConn{server, remote}
	synctest.Wait()
	return client
}

// testServer is a server that runs.
type testServer struct {
	*Server
	listener *pipeListener
	material *material
}

// startServer starts a server. Its handler is bounded, and answers with the length of the body.
func startServer(t *testing.T) *testServer {
	t.Helper()
	c := &Certificate{}
	numbers := NewMetrics(c)
	length := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	mux := http.NewServeMux()
	mux.Handle("/", NewBodies(numbers).Bound(1<<20, length))
	s := &testServer{
		Server: &Server{
			Handler: mux, Certificate: c, ClientCertificates: true, Metrics: numbers, Log: slog.New(slog.DiscardHandler),
		},
		listener: &pipeListener{make(chan net.Conn), make(chan struct{})},
	}
	s.material, _ = renew(t, nil, time.Now())
	c.set(s.material.serving)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // the connections end before
	ended := make(chan error)
	go func() { ended <- s.serve(ctx, s.listener) }()
	synctest.Wait()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve = %v", err)
		}
	})
	return s
}

// handshake connects from an address, with TLS and without a certificate.
func (s *testServer) handshake(t *testing.T, remote string) *tls.Conn {
	t.Helper()
	return s.handshakeAs(t, remote)
}

// handshakeAs is handshake with a certificate, and the authorities that signed it but the first.
func (s *testServer) handshakeAs(t *testing.T, remote string, chain ...*authority) *tls.Conn {
	t.Helper()
	var own []tls.Certificate
	if len(chain) > 0 {
		own = []tls.Certificate{{PrivateKey: chain[0].key}}
		for _, a := range chain {
			own[0].Certificate = append(own[0].Certificate, a.certificate.Raw)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.material.bundle())
	c := tls.Client(s.listener.dial(t, remote), &tls.Config{Certificates: own, RootCAs: roots, ServerName: testName, NextProtos: []string{"h2", "http/1.1"}})
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return c
}

// exchange sends a request, and returns what is answered until the connection ends.
func exchange(c net.Conn, request string) string {
	go io.WriteString(c, request)
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// alive reports whether a connection still answers.
func alive(c net.Conn) bool {
	return strings.HasPrefix(exchange(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"), "HTTP/1.1 200 OK")
}

// samples returns the values of the metrics by name and label.
func samples(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "evictd_webhook_")
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			out[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name, request, want string
	}{
		{"body", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", "HTTP/1.1 200 OK"},
		{"GET", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"},
		{"no length", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "HTTP/1.1 411 Length Required"},
		{"too long", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n", "HTTP/1.1 413 Request Entity Too Large"},
		{"long header", "POST / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 64<<10), "HTTP/1.1 431 Request Header Fields Too Large"},
		{"no HTTP", "nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t)
				c := s.handshake(t, "192.0.2.2:1000")
				if got := exchange(c, tt.request); !strings.HasPrefix(got, tt.want) {
					t.Errorf("answer %q; want %q", got, tt.want)
				}
				if got := c.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
					t.Errorf("protocol %q; want http/1.1", got)
				}
			})
		})
	}
}

// TestSlowClients: a client that sends nothing, or a byte now and then, loses its connection.
func TestSlowClients(t *testing.T) {
	for _, tt := range []struct {
		name  string
		tls   bool
		begin string
		byte  string
		limit time.Duration
	}{
		{"handshake", false, "", "", headerTimeout},
		{"handshake by bytes", false, "", "\x16", headerTimeout},
		{"header", true, "POST / HTTP/1.1\r\nHost: a\r\n", "", headerTimeout},
		{"header by bytes", true, "POST / HTTP/1.1\r\nX: ", "x", headerTimeout},
		{"body by bytes", true, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", "x", readTimeout},
		{"idle", true, "", "", idleTimeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t)
				var c net.Conn
				if tt.tls {
					c = s.handshake(t, "192.0.2.2:1000")
				} else {
					c = s.listener.dial(t, "192.0.2.2:1000")
				}
				start := time.Now()
				var writer sync.WaitGroup
				defer writer.Wait()
				defer c.Close()
				writer.Go(func() {
					for text := tt.begin; text != ""; text = tt.byte {
						if _, err := io.WriteString(c, text); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				})
				io.Copy(io.Discard, c)
				// The server keeps a connection that it refused open for a moment, so that its answer arrives.
				if took := time.Since(start); took > tt.limit+time.Second {
					t.Errorf("the connection ended after %s; want %s", took, tt.limit)
				}
			})
		})
	}
}

// TestManyConnections: those of one client do not keep another out.
func TestManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		apiServer := s.handshake(t, "192.0.2.2:1000")
		first := s.handshake(t, "[2001:db8::1]:1000")
		var last *tls.Conn
		for i := range 2*maxConnections - 1 {
			last = s.handshake(t, fmt.Sprintf("[2001:db8::%x]:1000", i+2))
		}
		another := s.handshake(t, "192.0.2.3:1000")
		if got, want := samples(t, s.Metrics)["refused_total connections"], float64(maxConnections+2); got != want {
			t.Errorf("%v connections were displaced; want %v", got, want)
		}
		for _, c := range []struct {
			name string
			*tls.Conn
			want bool
		}{{"of the API server", apiServer, true}, {"first of the client", first, false}, {"last of the client", last, true}, {"of another", another, true}} {
			if got := alive(c.Conn); got != c.want {
				t.Errorf("connection %s answers: %t; want %t", c.name, got, c.want)
			}
		}
	})
}

// TestClosedConnections: connections that ended don't count.
func TestClosedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		for range maxConnections + 1 {
			s.handshake(t, "192.0.2.2:1000").Close()
			synctest.Wait()
		}
		if got := samples(t, s.Metrics)["refused_total connections"]; got != 0 {
			t.Errorf("%v connections were displaced; want 0", got)
		}
	})
}

// TestBodies: large bodies that are being handled are bounded, in all and of one client, and small ones are not.
func TestBodies(t *testing.T) {
	b := NewBodies(NewMetrics(&Certificate{}))
	var clients []netip.Addr
	for i := range 6 {
		clients = append(clients, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	reserve := func(client int, n int64, want bool) {
		t.Helper()
		if got := b.reserve(clients[client], n); got != want {
			t.Errorf("reserve(client %d, %d) = %t; want %t", client, n, got, want)
		}
	}
	reserve(0, maxClientBodies, true)
	reserve(0, 1, false)
	reserve(1, 1, true)
	reserve(1, maxClientBodies, false)
	reserve(2, maxClientBodies, true)
	reserve(3, 4<<20, true) // two clients do not keep a third one out
	reserve(3, maxClientBodies-(4<<20), true)
	reserve(4, maxBodies-3*maxClientBodies-1, true)
	reserve(5, 1, false)
	b.release(clients[0], maxClientBodies)
	reserve(5, 1, true)
	b.release(clients[1], 1)
	b.release(clients[2], maxClientBodies)
	b.release(clients[3], maxClientBodies)
	b.release(clients[4], maxBodies-3*maxClientBodies-1)
	b.release(clients[5], 1)
	if b.total != 0 || len(b.clients) != 0 {
		t.Errorf("%d bytes of %d clients are left", b.total, len(b.clients))
	}
}

// TestCertificate: without a certificate the server is not ready and ends handshakes; another one is used at once.
func TestCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		if err := s.Check(nil); err != nil {
			t.Errorf("Check = %v", err)
		}
		next, _ := renew(t, nil, time.Now().Add(time.Second))
		s.Certificate.set(next.serving)
		s.material = next
		if got := s.handshake(t, "192.0.2.2:1000").ConnectionState().PeerCertificates[0]; !got.Equal(next.serving.Leaf) {
			t.Error("served another certificate than the last")
		}
		if got, want := samples(t, s.Metrics)["certificate_expiry_timestamp_seconds"], float64(next.serving.Leaf.NotAfter.Unix()); got != want {
			t.Errorf("expiry %v; want %v", got, want)
		}
		s.Certificate.current.Store(nil)
		if err := s.Check(nil); !errors.Is(err, errNoCertificate) {
			t.Errorf("Check = %v; want %v", err, errNoCertificate)
		}
		c := tls.Client(s.listener.dial(t, "192.0.2.2:1000"), &tls.Config{InsecureSkipVerify: true})
		if err := c.HandshakeContext(t.Context()); err == nil {
			t.Error("a handshake without a certificate succeeded")
		}
	})
	if err := new(Server{Certificate: &Certificate{}}).Check(nil); err == nil {
		t.Error("ready before the start")
	}
}

// TestOldTLS: TLS 1.1 is refused.
func TestOldTLS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t)
		c := tls.Client(s.listener.dial(t, "192.0.2.2:1000"), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
		if err := c.HandshakeContext(t.Context()); err == nil || !strings.Contains(err.Error(), "protocol version") {
			t.Errorf("handshake with TLS 1.1: %v; want a refusal of the version", err)
		}
	})
}

// TestStop: a request that runs at the stop is answered, and a connection that hangs does not keep the process.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Certificate{}
		s := &testServer{listener: &pipeListener{make(chan net.Conn), make(chan struct{})}}
		s.material, _ = renew(t, nil, time.Now())
		c.set(s.material.serving)
		s.Server = &Server{Certificate: c, Metrics: NewMetrics(c), Log: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hangs" {
					<-r.Context().Done()
					return
				}
				time.Sleep(time.Second)
			})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.serve(ctx, s.listener) }()
		synctest.Wait()
		request := s.handshake(t, "192.0.2.2:1000")
		answered := make(chan bool)
		go func() { answered <- alive(request) }()
		hangs := s.handshake(t, "192.0.2.2:1001")
		defer hangs.Close()
		go exchange(hangs, "POST /hangs HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
		synctest.Wait()
		cancel()
		if !<-answered {
			t.Error("a request at the stop was not answered")
		}
		start := time.Now()
		if err := <-ended; err != nil || time.Since(start) > stopTimeout {
			t.Errorf("serve = %v after %s; want nil within %s", err, time.Since(start), stopTimeout)
		}
		if err := s.Check(nil); err == nil {
			t.Error("ready after the stop")
		}
	})
}

func TestMetrics(t *testing.T) {
	want := map[string]float64{"certificate_expiry_timestamp_seconds": 0, "certificate_problem": 0, "client_ca_problem": 0}
	for _, reason := range allRefused {
		want["refused_total "+reason] = 0
	}
	if diff := cmp.Diff(want, samples(t, NewMetrics(&Certificate{}))); diff != "" {
		t.Errorf("series at the start (-want +got):\n%s", diff)
	}
}

func TestClientOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:1": "192.0.2.1", "[::ffff:192.0.2.1]:1": "192.0.2.1", "[2001:db8:0:1:2:3:4:5]:1": "2001:db8:0:1::",
		"[fe80::1%eth0]:1": "fe80::", "pipe": "invalid IP", "": "invalid IP",
	} {
		if got := ClientOf(remote).String(); got != want {
			t.Errorf("ClientOf(%q) = %s; want %s", remote, got, want)
		}
	}
}
