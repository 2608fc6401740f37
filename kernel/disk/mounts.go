package disk

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// ID identifies a mounted filesystem by the device number of its superblock. It is
// the same for all its mounts, bind mounts and btrfs subvolumes included, although
// stat(2) returns another device for each subvolume.
type ID struct{ Major, Minor uint32 }

func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Major, id.Minor) }

// Mount is one line of mountinfo.
type Mount struct {
	ID         int // of the mount
	Parent     int
	Filesystem ID
	Root       string // of the mount within its filesystem
	Point      string // where it is mounted, in the mount namespace of the reader
	Options    string // of the mount
	Type       string // ext4, xfs, btrfs, overlay, …
	Source     string
	// SuperOptions are the options of the filesystem. Those of an overlay name its
	// directories.
	SuperOptions string
}

// ReadOnly reports whether the filesystem itself is read-only, so that no mount of it
// is writable. A read-only mount of a writable filesystem, as in a sandbox, does not
// count. An ext4 that became read-only because of an error shows the option
// emergency_ro since Linux 6.15 (fs/ext4/super.c: _ext4_show_options), and no option
// at all from 6.12 to 6.14.
func (m Mount) ReadOnly() bool {
	options := strings.Split(m.SuperOptions, ",")
	return options[0] == "ro" || m.Type == "ext4" && slices.Contains(options, "emergency_ro")
}

// Mounts reads the mounts of a process's mount namespace, in the order of
// /proc/PID/mountinfo; pid can be "self" (proc_pid_mountinfo(5),
// fs/proc_namespace.c). It calls none of the filesystems.
func Mounts(proc kernel.FS, pid string) ([]Mount, error) {
	content, err := os.ReadFile(proc.Path(pid, "mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return parseMounts(content)
}

var errMountLine = errors.New("malformed line")

// parseMounts parses
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
//	(1)(2)(3)   (4)   (5)      (6)      (7)   (8) (9)   (10)         (11)
//
// (7) is any number of fields, and spaces are escaped as \040.
func parseMounts(content []byte) ([]Mount, error) {
	var mounts []Mount
	for n := 1; len(content) > 0; n++ {
		line, rest, _ := bytes.Cut(content, []byte{'\n'})
		content = rest
		if len(line) == 0 {
			continue
		}
		m, err := parseMount(line)
		if err != nil {
			return nil, fmt.Errorf("read mounts: line %d: %w", n, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

func parseMount(line []byte) (Mount, error) {
	fields := bytes.Split(line, []byte{' '})
	if len(fields) < 7 {
		return Mount{}, errMountLine
	}
	dash := 6
	for dash < len(fields) && string(fields[dash]) != "-" {
		dash++
	}
	if len(fields)-dash < 4 {
		return Mount{}, errMountLine
	}
	id, err1 := strconv.Atoi(string(fields[0]))
	parent, err2 := strconv.Atoi(string(fields[1]))
	device, err3 := parseDevice(fields[2])
	if errors.Join(err1, err2, err3) != nil {
		return Mount{}, errMountLine
	}
	return Mount{
		ID: id, Parent: parent, Filesystem: device,
		Root: unescape(fields[3]), Point: unescape(fields[4]), Options: string(fields[5]),
		Type: unescape(fields[dash+1]), Source: unescape(fields[dash+2]), SuperOptions: unescape(fields[dash+3]),
	}, nil
}

func parseDevice(field []byte) (ID, error) {
	major, minor, ok := bytes.Cut(field, []byte{':'})
	a, err1 := strconv.ParseUint(string(major), 10, 32)
	b, err2 := strconv.ParseUint(string(minor), 10, 32)
	if !ok || errors.Join(err1, err2) != nil {
		return ID{}, errMountLine
	}
	return ID{uint32(a), uint32(b)}, nil
}

// unescape undoes the escaping of space, tab, newline, backslash and number sign as a
// backslash and three octal digits (fs/seq_file.c: mangle_path).
func unescape(field []byte) string {
	if bytes.IndexByte(field, '\\') < 0 {
		return string(field)
	}
	plain := make([]byte, 0, len(field))
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if c, err := strconv.ParseUint(string(field[i+1:i+4]), 8, 8); err == nil {
				plain = append(plain, byte(c))
				i += 3
				continue
			}
		}
		plain = append(plain, field[i])
	}
	return string(plain)
}

// ErrChanged means that mounts or directories changed during the call. A retry may
// succeed.
var ErrChanged = errors.New("changed during the read")

// Locate returns the mount that contains path, by the mount ID of statx(2) and not
// by comparing names. It fails with [kernel.ErrUnavailable] before Linux 5.8.
func Locate(proc kernel.FS, path string) (Mount, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(unix.AT_FDCWD, path, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return Mount{}, &os.PathError{Op: "statx", Path: path, Err: err}
		}
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return Mount{}, fmt.Errorf("locate %s: %w: the mount of a path (Linux 5.8)", path, kernel.ErrUnavailable)
	}
	m, err := mountOf(proc, st.Mnt_id)
	if err != nil {
		return Mount{}, fmt.Errorf("locate %s: %w", path, err)
	}
	return m, nil
}

// InMemory reports whether a tmpfs or hugetlbfs is mounted on a directory, and not above it,
// without the mount table. It calls the directory's filesystem, so it may block. statfs of a
// tmpfs or hugetlbfs does not fail (mm/shmem.c: shmem_statfs, fs/hugetlbfs/inode.c: hugetlbfs_statfs), so after an
// error InMemory returns false.
func InMemory(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || int64(fs.Type) != unix.TMPFS_MAGIC && int64(fs.Type) != unix.HUGETLBFS_MAGIC {
		return false
	}
	var own, parent unix.Stat_t
	return unix.Stat(dir, &own) == nil && unix.Stat(filepath.Dir(dir), &parent) == nil && own.Dev != parent.Dev
}

// maxLine bounds a line of mountinfo. The longest is an overlay of 500 layers with
// paths of 4 KiB, each byte of which is escaped as four.
const maxLine = 16 << 20

// mountOf returns the mount with an ID. It stops reading there, because the host's
// mounts come before those of the containers.
func mountOf(proc kernel.FS, id uint64) (Mount, error) {
	file, err := os.Open(proc.Path("self", "mountinfo"))
	if err != nil {
		return Mount{}, fmt.Errorf("read mounts: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 4<<10), maxLine)
	wanted := strconv.AppendUint(nil, id, 10)
	for lines.Scan() {
		if own, _, _ := bytes.Cut(lines.Bytes(), []byte{' '}); !bytes.Equal(own, wanted) {
			continue
		}
		m, err := parseMount(lines.Bytes())
		if err != nil {
			return Mount{}, fmt.Errorf("read mounts: mount %d: %w", id, err)
		}
		return m, nil
	}
	if err := lines.Err(); err != nil {
		return Mount{}, fmt.Errorf("read mounts: %w", err)
	}
	return Mount{}, fmt.Errorf("mount %d is not listed: %w", id, ErrChanged)
}
