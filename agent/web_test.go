package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// While another process has the port, evictd runs without metrics and warns. It serves them
// when the port is free.
func TestMetricsPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	d := &daemon{
		options: Options{ControlSocket: filepath.Join(t.TempDir(), "s"), WebAddress: address},
		log:     &asyncLog{Logger: slog.New(slog.DiscardHandler)},
	}
	defer d.close()
	if err := d.listen(); err != nil {
		t.Fatalf("listen() with the metrics port taken = %v; want nil", err)
	}
	w := &webServer{
		address: address, retry: 10 * time.Millisecond, log: slog.New(slog.DiscardHandler),
		serve: func(ctx context.Context, l net.Listener) error {
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") })}
			context.AfterFunc(ctx, func() { server.Close() })
			return server.Serve(l)
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.run(ctx) }()
	waitFor(t, "a warning names the port", func() bool { return strings.Contains(w.warning(), "address already in use") })

	taken.Close()
	waitFor(t, "metrics are served", func() bool {
		response, err := http.Get("http://" + address)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
	if why := w.warning(); why != "" {
		t.Errorf("warning() while metrics are served = %q; want none", why)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run() = %v; want nil", err)
	}
}

// waitFor waits until ok returns true.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 20 s, not yet: %s", what)
		}
	}
}

func TestCheckWebAddress(t *testing.T) {
	for _, tt := range []struct {
		address string
		ok      bool
	}{
		{"127.0.0.1:9908", true}, {":9908", true}, {"[::1]:0", true}, {"node.example:9908", true},
		{"127.0.0.1", false}, {"127.0.0.1:99999", false}, {"::1:9908", false}, {":no-such-service", false},
	} {
		if err := checkWebAddress(t.Context(), tt.address); (err == nil) != tt.ok {
			t.Errorf("checkWebAddress(%q) = %v; want ok %t", tt.address, err, tt.ok)
		}
	}
}
