package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

// volumeFiles is the number of files in the volume of manyFiles, filesEach in each directory.
const (
	volumeFiles = 1_000_000
	filesEach   = 10_000
)

// manyFiles runs a pod with so many files in its volume that evictd, which measures the volume when it starts, has not
// finished the walk during a batch of crossings. The returned function removes the pod, and fails if evictd had finished.
func (s *testbed) manyFiles() (undo func() error, err error) {
	const uid = "0a1b2c3d-0000-4000-8000-000000000001"
	root := filepath.Join(s.dir, "kubelet")
	undo = func() error { return os.RemoveAll(root) }
	defer func() {
		if err != nil {
			err = errors.Join(err, undo())
		}
	}()
	volume := filepath.Join(root, "pods", uid, "volumes", "kubernetes.io~empty-dir", "many")
	fmt.Fprintf(s.out, "  (creating %d files)\n", volumeFiles)
	err = each(volumeFiles/filesEach, func(i int) error { return fillDir(filepath.Join(volume, strconv.Itoa(i)), filesEach) })
	if err != nil {
		return nil, err
	}
	pod, err := s.node.RunPod(context.Background(), node.PodSpec{Name: "many-files", UID: uid, Containers: []node.ContainerSpec{{}}})
	if err != nil {
		return nil, err
	}
	v := &victim{pod: pod}
	if err := v.watch(pod.Containers[0].PID); err != nil {
		return nil, errors.Join(err, v.remove(s.node))
	}
	s.bystanders, s.settings = append(s.bystanders, v), "nodefsPath: "+root+"\n"
	crossings, late := 0, 0
	s.onCrossing = func(ctx context.Context, d *daemon.Daemon) error {
		x, err := d.Client().Explain(ctx, signal.NodeFsInodesFree)
		if err != nil {
			return err
		}
		crossings++
		for _, c := range x.Ranking {
			if c.Pod == "default/many-files" && c.Usage >= volumeFiles {
				late++
			}
		}
		return nil
	}
	removeFiles := undo
	return func() error {
		fmt.Fprintf(s.out, "  (evictd walked during %d of %d crossings)\n", crossings-late, crossings)
		s.bystanders = slices.DeleteFunc(s.bystanders, func(b *victim) bool { return b == v })
		s.settings, s.onCrossing = "", nil
		err := errors.Join(v.remove(s.node), removeFiles())
		if late > 0 {
			err = errors.Join(err, fmt.Errorf("evictd had finished measuring the %[3]d files at %[1]d of %[2]d crossings", late, crossings, volumeFiles))
		}
		return err
	}, nil
}

// fillDir creates a directory with empty files.
func fillDir(dir string, files int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	for i := range files {
		if err := unix.Mknodat(fd, strconv.Itoa(i), unix.S_IFREG|0o644, 0); err != nil {
			return fmt.Errorf("create file %d in %s: %w", i, dir, err)
		}
	}
	return nil
}
