package redfish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
)

const (
	// maxBody bounds the body of an answer in bytes. That of a system is some kB.
	maxBody = 1 << 20
	// maxHeader bounds the header of an answer in bytes.
	maxHeader = 64 << 10
	// maxRedirects bounds the redirects of one reading. HPE iLO redirects to the path with a slash at the end.
	maxRedirects = 3
)

// reply is an answer of the BMC.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error // of reading the body
}

// statusError is a reply with a status that is not success.
type statusError struct {
	status  int
	ids     []string // of the messages
	redfish bool     // the body is an error of Redfish
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("the BMC answers %d %s", e.status, http.StatusText(e.status))
	if len(e.ids) > 0 {
		text += " (" + strings.Join(e.ids, ", ") + ")"
	}
	return text
}

func (r *reply) failure() *statusError {
	e := &statusError{status: r.status}
	if r.err == nil {
		e.ids, e.redfish = parseError(r.body)
	}
	return e
}

// transport returns the connections of a session. Unless once is false, each request has a connection of its own.
func (s *session) transport(once bool) *http.Transport {
	http1 := new(http.Protocols)
	http1.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  nil, // see the package's comment
		DialTLSContext:         s.dial,
		DisableCompression:     true, // an answer has no more bytes than were sent
		DisableKeepAlives:      once,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              http1,
	}
}

// dial connects and authenticates the BMC. It ends with the session at the latest, whatever net/http does with
// a connection that no request waits for any more.
func (s *session) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ended, cancel)()
	conn, err := (&tls.Dialer{Config: s.device.tls}).DialContext(ctx, network, address)
	if err != nil {
		return nil, explainDial(err)
	}
	return conn, nil
}

// explainDial adds a remedy to the error of a certificate.
func explainDial(err error) error {
	var wrong *tls.CertificateVerificationError
	if !errors.As(err, &wrong) || len(wrong.UnverifiedCertificates) == 0 {
		return err
	}
	return fmt.Errorf("%w: %w: check that this is the BMC, then set ssl_ca to its authority, or ssl_fingerprint to the "+
		"SHA-256 that the BMC shows for its certificate; this one has %x",
		ErrCertificate, wrong.Err, sha256.Sum256(wrong.UnverifiedCertificates[0].Raw))
}

// request sends a request and reads the answer. It follows no redirect.
func (s *session) request(ctx context.Context, t *http.Transport, method, uri string, body []byte) (*reply, error) {
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, "https://"+s.device.address()+uri, content)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, uri, err)
	}
	r.GetBody = nil // net/http can't send it again
	r.Header.Set("Accept", "application/json")
	r.Header.Set("OData-Version", "4.0")
	r.Header.Set("User-Agent", "evictd-controller")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	s.authorize(r)
	// Not http.Client, which follows redirects, also those of POST.
	response, err := t.RoundTrip(r)
	if err != nil {
		if cause := s.ctx.Err(); cause != nil && !errors.Is(err, cause) {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		return nil, fmt.Errorf("%s %s: %w", method, uri, err)
	}
	s.answered.Store(true)
	defer response.Body.Close()
	a := &reply{status: response.StatusCode, header: response.Header}
	a.body, a.err = io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if a.err == nil && len(a.body) > maxBody {
		a.err = fmt.Errorf("the answer has more than %d bytes", maxBody)
	}
	if a.err != nil {
		a.err = fmt.Errorf("%s %s: read the answer: %w", method, uri, a.err)
	}
	return a, nil
}

// get reads a resource.
func (s *session) get(ctx context.Context, uri string) (object, error) {
	at := uri
	for range 1 + maxRedirects {
		a, err := s.request(ctx, s.reads, http.MethodGet, at, nil)
		switch {
		case err != nil:
			return nil, err
		case redirects(a.status):
			if at, err = s.redirect(a.header.Get("Location")); err != nil {
				return nil, fmt.Errorf("read %s: %w", uri, err)
			}
			continue
		case a.status != http.StatusOK:
			return nil, fmt.Errorf("read %s: %w", uri, explainStatus(a.failure()))
		case a.err != nil:
			return nil, a.err
		}
		o, err := parseObject(a.body)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", uri, err)
		}
		if id, err := o.text("@odata.id"); err != nil {
			return nil, fmt.Errorf("read %s: %w", uri, err)
		} else if !sameResource(id, uri) {
			return nil, fmt.Errorf("read %s: the answer is that of %s", uri, quote(id))
		}
		return o, nil
	}
	return nil, fmt.Errorf("read %s: more than %d redirects", uri, maxRedirects)
}

// explainStatus adds a remedy.
func explainStatus(e *statusError) error {
	if e.status == http.StatusUnauthorized {
		return fmt.Errorf("%w: %w", ErrAuthentication, e)
	}
	return e
}

func redirects(status int) bool {
	return slices.Contains([]int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect}, status)
}

// redirect returns where a redirect leads to, which must be a resource of the same BMC.
func (s *session) redirect(location string) (string, error) {
	u, err := url.Parse(location)
	if err != nil {
		return "", fmt.Errorf("redirect to %s", quote(location))
	}
	if u.Scheme == "https" && (u.Host == s.device.address() || u.Port() == "" && u.Hostname() == s.device.host &&
		s.device.port == defaultPort) {
		u.Scheme, u.Host = "", ""
	}
	if err := checkLink(u.String()); err != nil {
		return "", fmt.Errorf("redirect to %w", err)
	}
	return u.String(), nil
}

// act sends a reset once. Sent says that the BMC may have got it, refused that it certainly did not carry it out.
func (s *session) act(target, resetType string) (sent, refused bool, err error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(s.ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	body, err := json.Marshal(map[string]string{"ResetType": resetType})
	if err != nil {
		return false, false, err
	}
	// A connection that was used before may be closed by the BMC just now; it would be open whether the BMC got the
	// request.
	t := s.transport(true)
	defer t.CloseIdleConnections()
	a, err := s.request(ctx, t, http.MethodPost, target, body)
	if err != nil {
		return connected.Load(), false, err
	}
	switch a.status {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return true, false, nil
	}
	failure := a.failure()
	return true, failure.refusal(), explainStatus(failure)
}

// refusal reports whether a BMC did not carry out the request. A gateway, an error of the server, a timeout, a conflict
// with what it does at the moment and a redirect leave that open.
func (e *statusError) refusal() bool {
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	case http.StatusBadRequest, http.StatusNotAcceptable, http.StatusPreconditionFailed,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusPreconditionRequired,
		http.StatusTooManyRequests:
		return e.redfish
	}
	return false
}
