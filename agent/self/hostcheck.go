package self

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/disk"
	"github.com/evictd/evictd/kernel/probe"
)

// LocationProblem returns why the processes and cgroups that evictd sees may not be this host's:
// it is in another pid namespace, or does not find itself in exactly one cgroup. It returns
// "" if they are the host's.
func LocationProblem(procfs kernel.FS, h *cgroup.Hierarchy) string {
	if pids := probe.HostPIDs(procfs); pids.Supported != probe.Yes {
		return fmt.Sprintf("evictd does not see the host's processes: %s; it needs %s", pids.Detail, pids.Missing)
	}
	paths, err := h.FindPID(os.Getpid())
	switch {
	case err != nil:
		return fmt.Sprintf("evictd could not find its own cgroup: %v", err)
	case len(paths) != 1:
		return fmt.Sprintf("evictd finds itself in %d cgroups of the tree that it reads instead of one (%s): is the host's tree mounted, and the pid namespace the host's?",
			len(paths), strings.Join(paths, ", "))
	}
	return ""
}

// RootProblem returns a warning if rootfs is not the host's root directory, which is that
// of pid 1, and nodePath, the path of nodefs, is not on a mount of its own from the host.
// statfs and the files of pods would be those of evictd's own container. It returns "" if
// they are the host's or the mounts can't be read. It compares mounts, because following
// /proc/1/root needs all capabilities of pid 1.
func RootProblem(procfs kernel.FS, rootfs, nodePath string) string {
	mounts, err := disk.Mounts(procfs, "1")
	if err != nil {
		return ""
	}
	var host *disk.Mount
	for i := range mounts {
		if mounts[i].Point == "/" {
			host = &mounts[i] // the last is on top
		}
	}
	if host == nil {
		return ""
	}
	given, err := disk.Locate(procfs, rootfs)
	switch {
	case errors.Is(err, kernel.ErrUnavailable):
		return ""
	case err != nil:
		return fmt.Sprintf("the host's root is not at %s: %v (--path.rootfs says where it is mounted)", rootfs, err)
	}
	if given.Filesystem == host.Filesystem && given.Root == host.Root || mountedFrom(mounts, procfs, nodePath) {
		return ""
	}
	return fmt.Sprintf("%s is on the filesystem %s, the root of the host is on %s, and %s is not mounted from the host: nodefs and the files of pods "+
		"are those of evictd's own container (--path.rootfs says where the host's root, or the directories that evictd needs, are mounted)",
		rootfs, given.Filesystem, host.Filesystem, nodePath)
}

// mountedFrom reports whether path, as this process sees it, is below a mount other than
// its root, of a filesystem that the host has mounted. It compares names instead of
// calling the filesystem, which may hang.
func mountedFrom(host []disk.Mount, procfs kernel.FS, path string) bool {
	own, err := disk.Mounts(procfs, "self")
	if err != nil {
		return false
	}
	var at disk.Mount
	for _, m := range own {
		if len(m.Point) >= len(at.Point) && (path == m.Point || strings.HasPrefix(path, strings.TrimSuffix(m.Point, "/")+"/")) {
			at = m // the last is on top
		}
	}
	return at.Point != "" && at.Point != "/" && slices.ContainsFunc(host, func(m disk.Mount) bool { return m.Filesystem == at.Filesystem })
}
