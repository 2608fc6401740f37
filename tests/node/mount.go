package node

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A mount is one line of mountinfo.
type mount struct {
	point   string // where
	device  string // "major:minor"
	fstype  string
	options string // the filesystem's, not the mount's
}

// mounts lists every mount, parents before their children.
func mounts() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parseMountinfo(string(b))
}

// mountsBelow lists the mounts below dir, not one that dir itself is. A dir that is a symbolic link names
// nothing.
func mountsBelow(dir string) ([]mount, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(m mount) bool { return !below(m.point, dir) }), nil
}

// below says whether a clean absolute path lies in dir, and is not dir itself.
func below(path, dir string) bool {
	return path != dir && strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// parseMountinfo parses /proc/self/mountinfo (fs/proc_namespace.c, show_mountinfo):
//
//	36 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
//
// The fields before the dash vary in number. Space, tab, newline and backslash are escaped as octal.
func parseMountinfo(text string) ([]mount, error) {
	var mounts []mount
	for line := range strings.Lines(text) {
		left, right, dash := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		before, after := strings.Split(left, " "), strings.Split(right, " ")
		if !dash || len(before) < 6 || len(after) < 3 {
			return nil, fmt.Errorf("parse mountinfo: malformed line %q", line)
		}
		mounts = append(mounts, mount{point: unescape(before[4]), device: before[2], fstype: after[0], options: after[2]})
	}
	return mounts, nil
}

// unescape undoes the kernel's mangle_path: \040 and the like.
func unescape(s string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, `\`)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		if len(rest) >= 3 {
			if c, err := strconv.ParseUint(rest[:3], 8, 8); err == nil {
				out.WriteByte(byte(c))
				s = rest[3:]
				continue
			}
		}
		out.WriteByte('\\')
		s = rest
	}
}

// makeSlash makes a mount of what is the root directory, for runc: it can't run where that is no mount point,
// which is so in a plain chroot. It returns dir, where the same files are seen, or "" where none of this is
// needed. dir must be a place that nobody removes recursively.
func makeSlash(dir string) (string, error) {
	all, err := mounts()
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(all, func(m mount) bool { return m.point == "/" }) {
		return "", nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a root directory: %w", err)
	}
	if err := unix.Mount("/", dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("bind the root directory: %w", err)
	}
	// Else what is unmounted here could be unmounted there.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("make the root directory private: %w", err)
	}
	return dir, nil
}

// unmountBelow unmounts everything below dir, the last mounted first. A busy mount is waited for, then
// detached: it goes when its last user does.
func unmountBelow(dir string, patience time.Duration) error {
	end := time.Now().Add(patience)
	for flags := unix.UMOUNT_NOFOLLOW; ; time.Sleep(2 * time.Millisecond) {
		left, err := mountsBelow(dir)
		if err != nil || len(left) == 0 {
			return err
		}
		if flags&unix.MNT_DETACH != 0 {
			return fmt.Errorf("unmount below %s: %d mounts are left, the last is %s", dir, len(left), left[len(left)-1].point)
		}
		if time.Now().After(end) {
			flags |= unix.MNT_DETACH
		}
		for _, m := range slices.Backward(left) {
			// What failed is in the next list.
			_ = unix.Unmount(m.point, flags)
		}
	}
}
