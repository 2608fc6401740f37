package serving

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// sign returns a certificate with a usage that ends at a time. It is signed by itself if a is nil.
func (a *authority) sign(t *testing.T, usage x509.ExtKeyUsage, end time.Time, isCA bool) *authority {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "client"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{usage}, BasicConstraintsValid: true, IsCA: isCA,
	}
	if a == nil {
		a = &authority{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{c, key}
}

func testAuthority(t *testing.T) *authority {
	t.Helper()
	var itself *authority
	return itself.sign(t, x509.ExtKeyUsageClientAuth, time.Now().Add(2*365*24*time.Hour), true)
}

// startWithAuthorities starts a server that answers clients only whose certificate an authority in a file has signed.
func startWithAuthorities(t *testing.T, file string, log io.Writer) *testServer {
	t.Helper()
	s := startServer(t)
	a := &ClientAuthorities{File: file, Metrics: s.Metrics, Log: slog.New(slog.NewTextHandler(log, nil))}
	s.Handler.(*http.ServeMux).Handle("/clients", a.Require(NewBodies(s.Metrics).Bound(1<<20, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "answered")
	}))))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error)
	go func() { ended <- a.Start(ctx) }()
	synctest.Wait()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask returns the status of the answer to a client, and keeps the connection.
func ask(t *testing.T, c *tls.Conn) string {
	t.Helper()
	go io.WriteString(c, "POST /clients HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
	answer := make([]byte, 4096)
	n, err := c.Read(answer)
	if err != nil {
		t.Fatal(err)
	}
	status, _, _ := strings.Cut(string(answer[:n]), "\r\n")
	return strings.TrimPrefix(status, "HTTP/1.1 ")
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	answered        = "200 OK"
	unauthenticated = "401 Unauthorized"
)

// TestClientAuthorities: only clients with a certificate of an authority of the file are answered, whose time and usage
// allow it. Requests of others on the same server need none.
func TestClientAuthorities(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	synctest.Test(t, func(t *testing.T) {
		ca, other := testAuthority(t), testAuthority(t)
		writeFile(t, file, encode("CERTIFICATE", ca.certificate.Raw))
		s := startWithAuthorities(t, file, io.Discard)
		year := time.Now().Add(365 * 24 * time.Hour)
		intermediate := ca.sign(t, x509.ExtKeyUsageClientAuth, year, true)
		for i, tt := range []struct {
			name  string
			chain []*authority
			want  string
		}{
			{"no certificate", nil, unauthenticated},
			{"of the authority", []*authority{ca.sign(t, x509.ExtKeyUsageClientAuth, year, false)}, answered},
			{"of another authority", []*authority{other.sign(t, x509.ExtKeyUsageClientAuth, year, false)}, unauthenticated},
			{"of a server", []*authority{ca.sign(t, x509.ExtKeyUsageServerAuth, year, false)}, unauthenticated},
			{"expired", []*authority{ca.sign(t, x509.ExtKeyUsageClientAuth, time.Now().Add(-time.Minute), false)}, unauthenticated},
			{"of an intermediate authority", []*authority{intermediate.sign(t, x509.ExtKeyUsageClientAuth, year, false), intermediate}, answered},
			{"without the intermediate authority", []*authority{intermediate.sign(t, x509.ExtKeyUsageClientAuth, year, false)}, unauthenticated},
		} {
			c := s.handshakeAs(t, fmt.Sprintf("192.0.2.2:%d", 1000+i), tt.chain...)
			if got := ask(t, c); got != tt.want {
				t.Errorf("%s: %s; want %s", tt.name, got, tt.want)
			}
		}
		if got := samples(t, s.Metrics)["refused_total unauthenticated"]; got != 5 {
			t.Errorf("%v clients were refused; want 5", got)
		}
		if !alive(s.handshake(t, "192.0.2.3:1000")) {
			t.Error("a request of another path was refused")
		}
	})
}

// TestClientOnOneConnection: a certificate is verified again on a connection that stays open: it may have expired, or the
// authorities have changed.
func TestClientOnOneConnection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	synctest.Test(t, func(t *testing.T) {
		ca, other := testAuthority(t), testAuthority(t)
		writeFile(t, file, encode("CERTIFICATE", ca.certificate.Raw))
		s := startWithAuthorities(t, file, io.Discard)
		short := s.handshakeAs(t, "192.0.2.2:1000", ca.sign(t, x509.ExtKeyUsageClientAuth, time.Now().Add(verifiedTime/2), false))
		long := s.handshakeAs(t, "192.0.2.3:1000", ca.sign(t, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour), false))
		check := func(when string, c *tls.Conn, want string) {
			t.Helper()
			if got := ask(t, c); got != want {
				t.Errorf("%s: %s; want %s", when, got, want)
			}
		}
		check("short", short, answered)
		check("long", long, answered)
		time.Sleep(verifiedTime)
		check("expired", short, unauthenticated)
		check("long, later", long, answered)
		writeFile(t, file, encode("CERTIFICATE", other.certificate.Raw))
		time.Sleep(2 * filesInterval)
		check("the authority is no longer in the file", long, unauthenticated)
	})
}

// TestClientAuthoritiesFile: without authorities all clients are refused; a file that can't be read does not change them.
func TestClientAuthoritiesFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ca := testAuthority(t)
		s := startWithAuthorities(t, file, &log)
		client := ca.sign(t, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour), false)
		port := 1000
		check := func(step, want string, problem float64, logged string) {
			t.Helper()
			time.Sleep(3 * filesInterval)
			port++
			if got := ask(t, s.handshakeAs(t, fmt.Sprintf("192.0.2.2:%d", port), client)); got != want {
				t.Errorf("%s: %s; want %s", step, got, want)
			}
			if got := samples(t, s.Metrics)["client_ca_problem"]; got != problem {
				t.Errorf("%s: problem %v; want %v", step, got, problem)
			}
			checkLogged(t, step, &log, logged)
		}
		check("no file", unauthenticated, 1, "no such file or directory")
		writeFile(t, file, nil)
		check("empty", unauthenticated, 1, "has no certificate in PEM")
		writeFile(t, file, encode("CERTIFICATE", ca.certificate.Raw))
		check("authority", answered, 0, "authorities of clients read")
		key, err := encodeKey(ca.key)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, file, key)
		check("a key", answered, 1, "it must have certificates of authorities only")
		writeFile(t, file, encode("CERTIFICATE", []byte("none")))
		check("damaged", answered, 1, "certificate 1: x509")
		writeFile(t, file, make([]byte, maxPEM+1))
		check("large", answered, 1, "is not a regular file of at most 65536 bytes")
	})
}
