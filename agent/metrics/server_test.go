package metrics

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// While another process has the port, a server warns. It serves when the port is free.
func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	s, err := NewServer(t.Context(), address)
	if err != nil {
		t.Fatalf("NewServer() with the port taken = %v; want nil", err)
	}
	s.retry = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, options(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "in") }), ""))
	}()
	waitFor(t, "a warning names the port", func() bool { return strings.Contains(s.Warning(), "address already in use") })

	taken.Close()
	waitFor(t, "metrics are served", func() bool {
		response, err := http.Get("http://" + address)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
	if why := s.Warning(); why != "" {
		t.Errorf("Warning() while metrics are served = %q; want none", why)
	}
	cancel()
	<-done
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

func TestNewServer(t *testing.T) {
	for _, tt := range []struct {
		address string
		ok      bool
	}{
		{"127.0.0.1:9908", true}, {":9908", true}, {"[::1]:0", true}, {"node.example:9908", true},
		{"127.0.0.1", false}, {"127.0.0.1:99999", false}, {"::1:9908", false}, {":no-such-service", false},
	} {
		if s, err := NewServer(t.Context(), tt.address); (err == nil) != tt.ok || (s != nil) != tt.ok {
			t.Errorf("NewServer(%q) = %v, %v; want ok %t", tt.address, s, err, tt.ok)
		}
	}
}
