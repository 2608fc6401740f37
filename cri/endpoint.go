package cri

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxSocketPath is the size of sockaddr_un.sun_path without its NUL (unix(7)).
const maxSocketPath = 107

// DefaultEndpoints returns the default endpoints of containerd, CRI-O and
// cri-dockerd, the most common first.
func DefaultEndpoints() []string {
	return []string{
		"unix:///run/containerd/containerd.sock",
		"unix:///run/crio/crio.sock",
		"unix:///var/run/cri-dockerd.sock",
	}
}

// FindEndpoint returns the first default endpoint whose socket exists below rootfs, where the
// host's root is mounted. If none does, it returns the first one, which may appear later.
func FindEndpoint(rootfs string) string {
	var sockets []string
	for _, endpoint := range DefaultEndpoints() {
		socket := filepath.Join(rootfs, strings.TrimPrefix(endpoint, "unix://"))
		if _, err := os.Stat(socket); err == nil {
			return "unix://" + socket
		}
		sockets = append(sockets, socket)
	}
	return "unix://" + sockets[0]
}

// SocketPath returns the path of the unix socket of an endpoint, which is either
// unix:///absolute/path or /absolute/path.
func SocketPath(endpoint string) (string, error) {
	socket, scheme := strings.CutPrefix(endpoint, "unix://")
	switch {
	case socket == "":
		return "", fmt.Errorf("runtime endpoint %q: no socket path; want unix:///path/to/socket", endpoint)
	case !scheme && strings.Contains(endpoint, "://"):
		return "", fmt.Errorf("runtime endpoint %q: only unix sockets are supported; want unix:///path/to/socket", endpoint)
	case socket[0] != '/':
		return "", fmt.Errorf("runtime endpoint %q: not an absolute path; want unix:///path/to/socket", endpoint)
	case strings.ContainsRune(socket, 0):
		return "", fmt.Errorf("runtime endpoint %q: contains a NUL byte", endpoint)
	case path.Clean(socket) == "/":
		return "", fmt.Errorf("runtime endpoint %q: is a directory", endpoint)
	case len(socket) > maxSocketPath:
		return "", fmt.Errorf("runtime endpoint %q: %d bytes; a socket path has at most %d", endpoint, len(socket), maxSocketPath)
	}
	return socket, nil
}
