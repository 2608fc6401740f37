package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Driver creates the cgroups of pods and containers. Its values are those of the kubelet's cgroupDriver.
type Driver string

// The two drivers. With [Systemd], systemd creates pods as slices and containers as scopes:
//
//	/evictd_test_1f2e3d4c.slice/…-kubepods.slice/…-kubepods-burstable.slice/…-pod<uid>.slice/cri-containerd-<id>.scope
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

// DriverEnv is the environment variable with the driver of nodes whose Options name none.
const DriverEnv = "EVICTD_TEST_CGROUP_DRIVER"

// resolve returns the driver itself or, if it is empty, the one in the environment, else cgroupfs. It fails for an
// unknown name.
func (d Driver) resolve() (Driver, error) {
	from := ""
	if d == "" {
		d, from = Driver(os.Getenv(DriverEnv)), DriverEnv+": "
	}
	switch d {
	case Cgroupfs, Systemd:
		return d, nil
	case "":
		return Cgroupfs, nil
	}
	return "", fmt.Errorf("%s%q is not a cgroup driver: want cgroupfs or systemd", from, string(d))
}

// check returns an error that names what this machine lacks for the driver.
func (d Driver) check(t tree) error {
	if d != Systemd {
		return nil
	}
	// The same test as sd_booted(3).
	if _, err := os.Lstat("/run/systemd/system"); err != nil {
		return errors.New("systemd as pid 1, for its cgroup driver")
	}
	if len(t) != 1 || !t[0].v2 {
		// On v1, systemd creates a slice's cgroup only in some of the hierarchies.
		return errors.New("the unified cgroup v2 hierarchy, for the systemd driver")
	}
	return nil
}

// child returns the path of a child cgroup. In the name of a slice, dashes separate its ancestors, so dashes in name
// become underscores, as in the kubelet (pkg/kubelet/cm/cgroup_manager_linux.go).
func (d Driver) child(parent, name string) string {
	if d != Systemd {
		return parent + "/" + name
	}
	stem := strings.TrimSuffix(filepath.Base(parent), sliceSuffix)
	return parent + "/" + stem + "-" + sliceName(name) + sliceSuffix
}

const sliceSuffix = ".slice"

func sliceName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// makePods creates a cgroup for pods, with limits in bytes and processes; 0 is no limit.
func (n *Node) makePods(cgroup string, memory, pids int64) error {
	if n.record.Driver == Systemd {
		return startSlice(n.tree[0], cgroup, memory, pids)
	}
	if err := n.tree.make(cgroup); err != nil {
		return err
	}
	if memory > 0 {
		if err := n.tree.set("memory", cgroup, "memory.limit_in_bytes", "memory.max", memory); err != nil {
			return err
		}
	}
	if pids > 0 {
		return n.tree.set("pids", cgroup, "pids.max", "pids.max", pids)
	}
	return nil
}

// removePods removes a cgroup that makePods has created. It must have no processes.
func (n *Node) removePods(cgroup string) error {
	if n.record.Driver == Systemd {
		if err := stopSlice(n.tree, cgroup); err != nil {
			return err
		}
	}
	return n.tree.remove(cgroup, stepTimeout)
}

// containerCgroup returns the path of a container's cgroup from the cgroupsPath of its OCI spec. That is the path
// itself or, with the systemd driver, slice:prefix:id, which names a scope in the pod's slice.
func containerCgroup(cgroupsPath, pod string) (string, error) {
	if filepath.IsAbs(cgroupsPath) {
		return cgroupsPath, nil
	}
	slice, scope, ok := strings.Cut(cgroupsPath, ":")
	prefix, id, two := strings.Cut(scope, ":")
	if !ok || !two || slice != filepath.Base(pod) {
		return "", fmt.Errorf("cgroups path %q is neither absolute nor in the slice of its pod, %s", cgroupsPath, pod)
	}
	return filepath.Join(pod, prefix+"-"+id+".scope"), nil
}

// MakeCgroup creates a cgroup with a memory limit in bytes, outside of kubepods, and returns its path below the
// hierarchy's mount point. Close removes it with the node.
func (n *Node) MakeCgroup(name string, memory int64) (string, error) {
	cgroup := n.record.cgroup() + "/" + name
	if err := n.tree.make(cgroup); err != nil {
		return "", err
	}
	return cgroup, n.tree.set("memory", cgroup, "memory.limit_in_bytes", "memory.max", memory)
}
