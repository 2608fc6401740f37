package serving

import (
	"crypto/tls"
	"errors"
	"sync/atomic"
	"time"
)

// errNoCertificate is the answer to handshakes before there is a certificate.
var errNoCertificate = errors.New("there is no serving certificate yet")

// Certificate is what a server serves with. It can be replaced at any time. The zero value has none.
type Certificate struct {
	current atomic.Pointer[tls.Certificate]
}

// Get returns the certificate that is in use. It is that of a tls.Config's GetCertificate.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if current := c.current.Load(); current != nil {
		return current, nil
	}
	return nil, errNoCertificate
}

// set replaces the certificate, which must have its Leaf, and reports whether it differs from the one before.
func (c *Certificate) set(next *tls.Certificate) bool {
	earlier := c.current.Swap(next)
	return earlier == nil || !earlier.Leaf.Equal(next.Leaf)
}

// Expiry returns when the certificate expires; a zero time without one.
func (c *Certificate) Expiry() time.Time {
	if current := c.current.Load(); current != nil {
		return current.Leaf.NotAfter
	}
	return time.Time{}
}
