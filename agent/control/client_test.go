package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listenAndServe listens on a socket and calls serve for each connection.
func listenAndServe(t testing.TB, serve func(net.Conn)) string {
	t.Helper()
	path := filepath.Join(socketDir(t), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return path
}

// respondWith reads a request and writes a fixed response.
func respondWith(response string) func(net.Conn) {
	return func(c net.Conn) {
		for r := bufio.NewReader(c); ; {
			line, err := r.ReadString('\n')
			if err != nil || line == "\r\n" {
				break
			}
		}
		fmt.Fprint(c, response)
	}
}

func httpResponse(code, kind, body string) string {
	return fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", code, kind, len(body), body)
}

func TestClientWithOtherServers(t *testing.T) {
	const asJSON = "application/json"
	tests := []struct {
		name     string
		response string
		is       error
		want     string
	}{
		{"not HTTP", "SSH-2.0-OpenSSH_9.2\r\n", ErrNotEvictd, "malformed HTTP response"},
		{"binary", "\x00\x01\x02\xff\xfe\r\n\r\n", ErrNotEvictd, "malformed HTTP"},
		{"nothing", "", ErrNoResponse, "closed the connection"},
		{"HTML", httpResponse("200 OK", "text/html", "<html>"), ErrNotEvictd, `"text/html"`},
		{"another HTTP server", httpResponse("404 Not Found", "text/plain", "404 page not found"), ErrNotEvictd, "404 Not Found"},
		{"not JSON", httpResponse("200 OK", asJSON, "{"), ErrNotEvictd, "unexpected end of JSON input"},
		{"more than JSON", httpResponse("200 OK", asJSON, "{} {}"), ErrNotEvictd, "after top-level value"},
		{"a list", httpResponse("200 OK", asJSON, "[]"), ErrNotEvictd, "cannot unmarshal array"},
		{"an unknown signal", httpResponse("200 OK", asJSON, `{"signals":[{"signal":"cpu.available"}]}`), ErrNotEvictd, "unsupported eviction signal"},
		{"a string for a number", httpResponse("200 OK", asJSON, `{"pid":"x"}`), ErrNotEvictd, "cannot unmarshal string"},
		{"deep", httpResponse("200 OK", asJSON, strings.Repeat("[", 1<<20)), ErrNotEvictd, "exceeded max depth"},
		{"short", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", ErrNoResponse, "closed the connection"},
		{"huge", httpResponse("200 OK", asJSON, strings.Repeat(" ", maxResponse+1)), ErrNotEvictd, "longer than 16Mi"},
		{"huge header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", ErrNotEvictd, "header"},
		{"a redirect", "HTTP/1.1 302 Found\r\nLocation: http://localhost:1/\r\nContent-Length: 0\r\n\r\n", ErrNotEvictd, "302 Found"},
		{"an error without a message", httpResponse("500 Internal Server Error", asJSON, "{}"), ErrNotEvictd, "500 Internal"},
	}
	for _, tt := range tests {
		_, err := NewClient(listenAndServe(t, respondWith(tt.response))).Status(t.Context())
		if !errors.Is(err, tt.is) || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("Status() of %s = %v; want %v with %q", tt.name, err, tt.is, tt.want)
		}
	}
}

func TestClientReadsLargeResponse(t *testing.T) {
	body := `{"version":"` + strings.Repeat("x", 8<<20) + `"}`
	s, err := NewClient(listenAndServe(t, respondWith(httpResponse("200 OK", "application/json", body)))).Status(t.Context())
	if err != nil || len(s.Version) != 8<<20 {
		t.Errorf("Status() of 8 MiB = %d bytes, %v; want all of them", len(s.Version), err)
	}
}

// TestClientSkipsUnknownFields reads the response of a newer version, which may
// have more fields.
func TestClientSkipsUnknownFields(t *testing.T) {
	socket := listenAndServe(t, respondWith(httpResponse("200 OK", "application/json; charset=utf-8", `{"pid":3,"moon":"full"}`)))
	if s, err := NewClient(socket).Status(t.Context()); err != nil || s.PID != 3 {
		t.Errorf("Status() = %+v, %v; want pid 3", s, err)
	}
}

func TestClientTimesOut(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	tests := []struct{ name, first string }{
		{"before its response", ""},
		{"in its header", "HTTP/1.1 200 OK\r\n"},
		{"in its body", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			client := NewClient(listenAndServe(t, func(c net.Conn) {
				respondWith(tt.first)(c)
				<-hang
			}))
			client.http.Timeout = 200 * time.Millisecond
			if _, err := client.Status(context.Background()); !errors.Is(err, ErrNoResponse) {
				t.Errorf("Status() = %v; want %v", err, ErrNoResponse)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := client.Status(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Status() of a cancelled context = %v; want %v", err, context.Canceled)
			}
		})
	}
}

func TestClientWithoutServer(t *testing.T) {
	dir := socketDir(t)
	leftover := filepath.Join(dir, "leftover")
	makeStaleSocket(t, leftover)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		is         error
		want       string
	}{
		{"no socket", filepath.Join(dir, "none"), ErrNotRunning, "control socket " + dir},
		{"no directory", filepath.Join(dir, "no", "none"), ErrNotRunning, "does not exist"},
		{"a left-over socket", leftover, ErrNotRunning, "no process listens"},
		{"a file", file, ErrNotEvictd, "it is not a socket"},
		{"a directory", dir, ErrNotEvictd, "it is not a socket"},
		{"a symlink to itself", loop, ErrNotEvictd, "too many levels"},
		{"an abstract name", "@evictd", ErrNotRunning, "control socket @evictd does not exist"},
		{"too long", filepath.Join(dir, strings.Repeat("x", 200)), ErrNotEvictd, "invalid argument"},
	}
	for _, tt := range tests {
		_, err := NewClient(tt.path).Status(t.Context())
		if !errors.Is(err, tt.is) || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("Status() of %s = %v; want %v with %q", tt.name, err, tt.is, tt.want)
		}
	}
}

func TestClientExplainsPermission(t *testing.T) {
	err := NewClient("/x.sock").explain(t.Context(), &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", fs.ErrPermission)})
	if want := "open control socket /x.sock: permission denied"; !errors.Is(err, fs.ErrPermission) || err.Error() != want {
		t.Errorf("explain(EACCES) = %v; want %s", err, want)
	}
}

// TestOtherVersion checks that a client learns that its evictd has no such request.
func TestOtherVersion(t *testing.T) {
	client := NewClient(serve(t, &daemon{}))
	for _, tt := range []struct{ method, path string }{{"POST", "/v1/status"}, {"GET", "/v1/of-a-later-version"}} {
		_, err := request[Status](t.Context(), client, tt.method, tt.path)
		if want := "evictd refused the request: this evictd has no " + tt.method + " " + tt.path; err == nil || err.Error() != want {
			t.Errorf("%s %s = %v; want %q", tt.method, tt.path, err, want)
		}
	}
}
