package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
	"github.com/evictd/evictd/kernel/internal/text"
)

// LimitFile is a file that bounds what can be created in a cgroup's subtree.
type LimitFile int

// The files, in the order in which they are written to stop a subtree from growing.
const (
	// PIDsMax bounds the tasks. A fork, or a clone into the cgroup, beyond it fails with
	// EAGAIN; a task that is moved into the cgroup is counted and not refused
	// (kernel/cgroup/pids.c). Writing it takes no lock.
	PIDsMax LimitFile = iota
	// MaxDescendants bounds the cgroups (v2 only). A mkdir beyond it fails with EAGAIN
	// (kernel/cgroup/cgroup.c: cgroup_check_hierarchy_limits). Writing it waits for
	// cgroup_mutex, which the kernel holds while it makes and removes cgroups and moves
	// processes (cgroup_max_descendants_write).
	MaxDescendants
	// LimitFiles is the number of files.
	LimitFiles
)

func (f LimitFile) String() string {
	switch f {
	case PIDsMax:
		return "pids.max"
	case MaxDescendants:
		return "cgroup.max.descendants"
	}
	return fmt.Sprintf("LimitFile(%d)", int(f))
}

// Limit is the value of a [LimitFile].
type Limit uint64

// Unlimited is the value "max".
const Unlimited Limit = math.MaxUint64

func (l Limit) String() string {
	var buf [20]byte
	return string(l.append(buf[:0]))
}

func (l Limit) append(b []byte) []byte {
	if l == Unlimited {
		return append(b, "max"...)
	}
	return strconv.AppendUint(b, uint64(l), 10)
}

// Limits are the open limit files of one cgroup. Like the methods of [Cgroup], Read and
// Write return [ErrGone] after the cgroup was removed, whatever has its path then. They
// may be called concurrently, Close included, and allocate only for an error.
type Limits struct {
	path  string
	id    uint64
	files [LimitFiles]*sys.FD // nil for a file that does not exist
}

// OpenLimits opens the limit files of the cgroup at a path below the root for reading and
// writing: on v1 pids.max in the hierarchy of the pids controller, on v2
// cgroup.max.descendants, and pids.max if the controller is enabled. It uses a descriptor
// for each. It fails with [ErrGone] if there is no such cgroup, and with
// [kernel.ErrUnavailable] on v1 without the pids controller.
func (h *Hierarchy) OpenLimits(name string) (*Limits, error) {
	name, err := clean(name)
	if err == nil && name == "/" {
		err = errRoot
	}
	if err != nil {
		return nil, fmt.Errorf("open limits of cgroup: %w", err)
	}
	l := &Limits{path: name}
	if err := l.open(h); err != nil {
		l.Close()
		return nil, fmt.Errorf("open limits of cgroup %s: %w", name, err)
	}
	return l, nil
}

func (l *Limits) open(h *Hierarchy) error {
	root := h.Memory
	if h.v1() {
		root = h.Pids
	}
	if root == "" {
		return fmt.Errorf("%w: the pids controller is not mounted", kernel.ErrUnavailable)
	}
	dir, err := sys.Open(root.Path(l.path), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrGone
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if _, l.id, err = identity(dir); err != nil {
		return err
	}
	files := []LimitFile{PIDsMax, MaxDescendants}
	if h.v1() {
		files = files[:1]
	}
	missing := 0
	for _, f := range files {
		l.files[f], err = absentIsNil(dir.OpenAt(f.String(), unix.O_RDWR))
		switch {
		case err != nil && removed(err):
			return ErrGone
		case err != nil:
			return err
		case l.files[f] == nil:
			missing++
		}
	}
	if missing == len(files) {
		// Every cgroup has one of the files, so this one was just removed.
		return ErrGone
	}
	return nil
}

// Path returns the path below the root.
func (l *Limits) Path() string { return l.path }

// ID returns the inode number of the cgroup's directory: on v1 in the hierarchy of the
// pids controller.
func (l *Limits) ID() uint64 { return l.id }

// Has reports whether the cgroup has a file.
func (l *Limits) Has(f LimitFile) bool { return l.files[f] != nil }

// Read returns the limit in a file that the cgroup has.
func (l *Limits) Read(f LimitFile) (Limit, error) {
	var buf [32]byte
	b, err := l.files[f].Read(buf[:])
	if err != nil {
		return 0, l.wrap("read", f, err)
	}
	b = bytes.TrimSuffix(b, []byte{'\n'})
	if string(b) == "max" {
		return Unlimited, nil
	}
	n, err := text.Uint(b)
	if err != nil {
		return 0, l.wrap("read", f, fmt.Errorf("%w: %q", err, bytes.Clone(b)))
	}
	return Limit(n), nil
}

// Write writes a limit to a file that the cgroup has.
func (l *Limits) Write(f LimitFile, limit Limit) error {
	var buf [20]byte
	if err := l.files[f].Write(limit.append(buf[:0])); err != nil {
		return l.wrap("write", f, err)
	}
	return nil
}

func (l *Limits) wrap(op string, f LimitFile, err error) error {
	if removed(err) {
		err = ErrGone
	}
	return fmt.Errorf("%s %s of cgroup %s: %w", op, f, l.path, err)
}

// Close closes the descriptors. Further calls do nothing.
func (l *Limits) Close() error {
	var err error
	for _, f := range l.files {
		err = errors.Join(err, f.Close())
	}
	return err
}
