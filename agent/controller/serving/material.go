package serving

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// The lifetimes. An authority lasts long, because the configuration of a scheduler has a copy of it.
	authorityLifetime = 10 * 365 * 24 * time.Hour
	servingLifetime   = 90 * 24 * time.Hour
	// backdate is for clients whose clock is behind.
	backdate = time.Hour
	// trustDelay is how old an authority is before it signs, unless there is no other: its clients must know it by then.
	trustDelay = 24 * time.Hour
	// maxAuthorities bounds the bundle.
	maxAuthorities = 8
	// maxPEM bounds each value of the Secret in bytes.
	maxPEM = 64 << 10
)

// The keys of the Secret.
const (
	keyAuthority    = "ca.crt" // the authority that signs, then the earlier ones
	keyAuthorityKey = "ca.key"
	keyServing      = "tls.crt"
	keyServingKey   = "tls.key"
)

// material is what the Secret has: authorities, the key of the first one, and the serving certificate.
type material struct {
	authorities []*x509.Certificate
	key         *ecdsa.PrivateKey
	// serving is nil if there is none that can be used.
	serving *tls.Certificate
}

// parseMaterial reads the data of a Secret. An error is about the authority. A serving certificate that can't be read,
// that none of the authorities has signed, or that is not for the name is left out, because it can be signed again.
func parseMaterial(data map[string][]byte, name string) (*material, error) {
	for _, key := range []string{keyAuthority, keyAuthorityKey, keyServing, keyServingKey} {
		if len(data[key]) > maxPEM {
			return nil, fmt.Errorf("%s has %d bytes, more than %d", key, len(data[key]), maxPEM)
		}
	}
	m := &material{}
	for rest := data[keyAuthority]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		authority, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: %w", keyAuthority, err)
		case !authority.IsCA:
			return nil, fmt.Errorf("%s: certificate %s is not that of an authority", keyAuthority, authority.Subject)
		case len(m.authorities) == maxAuthorities:
			return nil, fmt.Errorf("%s has more than %d certificates", keyAuthority, maxAuthorities)
		}
		m.authorities = append(m.authorities, authority)
	}
	if len(m.authorities) == 0 {
		return nil, fmt.Errorf("%s has no certificate", keyAuthority)
	}
	pair, err := tls.X509KeyPair(encode("CERTIFICATE", m.authorities[0].Raw), data[keyAuthorityKey])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", keyAuthorityKey, err)
	}
	var ok bool
	if m.key, ok = pair.PrivateKey.(*ecdsa.PrivateKey); !ok {
		return nil, fmt.Errorf("%s is not an ECDSA key", keyAuthorityKey)
	}
	if serving, err := tls.X509KeyPair(data[keyServing], data[keyServingKey]); err == nil && m.trusts(&serving, name) {
		m.serving = &serving
	}
	return m, nil
}

// trusts reports whether one of the authorities has signed a certificate for a server of the name.
func (m *material) trusts(c *tls.Certificate, name string) bool {
	if c.Leaf.VerifyHostname(name) != nil || !slices.Contains(c.Leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		return false
	}
	return slices.ContainsFunc(m.authorities, func(a *x509.Certificate) bool {
		// Clients find the authority by its name.
		return bytes.Equal(c.Leaf.RawIssuer, a.RawSubject) && c.Leaf.CheckSignatureFrom(a) == nil
	})
}

// data returns the data of the Secret.
func (m *material) data() (map[string][]byte, error) {
	authorityKey, err := encodeKey(m.key)
	if err != nil {
		return nil, err
	}
	servingKey, err := encodeKey(m.serving.PrivateKey)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		keyAuthority: m.bundle(), keyAuthorityKey: authorityKey,
		keyServing: encode("CERTIFICATE", m.serving.Leaf.Raw), keyServingKey: servingKey,
	}, nil
}

