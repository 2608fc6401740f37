package bpf

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// anchor is a reference to the struct cgroup of a directory. The kernel does not free
// the struct while the iterator's link is open.
type anchor struct {
	link   link.Link
	cgroup uint64
	id     uint64
}

// openAnchor finds the struct cgroup of a directory. It fails if the directory is not
// in the tree of the memory controller. The error wraps [ErrUnavailable] before
// Linux 6.1.
func openAnchor(dir int) (_ *anchor, err error) {
	var objects anchorObjects
	if _, err := anchorObject.load(func(spec *ebpf.CollectionSpec) error {
		return spec.LoadAndAssign(&objects, nil)
	}); err != nil {
		return nil, unavailable("load cgroup iterator", err)
	}
	defer objects.Close() // the link keeps its program
	fd, err := linkCgroupIter(objects.Anchor, dir)
	if errors.Is(err, unix.EINVAL) {
		// Before 6.1 the kernel has no iterator over cgroups.
		return nil, unavailable("find cgroup", err)
	}
	if err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	iterator, err := link.NewFromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	defer func() {
		if err != nil {
			_ = iterator.Close()
		}
	}()
	if err := iterate(iterator); err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	var found anchorAnchored
	if err := objects.Anchors.Lookup(uint32(0), &found); err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	if found.Cgroup == 0 {
		return nil, errors.New("find cgroup: the iterator visited none")
	}
	if found.Memory == 0 {
		return nil, errors.New("find cgroup: the memory controller is not enabled in it")
	}
	return &anchor{iterator, found.Cgroup, found.Id}, nil
}

// iterate runs an iterator's program once for each of its objects.
func iterate(l link.Link) error {
	iter, ok := l.(*link.Iter)
	if !ok {
		return fmt.Errorf("%T is not an iterator", l)
	}
	reader, err := iter.Open()
	if err != nil {
		return err
	}
	defer reader.Close()
	_, err = io.Copy(io.Discard, reader)
	return err
}

// close drops the reference. The anchor may be nil.
func (a *anchor) close() error {
	if a == nil {
		return nil
	}
	return a.link.Close()
}
