package kubeletcert

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pair returns a certificate and its key, both PEM.
func pair(t *testing.T) (certificate, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func TestRead(t *testing.T) {
	own, ownKey := pair(t)
	signed, key := pair(t)
	ca, _ := pair(t)
	for _, tt := range []struct {
		name  string
		files map[string]string
		links map[string]string
		want  string
		log   string // part of it
	}{
		{name: "no kubelet"},
		{name: "self-signed", files: map[string]string{"kubelet.crt": own, "kubelet.key": ownKey}, want: own},
		{name: "only the leaf of a chain, and no key", files: map[string]string{"kubelet-server-current.pem": signed + ca + key}, want: signed},
		{name: "key first", files: map[string]string{"kubelet-server-current.pem": key + signed}, want: signed},
		{name: "both", files: map[string]string{"kubelet.crt": own, "kubelet-server-current.pem": signed + key}, want: own + signed},
		{name: "link as the host sees it", files: map[string]string{"kubelet-server-2030-01-01.pem": signed + key},
			links: map[string]string{"kubelet-server-current.pem": "/var/lib/kubelet/pki/kubelet-server-2030-01-01.pem"}, want: signed},
		{name: "link to elsewhere", links: map[string]string{"kubelet.crt": "/etc/passwd"}, want: ""},
		{name: "link to a link", links: map[string]string{"kubelet.crt": "a", "a": "b"}, want: "", log: "not a regular file"},
		{name: "key alone", files: map[string]string{"kubelet.crt": key}, log: "has no certificate"},
		{name: "no certificate", files: map[string]string{"kubelet.crt": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "kubelet-server-current.pem": signed}, want: signed, log: "kubelet.crt"},
		{name: "empty", files: map[string]string{"kubelet.crt": ""}, log: "has no certificate"},
		{name: "too large", files: map[string]string{"kubelet.crt": own + strings.Repeat("\n", maxFile)}, log: "not a regular file of at most"},
	} {
		root := t.TempDir()
		pki := filepath.Join(root, "pki")
		if err := os.Mkdir(pki, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range tt.files {
			if err := os.WriteFile(filepath.Join(pki, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for name, target := range tt.links {
			if err := os.Symlink(target, filepath.Join(pki, name)); err != nil {
				t.Fatal(err)
			}
		}
		var log bytes.Buffer
		if got := Read(root, slog.New(slog.NewTextHandler(&log, nil))); got != tt.want {
			t.Errorf("%s: Read() = %q; want %q", tt.name, got, tt.want)
		}
		if (log.Len() > 0) != (tt.log != "") || !strings.Contains(log.String(), tt.log) {
			t.Errorf("%s: log %q; want %q", tt.name, log.String(), tt.log)
		}
		if strings.Contains(log.String(), "PRIVATE") {
			t.Errorf("%s: the log has the key: %q", tt.name, log.String())
		}
	}
}
