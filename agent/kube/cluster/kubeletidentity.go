package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// kubeletIdentity is how a kubelet is recognized. Any user of the node can listen on its port
// while it does not run, so that its address alone shows nothing.
type kubeletIdentity struct {
	node         string
	address      netip.AddrPort
	certificates string // those that it serves with, as evictd has read them (PEM)
}

// errStranger is returned if the server is not the kubelet.
var errStranger = errors.New("the server has not proven to be the kubelet")

// kubeletAddress returns the address of the kubelet's server from the Node object.
func kubeletAddress(n *corev1.Node) (netip.AddrPort, error) {
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port <= 0 || port > 65535 {
		return netip.AddrPort{}, fmt.Errorf("node %s has no port of its kubelet (status.daemonEndpoints): is enableServer false in the kubelet's configuration?", n.Name)
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" {
			return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("node %s has no InternalIP, at which its kubelet could be asked", n.Name)
}

// tlsConfig returns the configuration of a connection to the kubelet, with the client certificate of
// the credentials if they have one. The handshake fails, before anything of the credentials is
// sent, unless verify accepts the server.
func (k *kubeletIdentity) tlsConfig(config *rest.Config) (*tls.Config, error) {
	given, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("credentials for the kubelet: %w", err)
	}
	c := &tls.Config{
		MinVersion: tls.VersionTLS12,
		// crypto/tls would accept a certificate of the CA alone. VerifyConnection is called
		// in its place, also for a session that is resumed.
		InsecureSkipVerify: true,
	}
	var authority *x509.CertPool // never the system's: those are for the whole internet
	if given != nil {
		c.Certificates, c.GetClientCertificate, authority = given.Certificates, given.GetClientCertificate, given.RootCAs
	}
	c.VerifyConnection = func(s tls.ConnectionState) error { return k.verify(s.PeerCertificates, authority) }
	return c, nil
}

// verify returns an error unless the server has one of the kubelet's certificates, or a serving
// certificate of the cluster's CA for this node.
func (k *kubeletIdentity) verify(chain []*x509.Certificate, authority *x509.CertPool) error {
	if len(chain) == 0 {
		return errStranger
	}
	leaf := chain[0]
	for rest := []byte(k.certificates); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" && bytes.Equal(block.Bytes, leaf.Raw) {
			return nil
		}
	}
	if authority == nil {
		return errStranger
	}
	// A kubelet's certificate names its node. An address alone could be another node's, if
	// somebody has changed this node's object.
	if node, ok := strings.CutPrefix(leaf.Subject.CommonName, "system:node:"); ok && node != k.node {
		return fmt.Errorf("%w: its certificate is that of node %.60q", errStranger, node)
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: authority, Intermediates: intermediates}); err != nil {
		return fmt.Errorf("%w: %.200s", errStranger, err.Error()) // the server chooses the text
	}
	if err := leaf.VerifyHostname(k.address.Addr().String()); err == nil {
		return nil
	}
	if err := leaf.VerifyHostname(k.node); err != nil {
		return fmt.Errorf("%w: %.200s", errStranger, err.Error()) // the server chooses the text
	}
	return nil
}

// explain returns an error of a connection to the kubelet with its remedy.
func (k *kubeletIdentity) explain(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, errStranger):
		return fmt.Errorf("server at %s: %w; it got no credentials. Its certificate must be one of those in the kubelet's directory (pki), or of the cluster's CA: "+
			"if the kubelet's configuration has tlsCertFile, name a certificate of that CA in it, or use serverTLSBootstrap", k.address, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("kubelet at %s does not answer: may a pod of this node connect to it?", k.address)
	}
	return fmt.Errorf("kubelet at %s: %w: does it run, and listen there (address, port)?", k.address, err)
}
