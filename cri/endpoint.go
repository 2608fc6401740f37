package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// maxSocketPath is the longest path that fits sockaddr_un.sun_path with its NUL
// (unix(7)).
const maxSocketPath = 107

// DefaultEndpoints returns where containerd, CRI-O and cri-dockerd listen unless
// they are told otherwise, in the order in which [Detect] tries them.
func DefaultEndpoints() []string {
	return []string{
		"unix:///run/containerd/containerd.sock",
		"unix:///run/crio/crio.sock",
		"unix:///var/run/cri-dockerd.sock",
	}
}

// Detect returns the first default endpoint whose socket exists; whether anybody
// listens there is not tried. Without one the error is ErrUnreachable and names
// every path that was looked at, with the reason.
func Detect() (string, error) { return detect(DefaultEndpoints()) }

func detect(endpoints []string) (string, error) {
	tried := make([]string, 0, len(endpoints))
	for _, endpoint := range endpoints {
		socket, err := SocketPath(endpoint)
		if err != nil {
			return "", err
		}
		info, err := os.Stat(socket)
		switch {
		case err == nil && info.Mode().Type() == fs.ModeSocket:
			return endpoint, nil
		case err == nil:
			err = errors.New("not a socket")
		default:
			var pe *fs.PathError
			if errors.As(err, &pe) {
				err = pe.Err
			}
		}
		tried = append(tried, socket+": "+err.Error())
	}
	return "", fmt.Errorf("detect container runtime: %w (%s)", ErrUnreachable, strings.Join(tried, "; "))
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
