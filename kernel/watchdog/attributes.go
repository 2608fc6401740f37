package watchdog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// Attributes are what sysfs says about a device. They are read without opening the device.
type Attributes struct {
	// Identity is as in Info.
	Identity string
	// NoWayOut is set if the device cannot be disarmed.
	NoWayOut bool
}

// The device number of /dev/watchdog (include/linux/miscdevice.h), which is another name of watchdog0.
const miscMajor, watchdogMinor = 10, 130

// ReadAttributes reads the attributes of the device at a path. A kernel without CONFIG_WATCHDOG_SYSFS has none; then the
// error is kernel.ErrUnavailable.
func ReadAttributes(sys kernel.FS, path string) (Attributes, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Attributes{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Attributes{}, fmt.Errorf("%s is not a character device", path)
	}
	dir := sys.Path("class", "watchdog", "watchdog0")
	if major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev); major != miscMajor || minor != watchdogMinor {
		dir = sys.Path("dev", "char", fmt.Sprintf("%d:%d", major, minor))
	}
	return readAttributes(dir)
}

// readAttributes reads the files of a directory as /sys/class/watchdog/watchdog0: identity "iTCO_wdt\n", nowayout "0\n".
func readAttributes(dir string) (Attributes, error) {
	identity, err := readAttribute(dir, "identity")
	if err != nil {
		return Attributes{}, err
	}
	text, err := readAttribute(dir, "nowayout")
	if err != nil {
		return Attributes{}, err
	}
	noWayOut, err := strconv.ParseUint(text, 10, 8)
	if err != nil || noWayOut > 1 {
		return Attributes{}, fmt.Errorf("%s is %q; want 0 or 1", filepath.Join(dir, "nowayout"), text)
	}
	return Attributes{Identity: identity, NoWayOut: noWayOut == 1}, nil
}

func readAttribute(dir, name string) (string, error) {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("attributes of the watchdog: %w: %w", kernel.ErrUnavailable, err)
	}
	return strings.TrimSuffix(string(content), "\n"), err
}

// Holder returns a process that has the device open, as "systemd (process 1)". It is not found if its descriptors
// cannot be read.
func Holder(proc kernel.FS, path string) (string, bool) {
	var device unix.Stat_t
	if unix.Stat(path, &device) != nil {
		return "", false
	}
	links, err := filepath.Glob(proc.Path("[0-9]*", "fd", "[0-9]*"))
	if err != nil {
		return "", false
	}
	for _, link := range links {
		// The link's text first: stat of a descriptor of a network filesystem may block.
		if target, err := os.Readlink(link); err != nil || !strings.HasPrefix(filepath.Base(target), "watchdog") {
			continue
		}
		var open unix.Stat_t
		if unix.Stat(link, &open) != nil || open.Mode&unix.S_IFMT != unix.S_IFCHR || !sameDevice(open.Rdev, device.Rdev) {
			continue
		}
		process := filepath.Dir(filepath.Dir(link))
		comm, _ := os.ReadFile(filepath.Join(process, "comm"))
		return fmt.Sprintf("%q (process %s)", strings.TrimSuffix(string(comm), "\n"), filepath.Base(process)), true
	}
	return "", false
}

// sameDevice reports whether two device numbers are those of one watchdog. /dev/watchdog and /dev/watchdog0 have
// different numbers.
func sameDevice(a, b uint64) bool {
	first := func(dev uint64) bool {
		return unix.Major(dev) == miscMajor && unix.Minor(dev) == watchdogMinor || unix.Major(dev) != miscMajor && unix.Minor(dev) == 0
	}
	return a == b || first(a) && first(b)
}
