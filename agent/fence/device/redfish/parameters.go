package redfish

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"

	"github.com/evictd/evictd/agent/fence/device"
)

const (
	defaultPort = 443
	// maxCredential bounds user name and password in bytes.
	maxCredential = 256
)

type parameters struct {
	host               string
	port               int
	username, password string
	member             string         // of the collection of systems; empty if it has one only
	authorities        *x509.CertPool // nil for those of the system
	fingerprint        []byte
	insecure           bool
}

// String returns host, port and system. It keeps the password out of logs.
func (p parameters) String() string {
	if p.member == "" {
		return "BMC " + p.address()
	}
	return "BMC " + p.address() + " system " + p.member
}

// GoString is String.
func (p parameters) GoString() string { return p.String() }

func (p parameters) address() string { return net.JoinHostPort(p.host, strconv.Itoa(p.port)) }

var (
	memberName = regexp.MustCompile(`^[A-Za-z0-9._~-]{1,128}$`)
	known      = []string{"ip", "ipport", "username", "password", "system", "ssl_ca", "ssl_fingerprint", "ssl_insecure"}
)

// parse returns all mistakes at once, without values of secrets.
func parse(m map[string]string) (parameters, error) {
	p := parameters{username: m["username"], password: m["password"], member: m["system"]}
	var errs []error
	p.host, p.port, errs = device.Address(m, defaultPort, known...)
	// Basic authentication separates the two by a colon.
	if p.username == "" || len(p.username) > maxCredential || strings.Contains(p.username, ":") {
		errs = append(errs, fmt.Errorf("parameter username has %d bytes: it needs 1 to %d, none of them a colon",
			len(p.username), maxCredential))
	}
	if p.password == "" || len(p.password) > maxCredential {
		errs = append(errs, fmt.Errorf("parameter password has %d bytes: it needs 1 to %d", len(p.password), maxCredential))
	}
	if p.member != "" && !memberName.MatchString(p.member) {
		errs = append(errs, fmt.Errorf("parameter system is %q: set it to the last part of the system's URI", p.member))
	}
	errs = append(errs, p.parseTLS(m))
	if err := errors.Join(errs...); err != nil {
		return parameters{}, fmt.Errorf("parameters of the Redfish device: %w", err)
	}
	return p, nil
}

func (p *parameters) parseTLS(m map[string]string) error {
	var errs []error
	if text, ok := m["ssl_fingerprint"]; ok {
		var err error
		if p.fingerprint, err = hex.DecodeString(text); err != nil || len(p.fingerprint) != sha256.Size {
			errs = append(errs, errors.New("parameter ssl_fingerprint is not a SHA-256: "+
				"set it to the 64 hexadecimal digits that the certificate of the BMC has"))
		}
	}
	if text, ok := m["ssl_ca"]; ok {
		var err error
		if p.authorities, err = parseAuthorities([]byte(text)); err != nil {
			errs = append(errs, fmt.Errorf("parameter ssl_ca: %w: set it to certificates in PEM", err))
		}
	}
	switch m["ssl_insecure"] {
	case "", "0":
	case "1":
		p.insecure = true
	default:
		errs = append(errs, fmt.Errorf("parameter ssl_insecure is %q: set it to 1 or 0", m["ssl_insecure"]))
	}
	return errors.Join(errs...)
}

// parseAuthorities parses certificates in PEM. Unlike x509.CertPool it accepts nothing else between them, so that no
// authority is left out silently.
func parseAuthorities(text []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for n := 0; ; n++ {
		block, rest := pem.Decode(text)
		switch {
		case block == nil && n > 0 && len(bytes.TrimSpace(text)) == 0:
			return pool, nil
		case block == nil:
			return nil, errors.New("is not PEM")
		case block.Type != "CERTIFICATE":
			return nil, errors.New("has a block that is not a certificate")
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n+1, err)
		}
		pool.AddCert(certificate)
		text = rest
	}
}

// config returns how the BMC is authenticated: by its certificate alone with a fingerprint; with authorities, too, by
// them, its name and its dates. ssl_insecure counts only without both.
func (p parameters) config() *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: p.host, NextProtos: []string{"http/1.1"}, RootCAs: p.authorities,
	}
	if p.fingerprint == nil {
		c.InsecureSkipVerify = p.insecure && p.authorities == nil
		return c
	}
	c.InsecureSkipVerify = p.authorities == nil // VerifyConnection does it
	c.VerifyConnection = func(state tls.ConnectionState) error {
		got := sha256.Sum256(state.PeerCertificates[0].Raw)
		if !bytes.Equal(got[:], p.fingerprint) {
			return fmt.Errorf("%w: its SHA-256 is %x, not ssl_fingerprint: check that this is the BMC, and compare it with "+
				"the one that the BMC shows", ErrCertificate, got)
		}
		return nil
	}
	return c
}
