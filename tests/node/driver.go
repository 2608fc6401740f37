package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Driver is who makes the cgroups of pods and of their containers, by the names of the kubelet's cgroupDriver.
type Driver string

// The two drivers. With [Systemd], pods are slices and containers are scopes, and systemd makes them:
//
//	/evictd_test_1f2e3d4c.slice/…-kubepods.slice/…-kubepods-burstable.slice/…-pod<uid>.slice/cri-containerd-<id>.scope
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

// DriverVariable names the environment variable that chooses the driver of nodes for which none is given.
const DriverVariable = "EVICTD_TEST_CGROUP_DRIVER"

// chosen is the driver itself or, where none is given, what the environment says, else cgroupfs.
func (d Driver) chosen() (Driver, error) {
	from := ""
	if d == "" {
		d, from = Driver(os.Getenv(DriverVariable)), DriverVariable+": "
	}
	switch d {
	case Cgroupfs, Systemd:
		return d, nil
	case "":
		return Cgroupfs, nil
	}
	return "", fmt.Errorf("%s%q is no cgroup driver: it is cgroupfs or systemd", from, string(d))
}

// check tells whether this machine has what the driver needs: nil, or what is missing.
func (d Driver) check(t tree) error {
	if d != Systemd {
		return nil
	}
	// What sd_booted(3) looks at.
	if _, err := os.Lstat("/run/systemd/system"); err != nil {
		return errors.New("systemd as pid 1, for its cgroup driver")
	}
	if len(t) != 1 || !t[0].v2 {
		// On v1, systemd makes a slice's cgroups in some of the hierarchies only.
		return errors.New("the unified cgroup v2 hierarchy, for the systemd driver")
	}
	return nil
}

// child is the cgroup of that name below another. The dashes of a slice's name are its place in the tree, so that a
// name has none of its own: the kubelet writes _ for them (pkg/kubelet/cm/cgroup_manager_linux.go).
func (d Driver) child(parent, name string) string {
	if d != Systemd {
		return parent + "/" + name
	}
	stem := strings.TrimSuffix(filepath.Base(parent), sliceSuffix)
	return parent + "/" + stem + "-" + sliceName(name) + sliceSuffix
}

const sliceSuffix = ".slice"

func sliceName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// makePods makes a cgroup for pods. Limits in bytes and processes; 0 is none.
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

// removePods removes a cgroup that makePods has made, once nobody is in it.
func (n *Node) removePods(cgroup string) error {
	if n.record.Driver == Systemd {
		if err := stopSlice(n.tree, cgroup); err != nil {
			return err
		}
	}
	return n.tree.remove(cgroup, removePatience)
}

// containerCgroup is the path of a container's cgroup. The runtime tells the path itself, or slice:prefix:id, of
// which it makes a scope in its pod's slice.
func containerCgroup(told, pod string) (string, error) {
	if filepath.IsAbs(told) {
		return told, nil
	}
	slice, scope, ok := strings.Cut(told, ":")
	prefix, id, two := strings.Cut(scope, ":")
	if !ok || !two || slice != filepath.Base(pod) {
		return "", fmt.Errorf("cgroups path %q is neither absolute nor in the slice of its pod, %s", told, pod)
	}
	return filepath.Join(pod, prefix+"-"+id+".scope"), nil
}

// MakeCgroup makes a cgroup that is no pod's, with a limit of its memory in bytes, beside those of the pods, and
// returns its path below a hierarchy's mount point. It goes with the node.
func (n *Node) MakeCgroup(name string, memory int64) (string, error) {
	cgroup := n.record.cgroup() + "/" + name
	if err := n.tree.make(cgroup); err != nil {
		return "", err
	}
	return cgroup, n.tree.set("memory", cgroup, "memory.limit_in_bytes", "memory.max", memory)
}
