package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// recordDir has one file per node of this machine. Only root can write to it, and it is empty after a boot, when no
// process, mount or cgroup of a node exists. A process that has a node locks the directory.
const recordDir = "/run/evictd-test"

// lockMachine waits until no other process has a node on this machine: two nodes would use the same memory and
// disturb each other's measurements. The lock ends with Close or with this process. It calls waiting once if it has
// to wait.
func lockMachine(ctx context.Context, waiting func()) (*machineLock, error) {
	for first := true; ; first = false {
		lock, err := tryLockMachine()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return lock, err
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another node on this machine to end: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// machineLock is the lock on recordDir. The zero value is not locked.
type machineLock struct{ dir *os.File }

// tryLockMachine returns EWOULDBLOCK if another process has the lock.
func tryLockMachine() (*machineLock, error) {
	for {
		if err := os.Mkdir(recordDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make record directory: %w", err)
		}
		dir, err := os.Open(recordDir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process has just removed it in Close
		}
		if err != nil {
			return nil, fmt.Errorf("open record directory: %w", err)
		}
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = dir.Close()
			return nil, fmt.Errorf("lock record directory: %w", err)
		}
		// Another process may have removed and recreated the directory between open and flock.
		locked, err := dir.Stat()
		if err != nil {
			_ = dir.Close()
			return nil, fmt.Errorf("stat record directory: %w", err)
		}
		if named, err := os.Lstat(recordDir); err == nil && os.SameFile(locked, named) {
			return &machineLock{dir}, nil
		}
		_ = dir.Close()
	}
}

// Close releases the lock, and removes the directory if it has no records. It is idempotent.
func (l *machineLock) Close() error {
	if l == nil || l.dir == nil {
		return nil
	}
	_ = unix.Rmdir(recordDir)
	err := l.dir.Close()
	l.dir = nil
	return err
}

// A record has what is needed to remove a node. It is written before the node creates anything, and its file is
// locked as long as the process lives that started the node.
type record struct {
	ID  string `json:"id"`
	Dir string `json:"dir"`
	// Driver creates the pods' cgroups; "" is Cgroupfs.
	Driver Driver `json:"driver,omitempty"`
	// Made lists directories that did not exist before the node. The sweep removes those that are empty.
	Made []string `json:"made"`
	// MadeHosts is true if the node wrote /etc/hosts, because the machine had none.
	MadeHosts bool `json:"madeHosts"`

	file *os.File // nil in a record that was read from recordDir
}

var recordID = regexp.MustCompile(`^[0-9a-f]{8}$`)

// cgroup returns the node's private root.
func (r record) cgroup() string { return "/evictd-test-" + r.ID }

// slice returns the name of the node's private slice, below which systemd creates the pods.
func (r record) slice() string { return sliceName("evictd-test-"+r.ID) + sliceSuffix }

// podRoot returns the cgroup below which the pods are: the private root, or the private slice.
func (r record) podRoot() string {
	if r.Driver == Systemd {
		return "/" + r.slice()
	}
	return r.cgroup()
}

// roots returns the cgroups that belong to the node with all of their descendants.
func (r record) roots() []string {
	return slices.Compact([]string{r.cgroup(), r.podRoot()})
}

func (r record) path() string { return filepath.Join(recordDir, r.ID) }

// sideDir returns a directory of the node outside of Dir. Tests remove Dir recursively, which must not follow a bind
// mount of the root directory.
func (r record) sideDir() string { return r.path() + ".aside" }

// rootDirName is the mount point of bindRoot in sideDir.
const rootDirName = "slash"

// newRecord sets the record's id, writes it and locks its file. The caller has the machine's lock.
func newRecord(r record) (record, error) {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	r.ID = hex.EncodeToString(b[:])
	text, err := json.Marshal(r)
	if err != nil {
		return record{}, fmt.Errorf("record node: %w", err)
	}
	if r.file, err = os.CreateTemp(recordDir, ".new-*"); err != nil {
		return record{}, fmt.Errorf("record node: %w", err)
	}
	// The file is renamed to its final name once it is complete and locked, so that it never looks abandoned.
	err = unix.Flock(int(r.file.Fd()), unix.LOCK_EX)
	if err == nil {
		_, err = r.file.Write(text)
	}
	if err == nil {
		err = os.Rename(r.file.Name(), r.path())
	}
	if err != nil {
		_ = os.Remove(r.file.Name())
		_ = r.file.Close()
		return record{}, fmt.Errorf("record node: %w", err)
	}
	return r, nil
}

// removeFile removes the record's file and its lock.
func (r record) removeFile() error {
	if err := os.Remove(r.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove node record: %w", err)
	}
	if r.file != nil {
		_ = r.file.Close()
	}
	return nil
}

// records reads the records of all nodes of this machine.
func records() ([]record, error) {
	entries, err := os.ReadDir(recordDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read node records: %w", err)
	}
	var all []record
	for _, e := range entries {
		if !recordID.MatchString(e.Name()) {
			continue // an incomplete record, or a sideDir
		}
		b, err := os.ReadFile(filepath.Join(recordDir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read node record: %w", err)
		}
		r, err := parseRecord(b)
		if err != nil {
			return nil, fmt.Errorf("read node record %s: %w", e.Name(), err)
		}
		all = append(all, r)
	}
	return all, nil
}

// parseRecord is strict, because the sweep removes as root what the record names.
func parseRecord(b []byte) (record, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, err
	}
	if !recordID.MatchString(r.ID) {
		return record{}, fmt.Errorf("%q is not a node's id", r.ID)
	}
	switch r.Driver {
	case "", Cgroupfs, Systemd:
	default:
		return record{}, fmt.Errorf("%q is not a cgroup driver", string(r.Driver))
	}
	for _, path := range append([]string{r.Dir}, r.Made...) {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			return record{}, fmt.Errorf("%q is not a directory of a node", path)
		}
	}
	return r, nil
}

// abandoned reports whether the process that started the node has exited.
func (r record) abandoned() bool {
	f, err := os.Open(r.path())
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
