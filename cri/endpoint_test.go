package cri

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketPath(t *testing.T) {
	for _, tt := range []struct{ in, want, err string }{
		{in: "unix:///run/containerd/containerd.sock", want: "/run/containerd/containerd.sock"},
		{in: "/run/containerd/containerd.sock", want: "/run/containerd/containerd.sock"},
		{in: "/run/with%20percent?and#hash", want: "/run/with%20percent?and#hash"},
		{in: "", err: "no socket path"},
		{in: "unix://", err: "no socket path"},
		{in: "unix:///", err: "directory"},
		{in: "unix://run/containerd.sock", err: "not an absolute path"},
		{in: "run/containerd.sock", err: "not an absolute path"},
		{in: "unix:/run/containerd.sock", err: "not an absolute path"},
		{in: "tcp://127.0.0.1:2375", err: "only unix sockets"},
		{in: "http://localhost", err: "only unix sockets"},
		{in: "127.0.0.1:2375", err: "not an absolute path"},
		{in: "npipe:////./pipe/containerd", err: "only unix sockets"},
		{in: "@abstract", err: "not an absolute path"},
		{in: "unix:///run/x\x00y", err: "NUL"},
		{in: "/" + strings.Repeat("x", 107), err: "at most 107"},
		{in: "/" + strings.Repeat("x", 106), want: "/" + strings.Repeat("x", 106)},
	} {
		got, err := SocketPath(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("SocketPath(%q) = %q, %v; want an error with %q", tt.in, got, err, tt.err)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("SocketPath(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
}

func TestDefaultEndpointsAreValid(t *testing.T) {
	for _, endpoint := range DefaultEndpoints() {
		if _, err := SocketPath(endpoint); err != nil {
			t.Errorf("SocketPath(%q) = %v; want no error", endpoint, err)
		}
	}
}

// The first socket that exists is used, the first of all before there is one.
func TestFindEndpoint(t *testing.T) {
	root := t.TempDir()
	if got, want := FindEndpoint(root), "unix://"+root+"/run/containerd/containerd.sock"; got != want {
		t.Errorf("FindEndpoint() without a socket = %s; want %s", got, want)
	}
	if err := os.MkdirAll(filepath.Join(root, "run/crio/crio.sock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got, want := FindEndpoint(root), "unix://"+root+"/run/crio/crio.sock"; got != want {
		t.Errorf("FindEndpoint() = %s; want %s", got, want)
	}
}

func TestPeerPID(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if pid, err := PeerPID("unix://" + socket); !errors.Is(err, ErrUnreachable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("PeerPID of a missing socket = %d, %v; want ErrUnreachable and fs.ErrNotExist", pid, err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if pid, err := PeerPID(socket); err != nil || pid != os.Getpid() {
		t.Errorf("PeerPID = %d, %v; want %d", pid, err, os.Getpid())
	}
	if pid, err := PeerPID("tcp://127.0.0.1:1"); err == nil {
		t.Errorf("PeerPID(tcp) = %d; want an error", pid)
	}
}
