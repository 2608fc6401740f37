package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
)

const kubeletToken = "the-token-of-evictd-kube"

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	pair := sign(t, template, nil)
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

// sign returns a certificate by an authority, or one that signs itself.
func sign(t *testing.T, template *x509.Certificate, by *authority) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
}

func asPEM(c tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
}

// fakeKubelet is a TLS server on the kubelet's port. It records all that clients send to it after
// the handshake.
type fakeKubelet struct {
	mu       sync.Mutex
	received strings.Builder
	port     int
}

func (k *fakeKubelet) log() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.received.String()
}

// serveKubelet answers each request with a fixed HTTP response.
func serveKubelet(t *testing.T, certificate tls.Certificate, maxVersion uint16, answer string) *fakeKubelet {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &fakeKubelet{port: l.Addr().(*net.TCPAddr).Port}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				c := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{certificate}, MaxVersion: maxVersion})
				buffer := make([]byte, 4096)
				for {
					n, err := c.Read(buffer)
					k.mu.Lock()
					k.received.Write(buffer[:n])
					k.mu.Unlock()
					if err != nil {
						return
					}
					if strings.Contains(k.log(), "\r\n\r\n") {
						_, _ = io.WriteString(c, answer)
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return k
}

// connectTo returns a client of an API server that knows a node n1 with a kubelet on a port. The
// client has a token, and the certificate of the CA.
func connectTo(t *testing.T, ca *authority, port int) *client {
	t.Helper()
	node := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/nodes/n1" {
			t.Errorf("%s %s; want the node alone", r.Method, r.URL.Path)
		}
		_ = json.NewEncoder(w).Encode(node)
	}))
	api.TLS = &tls.Config{Certificates: []tls.Certificate{sign(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, ca)}}
	api.StartTLS()
	t.Cleanup(api.Close)
	dir := t.TempDir()
	kubeconfig, token, authority := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	write(t, authority, asPEM(tls.Certificate{Certificate: [][]byte{ca.cert.Raw}}))
	write(t, token, kubeletToken)
	write(t, kubeconfig, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":%q,"certificate-authority":%q}}],
		"users":[{"name":"u","user":{"tokenFile":%q}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`, api.URL, authority, token))
	c, err := (&Options{Kubeconfig: kubeconfig}).connect()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func httpAnswer(status, body string, headers ...string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s", status, len(body), strings.Join(append(headers, ""), "\r\n"), body)
}

// Only the kubelet itself gets the token: a server with one of the certificates that evictd has
// found, or a serving certificate of the cluster's CA for this node.
func TestKubeletIsRecognized(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	own := sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "n1@1700000000"}, DNSNames: []string{"n1"}}, nil)
	twin := sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "n1@1700000000"}, DNSNames: []string{"n1"}, IPAddresses: loopback}, nil)
	serving := func(by *authority, cn string, names []string, ips []net.IP, usage x509.ExtKeyUsage) tls.Certificate {
		return sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: cn}, DNSNames: names, IPAddresses: ips, ExtKeyUsage: []x509.ExtKeyUsage{usage}}, by)
	}
	const server, user = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	for _, tt := range []struct {
		name   string
		serves tls.Certificate
		known  string
		ok     bool
	}{
		{"certificate in the kubelet's directory", own, asPEM(twin) + asPEM(own), true},
		{"another certificate with its names", twin, asPEM(own), false},
		{"certificate that nobody knows", own, "", false},
		{"the cluster's CA, address", serving(ca, "system:node:n1", nil, loopback, server), "", true},
		{"the cluster's CA, name", serving(ca, "kubelet", []string{"n1"}, nil, server), asPEM(own), true},
		{"the cluster's CA, another node with this address", serving(ca, "system:node:n2", []string{"n2"}, loopback, server), "", false},
		{"the cluster's CA, other names", serving(ca, "kubelet", []string{"n2"}, []net.IP{net.IPv4(127, 0, 0, 2)}, server), "", false},
		{"the cluster's CA, a user", serving(ca, "system:node:n1", []string{"n1"}, loopback, user), "", false},
		{"another CA", serving(other, "system:node:n1", []string{"n1"}, loopback, server), asPEM(own), false},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			k := serveKubelet(t, tt.serves, version, httpAnswer("200 OK", `{"kubeletconfig":{"evictionHard":{"nodefs.available":"7%"},"podPidsLimit":-1,"cgroupsPerQOS":true,"new":[{}]}}`))
			got, err := connectTo(t, ca, k.port).readKubelet(t.Context(), "n1", tt.known)
			if !tt.ok {
				if err == nil || !strings.Contains(err.Error(), "got no credentials") || k.log() != "" {
					t.Errorf("%s: readKubelet() = %v, and the server got %q; want an error, and that it got nothing", tt.name, err, k.log())
				}
				continue
			}
			if err != nil || got.EvictionHard["nodefs.available"] != "7%" || got.PodPidsLimit != -1 {
				t.Errorf("%s: readKubelet() = %+v, %v; want the configuration", tt.name, got, err)
			}
			if want := "Authorization: Bearer " + kubeletToken; !strings.HasPrefix(k.log(), "GET /configz HTTP/1.1\r\n") || !strings.Contains(k.log(), want) {
				t.Errorf("%s: the kubelet got %q; want %q in it", tt.name, k.log(), want)
			}
		}
	}
}

// What else the kubelet may answer is an error with the remedy, and nothing is followed.
func TestKubeletAnswers(t *testing.T) {
	ca := newAuthority(t)
	own := sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "n1@1700000000"}}, nil)
	elsewhere := serveKubelet(t, own, tls.VersionTLS13, httpAnswer("200 OK", "{}"))
	for _, tt := range []struct{ answer, want string }{
		{httpAnswer("401 Unauthorized", ""), "authentication.webhook"},
		{httpAnswer("403 Forbidden", ""), "may not get nodes/configz: bind the ClusterRole"},
		{httpAnswer("404 Not Found", ""), "enableDebuggingHandlers"},
		{httpAnswer("307 Temporary Redirect", "", fmt.Sprintf("Location: https://127.0.0.1:%d/configz", elsewhere.port)), "answered 307"},
		{httpAnswer("200 OK", ""), "answer of the kubelet"},
		{httpAnswer("200 OK", "{}"), "no kubeletconfig"},
		{httpAnswer("200 OK", `{"kubeletconfig":{"evictionHard":{"nodefs.available":7}}}`), "answer of the kubelet"},
		{httpAnswer("200 OK", `{"kubeletconfig":{"x":"`+strings.Repeat("x", maxConfigz)+`"}}`), "more than 1048576 bytes"},
		{"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxConfigzHeader) + "\r\n\r\n", "kubelet at"},
		{"no HTTP", "kubelet at"},
	} {
		k := serveKubelet(t, own, tls.VersionTLS13, tt.answer)
		got, err := connectTo(t, ca, k.port).readKubelet(t.Context(), "n1", asPEM(own))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("answer %.60q: readKubelet() = %+v, %v; want an error with %q", tt.answer, got, err, tt.want)
		}
	}
	if got := elsewhere.log(); got != "" {
		t.Errorf("the target of a redirect got %q; want nothing", got)
	}
}

func TestKubeletAddress(t *testing.T) {
	for _, tt := range []struct {
		address string
		port    int32
		want    string // or a part of the error
	}{
		{"10.0.0.1", 10250, "10.0.0.1:10250"},
		{"fd00::1", 10250, "[fd00::1]:10250"},
		{"fe80::1%eth0", 10250, "no InternalIP"},
		{"n1.example", 10250, "no InternalIP"},
		{"10.0.0.1", 0, "enableServer"},
		{"10.0.0.1", 70000, "enableServer"},
	} {
		n := &corev1.Node{}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: tt.address}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = tt.port
		got, err := kubeletAddress(n)
		if text := fmt.Sprint(got, err); !strings.Contains(text, tt.want) {
			t.Errorf("kubeletAddress(%s, %d) = %v, %v; want %q", tt.address, tt.port, got, err, tt.want)
		}
	}
}

type configzAnswers chan *kube.KubeletConfiguration

func (a configzAnswers) ReportKubelet(c *kube.KubeletConfiguration) { a <- c }

// Nothing is read before evictd asks and there is a connection. After a failure the kubelet is
// asked again soon, and otherwise every five minutes.
func TestConfigzRun(t *testing.T) {
	c, err := (&Options{Kubeconfig: deadKubeconfig(t)}).connect()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		got := make(configzAnswers, 100)
		z := NewConfigz("n1", got, slog.New(slog.DiscardHandler))
		done := make(chan struct{})
		go func() {
			defer close(done)
			z.Run(t.Context())
		}()
		z.connected(c, func(error) {})
		time.Sleep(time.Hour)
		if len(got) > 0 {
			t.Fatalf("read before evictd asked: %+v", <-got)
		}
		z.ReadKubelet(&kube.ReadKubelet{})
		began := time.Now()
		for i := range 8 {
			answer := <-got
			if answer.Error == "" {
				t.Fatalf("answer %+v; want an error", answer)
			}
			if after := time.Since(began); i == 1 && after > firstConfigzBackoff || after > time.Duration(i)*longestConfigzBackoff {
				t.Errorf("attempt %d after %v; want it sooner", i, after)
			}
		}
		if after := time.Since(began); after < 30*time.Second {
			t.Errorf("eight attempts within %v; want a back-off", after)
		}
	})
}

// deadKubeconfig has an API server that can't be reached.
func deadKubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	write(t, path, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"k","cluster":{"server":"https://127.0.0.1:1"}}],
		"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}]}`)
	return path
}
