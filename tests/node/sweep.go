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

var (
	killPatience   = Slow(30 * time.Second)
	umountPatience = Slow(10 * time.Second)
	removePatience = Slow(30 * time.Second)
	slicePatience  = Slow(10 * time.Second)
)

// sweepAbandoned removes what is left of every node on this machine whose process has died without Close:
// processes, mounts, cgroups, sockets, the contents of its directory. Nothing that is not recorded as a node's is
// touched. The caller has the machine's lock.
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

// realDir is dir as the kernel shows it in its lists: absolute, without symbolic links. It need not exist.
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

// sweep goes on after an error, so that as little as possible stays. Only a node that is gone altogether is
// forgotten.
func (r record) sweep() error {
	t, err := mountedTree()
	if err != nil {
		return err
	}
	cgroups, sockets := r.cgroups(), r.sockets()
	var errs []error
	for _, cgroup := range cgroups {
		errs = append(errs, t.kill(cgroup, killPatience))
	}
	errs = append(errs, unmountBelow(r.Dir, umountPatience), unmountBelow(r.aside(), umountPatience))
	if r.Driver == Systemd {
		errs = append(errs, stopSlice(t, r.podRoot()))
	}
	for _, cgroup := range cgroups {
		errs = append(errs, t.remove(cgroup, removePatience))
	}
	for _, socket := range sockets {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove shim socket: %w", err))
		}
	}
	// Behind a mount may be anybody's files.
	if left, err := mountsBelow(r.Dir); err == nil && len(left) == 0 {
		errs = append(errs, empty(r.Dir))
	}
	for _, dir := range slices.Backward(append(slices.Clone(r.Made), r.aside(), filepath.Join(r.aside(), slashName))) {
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
	return r.forget()
}

// lostAndFound is what an empty ext4 has in its root.
const lostAndFound = "lost+found"

// empty removes what is in dir.
func empty(dir string) error {
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

// bundles are the directories in which containerd keeps what it gave to runc, one per container.
func (r record) bundles() []string {
	dirs, err := filepath.Glob(filepath.Join(r.Dir, "state/io.containerd.runtime.v2.task", namespace, "*"))
	if err != nil {
		return nil // a pattern that is wrong, which it isn't
	}
	return dirs
}

// cgroups are the private roots and, of containers that were run with no cgroup parent, what containerd then
// makes up: a cgroup named by the container's id, which is nobody else's.
func (r record) cgroups() []string {
	all := r.roots()
	for _, bundle := range r.bundles() {
		b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
		if err != nil {
			continue // not created altogether, or gone
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

// shimSocket is the only place where a shim listens.
var shimSocket = regexp.MustCompile(`^/run/containerd/s/[0-9a-f]{64}$`)

// sockets are those of the shims. A shim removes its own, unless it is killed.
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

// leftovers lists what is there of the node, in words.
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
	for _, dir := range []string{r.Dir, r.aside()} {
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
