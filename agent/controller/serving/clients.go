package serving

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// verifiedTime is how long a certificate that was verified counts on its connection. It is verified again then, since it
// may have expired.
const verifiedTime = time.Minute

// ClientAuthorities verifies the certificates of clients by the authorities in a file, which is read again when it changes.
// Until it could be read once, no certificate is valid.
type ClientAuthorities struct {
	File    string
	Metrics *Metrics
	Log     *slog.Logger

	text []byte
	pool atomic.Pointer[x509.CertPool]
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*ClientAuthorities) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (a *ClientAuthorities) Start(ctx context.Context) error {
	watchFiles(ctx, a.read, a.Metrics.setClientProblem, func(err error) {
		a.Log.Error("could not read the authorities of clients; the last ones stay in use, and without any all clients are refused",
			"error", err)
	})
	return nil
}

// read takes the authorities over if the file has changed.
func (a *ClientAuthorities) read() error {
	text, err := readBounded(a.File)
	if err != nil || a.pool.Load() != nil && bytes.Equal(text, a.text) {
		return err
	}
	pool, n := x509.NewCertPool(), 0
	for rest := text; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("%s: PEM block %d is a %s; it must have certificates of authorities only", a.File, n+1, block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("%s: certificate %d: %w", a.File, n+1, err)
		}
		pool.AddCert(certificate)
	}
	if n == 0 {
		return fmt.Errorf("%s has no certificate in PEM", a.File)
	}
	a.text = text
	a.pool.Store(pool)
	a.Log.Info("authorities of clients read", "file", a.File, "certificates", n)
	return nil
}

// Require returns a handler of the requests whose client has a certificate of the authorities for the authentication of
// clients. Others are refused with 401 before their body is read. The server must have ClientCertificates set.
func (a *ClientAuthorities) Require(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := a.verifyOnce(r); err != nil {
			a.Log.Debug("client refused", "client", r.RemoteAddr, "error", err)
			a.Metrics.refuse(w, refusedClient, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// verifiedKey is the key of a connection's *verified in the context of its requests.
type verifiedKey struct{}

// verified is the last verification that succeeded on a connection, whose requests follow one another. A signature takes
// longer to verify than most requests to answer.
type verified struct {
	pool *x509.CertPool
	at   time.Time
}

// withVerified adds a *verified to the context of a connection.
func withVerified(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, verifiedKey{}, new(verified))
}

func (a *ClientAuthorities) verifyOnce(r *http.Request) error {
	pool := a.pool.Load()
	last, _ := r.Context().Value(verifiedKey{}).(*verified)
	if last != nil && pool != nil && last.pool == pool && time.Since(last.at) < verifiedTime {
		return nil
	}
	if err := verifyClient(r, pool); err != nil {
		return err
	}
	if last != nil {
		*last = verified{pool, time.Now()}
	}
	return nil
}

// verifyClient verifies the certificate of the client of a request.
func verifyClient(r *http.Request, pool *x509.CertPool) error {
	switch {
	case pool == nil:
		return errors.New("the authorities of clients could not be read yet")
	case r.TLS == nil || len(r.TLS.PeerCertificates) == 0:
		return errors.New("the client has no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := r.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
