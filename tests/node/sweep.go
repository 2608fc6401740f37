package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stepTimeout bounds each step of Close and of a sweep, and each command of systemd. It only ends a hang; a step usually
// takes milliseconds.
var stepTimeout = ScaleTimeout(30 * time.Second)

// sweepAbandoned removes every node of this machine whose process has died without Close: processes, mounts, cgroups,
// sockets and the contents of its directory. It removes only what a record names. The caller has the machine's lock.
func sweepAbandoned() error {
	all, err := records()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if r.abandoned() {
			errs = append(errs, r.sweep())
		}
	}
	return errors.Join(errs...)
}

// realDir returns dir as the kernel shows it in mountinfo: absolute, without symbolic links. It need not exist.
func realDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", dir, err)
	}
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) && dir != "/" {
		parent, err := realDir(filepath.Dir(dir))
		return filepath.Join(parent, filepath.Base(dir)), err
	}
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", dir, err)
	}
	return real, nil
}

// sweep removes the node. It goes on after an error, so that as little as possible stays. It removes the record only
// if everything else is removed.
func (r record) sweep() error {
	t, err := mountedTree()
	if err != nil {
		return err
	}
	cgroups, sockets := r.cgroups(), r.sockets()
	var errs []error
	for _, cgroup := range cgroups {
		errs = append(errs, t.kill(cgroup, stepTimeout))
	}
	errs = append(errs, unmountBelow(r.Dir, stepTimeout), unmountBelow(r.sideDir(), stepTimeout))
	if r.Driver == Systemd {
		errs = append(errs, stopSlice(t, r.podRoot()))
	}
	for _, cgroup := range cgroups {
		errs = append(errs, t.remove(cgroup, stepTimeout))
	}
	for _, socket := range sockets {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove shim socket: %w", err))
		}
	}
	// Files below a remaining mount may not belong to the node.
	if left, err := mountsBelow(r.Dir); err == nil && len(left) == 0 {
		errs = append(errs, removeContents(r.Dir))
	}
	for _, dir := range slices.Backward(append(slices.Clone(r.Made), r.sideDir(), filepath.Join(r.sideDir(), rootDirName))) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	if r.MadeHosts {
		errs = append(errs, removeHosts())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.removeFile()
}

// lostAndFound is the directory that an empty ext4 has in its root.
const lostAndFound = "lost+found"

// empty removes what is in dir.
func removeContents(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("empty %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.Name() == lostAndFound {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("empty %s: %w", dir, err)
		}
	}
	return nil
}

// bundles returns the OCI bundle directories, one per container.
func (r record) bundles() []string {
	dirs, err := filepath.Glob(filepath.Join(r.Dir, "state/io.containerd.runtime.v2.task", namespace, "*"))
	if err != nil {
		return nil // only for a malformed pattern
	}
	return dirs
}

// cgroups returns the private roots and the cgroups of containers without a cgroup parent. containerd names those
// after the container's id, which is unique.
func (r record) cgroups() []string {
	all := r.roots()
	for _, bundle := range r.bundles() {
		b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
		if err != nil {
			continue // not created completely, or removed
		}
		var spec struct {
			Linux struct{ CgroupsPath string }
		}
		if json.Unmarshal(b, &spec) != nil {
			continue
		}
		path := spec.Linux.CgroupsPath
		if filepath.Base(path) == filepath.Base(bundle) && filepath.IsAbs(path) && !below(path, r.cgroup()) && !below(path, r.podRoot()) {
			all = append(all, path)
		}
	}
	return all
}

// shimSocket matches the sockets on which shims listen. Their directory is compiled into containerd.
var shimSocket = regexp.MustCompile(`^/run/containerd/s/[0-9a-f]{64}$`)

// sockets returns the sockets of the shims. A shim that is killed does not remove its socket.
func (r record) sockets() []string {
	var all []string
	for _, bundle := range r.bundles() {
		b, err := os.ReadFile(filepath.Join(bundle, "address"))
		if err != nil {
			continue
		}
		if path := strings.TrimPrefix(strings.TrimSpace(string(b)), "unix://"); shimSocket.MatchString(path) {
			all = append(all, path)
		}
	}
	return all
}

// leftovers describes everything that exists of the node.
func (r record) leftovers() []string {
	t, err := mountedTree()
	if err != nil {
		return []string{err.Error()}
	}
	var all []string
	for _, root := range r.roots() {
		for _, pid := range t.processes(root) {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil {
				all = append(all, fmt.Sprintf("process %d: %s", pid, strings.TrimSpace(strings.ReplaceAll(string(name), "\x00", " "))))
			}
		}
		for _, dir := range t.dirs(root) {
			all = append(all, "cgroup "+dir)
		}
	}
	all = append(all, r.units()...)
	for _, dir := range []string{r.Dir, r.sideDir()} {
		mounts, err := mountsBelow(dir)
		if err != nil {
			all = append(all, err.Error())
		}
		for _, m := range mounts {
			all = append(all, "mount "+m.point)
		}
	}
	if entries, err := os.ReadDir(r.Dir); err == nil {
		for _, e := range entries {
			if e.Name() != lostAndFound {
				all = append(all, "file "+filepath.Join(r.Dir, e.Name()))
			}
		}
	}
	if _, err := os.Stat(r.path()); err == nil {
		all = append(all, "record "+r.path())
	}
	return all
}
