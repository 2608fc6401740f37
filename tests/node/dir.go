package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// prepareDir writes the record of a node in dir, and creates dir if it does not exist. It fails if dir is not empty
// or if its path is too long for a unix socket.
func prepareDir(dir string, driver Driver, t tree) (record, error) {
	if dir == "" {
		return record{}, errors.New("no directory given")
	}
	dir, err := realDir(dir)
	if err != nil {
		return record{}, err
	}
	if n := len(filepath.Join(dir, socketName)); n > socketMax {
		return record{}, fmt.Errorf("%s is too long: the path of its socket would have %d bytes; the maximum is %d", dir, n, socketMax)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return record{}, err
	}
	for _, e := range entries {
		if e.Name() != lostAndFound {
			return record{}, fmt.Errorf("%s is not empty: it has %s", dir, e.Name())
		}
	}
	// The shims' sockets are always in /run/containerd, and containers without a cgroup parent are in a cgroup named
	// after containerd's namespace.
	outside := []string{dir, "/run/containerd", "/run/containerd/s"}
	for _, h := range t {
		outside = append(outside, h.path(namespace))
	}
	made := slices.DeleteFunc(outside, func(dir string) bool {
		_, err := os.Lstat(dir)
		return err == nil
	})
	_, noHosts := os.Lstat(hostsFile)
	r, err := newRecord(record{Dir: dir, Driver: driver, Made: made, MadeHosts: errors.Is(noHosts, fs.ErrNotExist)})
	if err != nil {
		return record{}, err
	}
	err = os.MkdirAll(dir, 0o755)
	if err == nil && r.MadeHosts {
		err = os.WriteFile(hostsFile, []byte(hostsText), 0o644)
	}
	if err != nil {
		return record{}, errors.Join(err, r.sweep())
	}
	return r, nil
}

// containerd copies /etc/hosts into every sandbox and fails without it. A minimal Debian has none; the node then
// writes this one and removes it in Close.
const (
	hostsFile = "/etc/hosts"
	hostsText = "127.0.0.1 localhost # evictd-test\n"
)

// removeHosts removes /etc/hosts if its content is what a node wrote.
func removeHosts() error {
	b, err := os.ReadFile(hostsFile)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(b) != hostsText {
		return nil
	}
	if err == nil {
		err = os.Remove(hostsFile)
	}
	if err != nil {
		return fmt.Errorf("remove the node's %s: %w", hostsFile, err)
	}
	return nil
}
