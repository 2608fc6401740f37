package cri

import (
	"fmt"
	"path"
	"strings"
)

// maxSocketPath is the longest path that fits sockaddr_un.sun_path with its NUL
// (unix(7)).
const maxSocketPath = 107

// DefaultEndpoints returns where containerd, CRI-O and cri-dockerd listen by
// default, the most usual first.
func DefaultEndpoints() []string {
	return []string{
		"unix:///run/containerd/containerd.sock",
		"unix:///run/crio/crio.sock",
		"unix:///var/run/cri-dockerd.sock",
	}
}

// SocketPath returns the path of the unix socket that endpoint names. It takes
// unix:///absolute/path and /absolute/path, nothing else.
func SocketPath(endpoint string) (string, error) {
	socket, scheme := strings.CutPrefix(endpoint, "unix://")
	switch {
	case socket == "":
		return "", fmt.Errorf("runtime endpoint %q: no socket named; want unix:///path/to/socket", endpoint)
	case !scheme && strings.Contains(endpoint, "://"):
		return "", fmt.Errorf("runtime endpoint %q: only unix sockets are dialled; want unix:///path/to/socket", endpoint)
	case socket[0] != '/':
		return "", fmt.Errorf("runtime endpoint %q: not an absolute path; want unix:///path/to/socket", endpoint)
	case strings.ContainsRune(socket, 0):
		return "", fmt.Errorf("runtime endpoint %q: holds a NUL byte", endpoint)
	case path.Clean(socket) == "/":
		return "", fmt.Errorf("runtime endpoint %q: names a directory", endpoint)
	case len(socket) > maxSocketPath:
		return "", fmt.Errorf("runtime endpoint %q: %d bytes; the kernel takes socket paths of at most %d", endpoint, len(socket), maxSocketPath)
	}
	return socket, nil
}
