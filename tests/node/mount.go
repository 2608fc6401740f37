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
	point   string // the mount point
	device  string // "major:minor"
	fstype  string
	options string // of the superblock, not of the mount
}

// mounts lists every mount, parents before their children.
func mounts() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parseMountinfo(string(b))
}

// mountsBelow lists the mounts below dir, without one on dir itself. dir must not have symbolic links, because
// mountinfo has none.
func mountsBelow(dir string) ([]mount, error) {
	all, err := mounts()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(m mount) bool { return !below(m.point, dir) }), nil
}

// below reports whether a clean absolute path is inside dir. It is false for dir itself.
func below(path, dir string) bool {
	return path != dir && strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// parseMountinfo parses /proc/self/mountinfo (fs/proc_namespace.c, show_mountinfo):
//
//	36 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
//
// The number of fields before the dash varies. Space, tab, newline and backslash are escaped as octal.
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

// unescape replaces the octal escapes that the kernel's mangle_path writes, such as \040.
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

// bindRoot bind-mounts the root directory on dir if the root directory is not a mount point, as in a plain chroot,
// where runc can't run. It returns dir, or "" if no bind mount is needed. dir must not be in a directory that a test
// removes recursively.
func bindRoot(dir string) (string, error) {
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
	// Without MS_PRIVATE an unmount below dir could propagate to the original mounts.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("make the root directory private: %w", err)
	}
	return dir, nil
}

// unmountBelow unmounts everything below dir, the last mounted first. It retries busy mounts until the timeout and
// then detaches them (MNT_DETACH): the kernel removes them when their last user has closed them.
func unmountBelow(dir string, timeout time.Duration) error {
	end := time.Now().Add(timeout)
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
			// A mount whose unmount failed is in the next list.
			_ = unix.Unmount(m.point, flags)
		}
	}
}
