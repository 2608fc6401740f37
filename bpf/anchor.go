package bpf

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// anchor is the kernel's struct cgroup of a directory, held: as long as the link
// is open its memory is not another cgroup's.
type anchor struct {
	link   link.Link
	cgroup uint64
	id     uint64
}

// openAnchor finds the cgroup of a directory in the tree of the memory controller.
func openAnchor(dir int) (_ *anchor, err error) {
	var objects anchorObjects
	if _, err := anchorObject.load(func(spec *ebpf.CollectionSpec) error {
		return spec.LoadAndAssign(&objects, nil)
	}); err != nil {
		return nil, unavailable("load cgroup iterator", err)
	}
	defer objects.Close() // the link keeps what it needs
	fd, err := linkCgroupIter(objects.Anchor, dir)
	if errors.Is(err, unix.EINVAL) {
		// An iterator without a cgroup is what a kernel before 6.1 understands.
		return nil, unavailable("find cgroup", err)
	}
	if err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	held, err := link.NewFromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	defer func() {
		if err != nil {
			_ = held.Close()
		}
	}()
	if err := iterate(held); err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	var found anchorAnchored
	if err := objects.Anchors.Lookup(uint32(0), &found); err != nil {
		return nil, fmt.Errorf("find cgroup: %w", err)
	}
	if found.Cgroup == 0 {
		return nil, errors.New("find cgroup: the iterator saw none")
	}
	if found.Memory == 0 {
		return nil, errors.New("find cgroup: the memory controller is not on in it")
	}
	return &anchor{held, found.Cgroup, found.Id}, nil
}

// iterate runs an iterator's program over all there is.
func iterate(l link.Link) error {
	iter, ok := l.(*link.Iter)
	if !ok {
		return fmt.Errorf("%T is no iterator", l)
	}
	reader, err := iter.Open()
	if err != nil {
		return err
	}
	defer reader.Close()
	_, err = io.Copy(io.Discard, reader)
	return err
}

func (a *anchor) close() error {
	if a == nil {
		return nil
	}
	return a.link.Close()
}
