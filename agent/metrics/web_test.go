package metrics

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// request sends a request to h and returns the status code and body.
func request(h http.Handler, method, target string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Code, w.Body.String()
}

func TestHealthz(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beat Heartbeat
		mux := Mux(http.NotFoundHandler(), &beat, 2*time.Second)
		steps := []struct {
			beat  bool
			after time.Duration
			path  string
			code  int
			want  string
		}{
			{false, 0, "/healthz", 503, "[-]loop failed: no iteration yet\nfailed\n"},
			{true, 0, "/healthz", 200, "ok\n"},
			{false, 2 * time.Second, "/healthz", 200, "ok\n"},
			{false, time.Millisecond, "/healthz", 503, "[-]loop failed: no iteration for 2.001s; want at most 2s\nfailed\n"},
			{true, time.Second, "/healthz?verbose", 200, "[+]loop ok: last iteration 1s ago\nok\n"},
		}
		for i, s := range steps {
			if s.beat {
				beat.Beat()
			}
			time.Sleep(s.after)
			if code, body := request(mux, "GET", s.path); code != s.code || body != s.want {
				t.Errorf("step %d: GET %s = %d %q; want %d %q", i, s.path, code, body, s.code, s.want)
			}
		}
	})
}

func TestReadyz(t *testing.T) {
	check := func(name string, v Result, detail string) Check {
		return Check{Name: name, Run: func() (Result, string) { return v, detail }}
	}
	observation := check("observation", Pass, "")
	pods := check("pods", Warn, "no pod is eligible for eviction")
	runtime := check("runtime", Fail, "connection refused")
	tests := []struct {
		checks []Check
		path   string
		code   int
		want   string
	}{
		{nil, "/readyz", 200, "ok\n"},
		{[]Check{observation, pods}, "/readyz", 200, "ok\n"},
		{[]Check{observation, pods}, "/readyz?verbose", 200, "[+]observation ok\n[!]pods warning: no pod is eligible for eviction\nok\n"},
		{[]Check{observation, runtime, pods}, "/readyz", 503, "[+]observation ok\n[-]runtime failed: connection refused\n[!]pods warning: no pod is eligible for eviction\nfailed\n"},
		{[]Check{runtime}, "/readyz?verbose=1", 503, "[-]runtime failed: connection refused\nfailed\n"},
	}
	for _, tt := range tests {
		mux := Mux(http.NotFoundHandler(), &Heartbeat{}, time.Second, tt.checks...)
		if code, body := request(mux, "GET", tt.path); code != tt.code || body != tt.want {
			t.Errorf("GET %s of %d checks = %d %q; want %d %q", tt.path, len(tt.checks), code, body, tt.code, tt.want)
		}
	}
}

func TestMux(t *testing.T) {
	mux := Mux(newMetrics().Handler(discard), &Heartbeat{}, time.Second)
	for _, tt := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/metrics", 200}, {"HEAD", "/metrics", 200}, {"POST", "/metrics", 405}, {"POST", "/readyz", 405},
		{"GET", "/", 404}, {"GET", "/debug/pprof/", 404}, {"GET", "/metrics/../etc", 307},
	} {
		if code, _ := request(mux, tt.method, tt.path); code != tt.code {
			t.Errorf("%s %s = %d; want %d", tt.method, tt.path, code, tt.code)
		}
	}
}

func options(handler http.Handler, configFile string) Options {
	return Options{Handler: handler, ConfigFile: configFile, PrepareThread: func() error { return nil }, Log: discard}
}

// start serves until the test ends and returns the address.
func start(t *testing.T, handler http.Handler, configFile string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, options(handler, configFile))
	return l.Addr().String()
}

func TestServe(t *testing.T) {
	address := start(t, Mux(newMetrics().Handler(discard), &Heartbeat{}, time.Second), "")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || !bytes.Contains(body, []byte("evictd_build_info")) {
		t.Errorf("scrape over TCP = %d bytes, %v; want the metrics", len(body), err)
	}
}

func TestServeEndsWhileAHandlerHangs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, l, options(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(entered)
			<-release
		}), ""))
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-entered
	began := time.Now()
	cancel()
	if err := <-done; err != nil || time.Since(began) > stopTimeout+2*time.Second {
		t.Errorf("Serve() while a handler hangs = %v after %v; want nil within %v", err, time.Since(began), stopTimeout)
	}
}

func TestServeTLSAndUsers(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir)
	config := filepath.Join(dir, "web.yml")
	hash, err := bcrypt.GenerateFromPassword([]byte("test"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	err = os.WriteFile(config, fmt.Appendf(nil, `tls_server_config:
  cert_file: cert.pem
  key_file: key.pem
basic_auth_users:
  prometheus: %s
`, hash), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckWebConfig(config); err != nil {
		t.Fatalf("CheckWebConfig() = %v; want nil", err)
	}
	address := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") }), config)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, tt := range []struct {
		password string
		code     int
	}{{"test", 200}, {"guess", 401}} {
		r, err := http.NewRequest("GET", "https://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("prometheus", tt.password)
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != tt.code || response.ProtoMajor != 1 {
			t.Errorf("GET with password %q = %d by %s; want %d by HTTP/1.1", tt.password, response.StatusCode, response.Proto, tt.code)
		}
	}
	response, err := client.Get("http://" + address + "/")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("GET without TLS = %d; want %d", response.StatusCode, http.StatusBadRequest)
	}
}

// certificate writes a self-signed certificate and its key into dir.
func certificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInvalidWebConfig(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yml")
	broken := filepath.Join(t.TempDir(), "web.yml")
	if err := os.WriteFile(broken, []byte("tls_server_config:\n  cert: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, want string }{{missing, "no such file"}, {broken, "web.yml"}} {
		if err := CheckWebConfig(tt.path); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("CheckWebConfig(%s) = %v; want %q", tt.path, err, tt.want)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := Serve(t.Context(), l, options(http.NotFoundHandler(), tt.path)); err == nil {
			t.Errorf("Serve(%s) = nil; want an error", tt.path)
		}
		if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
			t.Errorf("after Serve(%s) the address accepts connections; want the listener closed", tt.path)
		}
	}
	if err := CheckWebConfig(""); err != nil {
		t.Errorf("CheckWebConfig(none) = %v; want nil", err)
	}
}
