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

// recordDir holds one file per node on this machine. It is a place of root's alone, and empty after a boot,
// as processes, mounts and cgroups are. Who starts a node holds a lock on it.
const recordDir = "/run/evictd-test"

// lockMachine waits for its turn to have a node: two would press on the same memory, and each spoil what the
// other measures. The lock ends with Close or with this process.
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

// machineLock is the lock on recordDir. The zero value is none.
type machineLock struct{ dir *os.File }

// tryLockMachine returns EWOULDBLOCK if another has the lock.
func tryLockMachine() (*machineLock, error) {
	for {
		if err := os.Mkdir(recordDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make record directory: %w", err)
		}
		dir, err := os.Open(recordDir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a node that ended has just removed it
		}
		if err != nil {
			return nil, fmt.Errorf("open record directory: %w", err)
		}
		if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = dir.Close()
			return nil, fmt.Errorf("lock record directory: %w", err)
		}
		// What is locked may by now have been removed, and another stand in its place.
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

// Close gives the lock back, and removes the directory if no node needs it. It is idempotent.
func (l *machineLock) Close() error {
	if l == nil || l.dir == nil {
		return nil
	}
	_ = unix.Rmdir(recordDir)
	err := l.dir.Close()
	l.dir = nil
	return err
}

// A record is what a sweep needs to know of a node. It is written before the node touches anything, and its
// file is locked for as long as the process lives that started the node.
type record struct {
	ID  string `json:"id"`
	Dir string `json:"dir"`
	// Driver makes the pods' cgroups; none is Cgroupfs.
	Driver Driver `json:"driver,omitempty"`
	// What was not there before, and is removed if it is empty in the end.
	Made []string `json:"made"`
	// MadeHosts says that the machine has no /etc/hosts but ours.
	MadeHosts bool `json:"madeHosts"`

	file *os.File // nil when read back
}

var recordID = regexp.MustCompile(`^[0-9a-f]{8}$`)

// cgroup is the node's private root.
func (r record) cgroup() string { return "/evictd-test-" + r.ID }

// slice is the unit that is the private root of what systemd makes for the node.
func (r record) slice() string { return sliceName("evictd-test-"+r.ID) + sliceSuffix }

// podRoot is the cgroup below which the pods are: the private root, or the private slice.
func (r record) podRoot() string {
	if r.Driver == Systemd {
		return "/" + r.slice()
	}
	return r.cgroup()
}

// roots are the cgroups that are the node's with all that is in them.
func (r record) roots() []string {
	return slices.Compact([]string{r.cgroup(), r.podRoot()})
}

func (r record) path() string { return filepath.Join(recordDir, r.ID) }

// aside is a directory of the node's that is not in Dir, which a test removes with all that is in it.
func (r record) aside() string { return r.path() + ".aside" }

// slashName is what it may hold: see makeSlash.
const slashName = "slash"

// newRecord gives the record an id, writes it and locks it. The caller has the machine's lock.
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
	// The file gets its name when it is complete and locked: nobody takes it for a dead node's.
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

// forget removes the record.
func (r record) forget() error {
	if err := os.Remove(r.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget node: %w", err)
	}
	if r.file != nil {
		_ = r.file.Close()
	}
	return nil
}

// records reads back the records of all nodes on this machine.
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
			continue // not complete yet, or a directory aside
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

// parseRecord is strict: what the record names will be removed by root.
func parseRecord(b []byte) (record, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, err
	}
	if !recordID.MatchString(r.ID) {
		return record{}, fmt.Errorf("%q is no node's id", r.ID)
	}
	switch r.Driver {
	case "", Cgroupfs, Systemd:
	default:
		return record{}, fmt.Errorf("%q is no cgroup driver", string(r.Driver))
	}
	for _, path := range append([]string{r.Dir}, r.Made...) {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
			return record{}, fmt.Errorf("%q is no directory of a node", path)
		}
	}
	return r, nil
}

// abandoned says whether the process that started the node is gone.
func (r record) abandoned() bool {
	f, err := os.Open(r.path())
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}
