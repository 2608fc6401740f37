package self

import (
	"errors"
	"fmt"
	"os"
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
// of pid 1. statfs and the files of pods would be those of evictd's own container. It
// returns "" if rootfs is the host's root or the mounts can't be read. It compares mounts,
// because following /proc/1/root needs all capabilities of pid 1.
func RootProblem(procfs kernel.FS, rootfs string) string {
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
	if given.Filesystem == host.Filesystem && given.Root == host.Root {
		return ""
	}
	return fmt.Sprintf("%s is on the filesystem %s, the root of the host is on %s: nodefs and the files of pods are those of evictd's own container "+
		"(--path.rootfs says where the host's root is mounted)", rootfs, given.Filesystem, host.Filesystem)
}
