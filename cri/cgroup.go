package cri

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

const (
	// maxUnitName is UNIT_NAME_MAX of systemd's basic/unit-def.h without its NUL;
	// NAME_MAX of a directory entry is the same.
	maxUnitName = 255
	// maxCgroupPath is PATH_MAX with its NUL (limits.h).
	maxCgroupPath = 4095
)

// CgroupPath returns the path, below the cgroup root, of the cgroup of an OCI
// cgroupsPath, and whether it is managed by systemd:
//
//	/kubepods/burstable/podUID/ID                  cgroupfs: the path itself
//	kubepods-burstable-podUID.slice:cri-containerd:ID
//	    → /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
//
// The second form is slice:prefix:name, as runc and crun pass it to systemd. An empty
// slice is system.slice, and -.slice is the root slice (systemd.slice(5)).
//
// CgroupPath fails unless the path can only be the cgroup of one container. It refuses
// a relative path (runc resolves it against its own cgroup, which is visible only in
// /proc/PID/cgroup of the container), the root, a path that is not clean, and a unit
// name that systemd would refuse or escape. The caller checks that the cgroup exists
// and contains the container.
func CgroupPath(cgroupsPath string) (path string, systemd bool, err error) {
	if strings.HasPrefix(cgroupsPath, "/") {
		if err := checkCgroupfs(cgroupsPath); err != nil {
			return "", false, fmt.Errorf("cgroups path %.300q: %w", cgroupsPath, err)
		}
		return cgroupsPath, false, nil
	}
	parts := strings.Split(cgroupsPath, ":")
	switch {
	case cgroupsPath == "":
		return "", false, errors.New("cgroups path is empty")
	case len(parts) != 3:
		return "", false, fmt.Errorf("cgroups path %.300q: neither absolute nor slice:prefix:name", cgroupsPath)
	}
	slice, scope := parts[0], parts[1]+"-"+parts[2]+".scope"
	if parts[1] == "" || parts[2] == "" {
		return "", true, fmt.Errorf("cgroups path %.300q: prefix or name is empty", cgroupsPath)
	}
	if strings.HasSuffix(parts[2], ".slice") {
		return "", true, fmt.Errorf("cgroups path %.300q: is a slice, not a container", cgroupsPath)
	}
	parent, err := expandSlice(slice)
	if err != nil {
		return "", true, fmt.Errorf("cgroups path %.300q: %w", cgroupsPath, err)
	}
	if err := checkUnit(scope); err != nil {
		return "", true, fmt.Errorf("cgroups path %.300q: %w", cgroupsPath, err)
	}
	path = parent + "/" + scope
	if len(path) > maxCgroupPath {
		return "", true, fmt.Errorf("cgroups path of %d bytes: longer than PATH_MAX", len(cgroupsPath))
	}
	return path, true, nil
}

// checkCgroupfs checks a path by the rules of mkdir(2) in a cgroup filesystem. A name
// may contain any byte except NUL, and newline, which cgroup_mkdir() refuses because
// it would forge lines of /proc/PID/cgroup.
func checkCgroupfs(p string) error {
	switch {
	case p == "/":
		return errors.New("is the root cgroup")
	case strings.ContainsAny(p, "\x00\n"):
		return errors.New("contains a NUL or a newline")
	case path.Clean(p) != p:
		return errors.New("not a clean path")
	case len(p) > maxCgroupPath:
		return errors.New("longer than PATH_MAX")
	}
	for name := range strings.SplitSeq(p[1:], "/") {
		if len(name) > maxUnitName {
			return errors.New("a component is longer than NAME_MAX")
		}
	}
	return nil
}

// expandSlice returns the cgroup path of a slice. The dashes in its name separate the
// levels: a-b-c.slice is in a-b.slice, which is in a.slice (systemd.slice(5)).
func expandSlice(slice string) (string, error) {
	if slice == "" {
		slice = "system.slice"
	}
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "" {
		return "", fmt.Errorf("%.300q is not a slice", slice)
	}
	if name == "-" {
		return "", nil
	}
	if name[0] == '-' || name[len(name)-1] == '-' || strings.Contains(name, "--") {
		return "", fmt.Errorf("slice %.300q: empty part between dashes", slice)
	}
	var dir strings.Builder
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '-' {
			continue
		}
		unit := name[:i] + ".slice"
		if err := checkUnit(unit); err != nil {
			return "", err
		}
		dir.WriteByte('/')
		dir.WriteString(unit)
		if dir.Len() > maxCgroupPath {
			return "", fmt.Errorf("slice of %d bytes: expands beyond PATH_MAX", len(slice))
		}
	}
	return dir.String(), nil
}

// checkUnit returns an error unless the cgroup directory of a unit has the same name
// as the unit. systemd prefixes the directory with _ if the name could be that of a
// kernel file (cg_escape() in its basic/cgroup-util.c). runc does not do that, so the
// cgroup of such a container is uncertain.
func checkUnit(unit string) error {
	if len(unit) > maxUnitName {
		return fmt.Errorf("unit name of %d bytes: systemd allows %d", len(unit), maxUnitName)
	}
	for i := range len(unit) {
		switch b := unit[i]; {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9':
		case strings.IndexByte("-_.@\\", b) >= 0:
		default:
			return fmt.Errorf("unit %.300q: byte %q is not allowed in a unit name", unit, b)
		}
	}
	stem, _, _ := strings.Cut(unit, ".")
	switch stem {
	case "", "cgroup",
		"cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids",
		"hugetlb", "freezer", "misc", "rdma", "dmem", "net_cls", "net_prio", "perf_event",
		"bpf-firewall", "bpf-devices", "bpf-foreign", "bpf-socket-bind",
		"bpf-restrict-network-interfaces", "bpf-bind-network-interface":
		return fmt.Errorf("unit %.300q: systemd escapes the directory name of this unit", unit)
	}
	if unit[0] == '_' {
		return fmt.Errorf("unit %.300q: systemd escapes the directory name of this unit", unit)
	}
	return nil
}