// bundle returns the authorities in PEM.
func (m *material) bundle() []byte {
	var b bytes.Buffer
	for _, a := range m.authorities {
		b.Write(encode("CERTIFICATE", a.Raw))
	}
	return b.Bytes()
}

// renewed returns the material that is right at a time, and whether it differs. Nil material is that of no Secret.
//
// A new authority is only added at first. It signs the next serving certificate a day later or more, when the clients
// know it. Until then, and until the old authority expires, the bundle has both.
func (m *material) renewed(now time.Time, name string) (*material, bool, error) {
	next, changed := &material{}, false
	if m != nil {
		next.key, next.serving = m.key, m.serving
		for i, a := range m.authorities {
			if i == 0 || now.Before(a.NotAfter) {
				next.authorities = append(next.authorities, a)
			}
		}
		changed = len(next.authorities) < len(m.authorities)
	}
	if len(next.authorities) == 0 || ending(next.authorities[0], authorityLifetime, now) {
		authority, key, err := newAuthority(now)
		if err != nil {
			return nil, false, err
		}
		kept := slices.DeleteFunc(next.authorities, func(a *x509.Certificate) bool { return !usable(a, now) })
		next.authorities = append([]*x509.Certificate{authority}, kept[:min(len(kept), maxAuthorities-1)]...)
		next.key, changed = key, true
	}
	if next.serving != nil && !usable(next.serving.Leaf, now) {
		next.serving = nil
	}
	// It is worth nothing without the authority that signed it.
	if next.serving != nil && !next.trusts(next.serving, name) {
		next.serving = nil
	}
	known := now.Sub(next.authorities[0].NotBefore.Add(backdate)) >= trustDelay
	if next.serving == nil || known && ending(next.serving.Leaf, servingLifetime, now) {
		serving, err := next.sign(now, name)
		if err != nil {
			return nil, false, err
		}
		next.serving, changed = serving, true
	}
	return next, changed, nil
}

// renewal returns when the material must be renewed.
func (m *material) renewal() time.Time {
	at := m.serving.Leaf.NotAfter.Add(-servingLifetime / 3)
	if known := m.authorities[0].NotBefore.Add(backdate + trustDelay); at.Before(known) {
		at = known
	}
	if authority := m.authorities[0].NotAfter.Add(-authorityLifetime / 3); authority.Before(at) {
		at = authority
	}
	for _, a := range m.authorities[1:] {
		if a.NotAfter.Before(at) {
			at = a.NotAfter
		}
	}
	return at
}

// due reports whether the material must be renewed.
func (m *material) due(now time.Time) bool {
	return !now.Before(m.renewal()) || !usable(m.serving.Leaf, now) || !usable(m.authorities[0], now)
}

// ending reports whether a certificate must be renewed: in the last third of its lifetime, and if it is not valid yet
// because a clock was wrong.
func ending(c *x509.Certificate, lifetime time.Duration, now time.Time) bool {
	return !usable(c, now) || !now.Before(c.NotAfter.Add(-lifetime/3))
}

// usable reports whether a certificate is valid at a time.
func usable(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotAfter)
}

func newAuthority(now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "evictd-controller webhook authority " + now.UTC().Format("2006-01-02")},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLifetime),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the certificate of the authority: %w", err)
	}
	c, err := x509.ParseCertificate(raw)
	return c, key, err
}

// sign returns a new serving certificate, which does not outlive its authority.
func (m *material) sign(now time.Time, name string) (*tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	end := now.Add(servingLifetime)
	if authority := m.authorities[0]; authority.NotAfter.Before(end) {
		end = authority.NotAfter
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "evictd-controller webhook"}, DNSNames: []string{name},
		NotBefore: now.Add(-backdate), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, m.authorities[0], key.Public(), m.key)
	if err != nil {
		return nil, fmt.Errorf("sign a serving certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(key any) ([]byte, error) {
	if key == nil {
		return nil, errors.New("no key")
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return encode("PRIVATE KEY", der), nil
}
