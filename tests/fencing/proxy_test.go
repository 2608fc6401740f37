package fencing

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/fence"
)

// slowProxy is a reverse proxy of the API server. It passes each request on at once, and each answer and each event of a
// watch late.
type slowProxy struct {
	address string
	server  http.RoundTripper
	delay   atomic.Int64 // a time.Duration
	// proven is set when the machine is proven off, read when its device is read after that.
	proven, read atomic.Bool
	// hung is locked while nothing is passed on.
	hung sync.RWMutex
}

// startProxy starts a slowProxy with the certificate of the API server.
func startProxy(t *testing.T, c *Cluster) *slowProxy {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(c.CA(), strings.TrimSuffix(c.CA(), ".crt")+".key")
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &slowProxy{address: listener.Addr().String(), server: c.Admin.HTTP.Transport}
	p.setDelay(usualDelay)
	quiet := log.New(io.Discard, "", 0) // a client that gives up is no error of the test
	server := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		Handler: &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "https", Host: c.Address}) },
			Transport:     p,
			FlushInterval: -1, // each event of a watch
			ErrorLog:      quiet,
		},
		ErrorLog: quiet,
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.ServeTLS(listener, "", "") // it ends with server.Close
	}()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	return p
}

// kubeconfig returns the path of a kubeconfig of evictd-controller with the address of the proxy.
func (p *slowProxy) kubeconfig(t *testing.T, c *Cluster) string {
	t.Helper()
	path, err := c.Kubeconfig("slow", controllerToken)
	must(t, err)
	content, err := os.ReadFile(path)
	must(t, err)
	_, err = c.Write("slow.kubeconfig", strings.Replace(string(content), c.Address, p.address, 1))
	must(t, err)
	return path
}

// setDelay sets how late the answers of the requests are that come from now on.
func (p *slowProxy) setDelay(d time.Duration) { p.delay.Store(int64(d)) }

// hang has the proxy pass nothing on, neither requests nor answers. It returns when the API server has answered all that it
// has got.
func (p *slowProxy) hang() { p.hung.Lock() }

// resume ends hang.
func (p *slowProxy) resume() { p.hung.Unlock() }

// RoundTrip implements http.RoundTripper.
func (p *slowProxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := p.notice(r); err != nil {
		return nil, err
	}
	delay := time.Duration(p.delay.Load())
	p.hung.RLock()
	resp, err := p.server.RoundTrip(r)
	p.hung.RUnlock()
	if err != nil {
		return nil, err
	}
	if err := p.wait(r.Context(), delay); err != nil {
		resp.Body.Close()
		return nil, err
	}
	if r.URL.Query().Has("watch") {
		resp.Body = lateEvents{resp.Body, p, r.Context()}
	}
	return resp, nil
}

// provenBody is in a NodeFence whose machine is proven off.
var provenBody = []byte(`"phase":"` + string(fence.OffProven) + `"`)

// notice makes the delay decisiveDelay from the first reading of the device after the proof on: that begins with the Secret
// of its method.
func (p *slowProxy) notice(r *http.Request) error {
	if p.proven.Load() {
		if strings.Contains(r.URL.Path, "/secrets/") && p.read.CompareAndSwap(false, true) {
			p.setDelay(decisiveDelay)
		}
		return nil
	}
	if r.Method != http.MethodPut {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if bytes.Contains(body, provenBody) {
		p.proven.Store(true)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err
}

// wait returns when an answer may be passed on, or the error of the client's context.
func (p *slowProxy) wait(ctx context.Context, delay time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
	}
	p.hung.RLock()
	defer p.hung.RUnlock()
	return ctx.Err()
}

// lateEvents is the answer of a watch. Events that come while another one is late are passed on together.
type lateEvents struct {
	io.ReadCloser
	proxy *slowProxy
	ctx   context.Context
}

// Read implements io.Reader.
func (l lateEvents) Read(b []byte) (int, error) {
	n, err := l.ReadCloser.Read(b)
	if late := l.proxy.wait(l.ctx, time.Duration(l.proxy.delay.Load())); late != nil {
		return 0, late
	}
	return n, err
}
