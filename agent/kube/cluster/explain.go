package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// refusedTaints is how the admission plugin NodeRestriction refuses a kubelet's user
// (plugin/pkg/admission/noderestriction). No role helps.
const refusedTaints = "is not allowed to modify taints"

// explained is an error with its remedy in its text.
type explained struct {
	text string
	err  error
	// reload is set if only other credentials or another configuration can end it.
	reload bool
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// renew reads the configuration again if only that can end an explained error, and returns whether
// that is so.
func (c *connection) renew(err error) bool {
	var e *explained
	if !errors.As(err, &e) || !e.reload {
		return false
	}
	c.reload(err)
	return true
}

// explain returns err as one line with the file, the cause and the remedy.
func (f *files) explain(err error) error {
	if err == nil {
		return nil
	}
	var already *explained
	if errors.As(err, &already) {
		return err
	}
	e := &explained{err: err}
	var (
		unknownCA x509.UnknownAuthorityError
		wrongName x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		timeout   net.Error
	)
	switch {
	case apierrors.IsUnauthorized(err):
		e.reload = true
		e.text = fmt.Sprintf("API server %s refused the credentials (401 Unauthorized): the %s is expired or not valid; renew it", f.server, f.credentials())
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), refusedTaints):
		e.text = fmt.Sprintf("API server %s: %s: the %s is a kubelet's; use one of the service account evictd-kube, as deploy/README.md shows", f.server, err, f.credentials())
	case apierrors.IsForbidden(err):
		e.text = fmt.Sprintf("API server %s: %s: bind the ClusterRole of deploy/kubernetes to this user", f.server, err)
	case errors.As(err, &unknownCA):
		e.reload = true
		e.text = fmt.Sprintf("certificate of API server %s is signed by an unknown authority: %s does not contain its CA; correct it", f.server, f.authority())
	case errors.As(err, &wrongName), errors.As(err, &invalid):
		e.reload = true
		e.text = fmt.Sprintf("certificate of API server %s is not valid: %s: correct the server address in %s, or the server's certificate", f.server, err, f.configuration())
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		e.reload = true
		e.text = fmt.Sprintf("%s does not speak TLS: correct the server address in %s", f.server, f.configuration())
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		e.text = fmt.Sprintf("API server %s does not answer: %s: trying again", f.server, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.text = fmt.Sprintf("API server %s has closed the connection: trying again", f.server)
	default:
		e.text = fmt.Sprintf("API server %s: %s: trying again", f.server, err)
	}
	e.text = oneLine(e.text)
	return e
}

// credentials describes what authenticates this program.
func (f *files) credentials() string {
	if f.token != "" {
		return "token in " + f.token
	}
	return "user in kubeconfig " + f.kubeconfig
}

// authority describes the source of the CA.
func (f *files) authority() string {
	if f.ca != "" {
		return f.ca
	}
	return "certificate-authority-data in kubeconfig " + f.kubeconfig
}

// configuration describes the source of the server's address.
func (f *files) configuration() string {
	if f.kubeconfig != "" {
		return f.kubeconfig
	}
	return "KUBERNETES_SERVICE_HOST"
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
