package disk

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// Project is the usage that a filesystem accounts to one quota project, an ID that
// new files inherit from their directory.
type Project struct {
	ID uint32
	// Usage is that of all files of the project on the filesystem, in any directory.
	Usage Usage
}

// ErrNoProject means that a directory belongs to no project, or that its filesystem
// has no project quota. The usage must be measured by a walk.
var ErrNoProject = errors.New("no project quota")

// fsxattr is what FS_IOC_FSGETXATTR fills (include/uapi/linux/fs.h).
type fsxattr struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

// dqblk is what Q_GETQUOTA fills (include/uapi/linux/quota.h: struct if_dqblk).
type dqblk struct {
	blockHard, blockSoft, space  uint64 // space in bytes, the limits in KiB
	inodeHard, inodeSoft, inodes uint64
	blockDeadline, inodeDeadline uint64
	valid                        uint32
	_                            [4]byte
}

const (
	fsIocFsGetXattr = 0x801c581f
	flagInherit     = 0x200 // FS_XFLAG_PROJINHERIT
	getQuota        = 0x800007
	projectQuota    = 2
	validSpace      = 2 // QIF_SPACE
	validInodes     = 8 // QIF_INODES
)

// ReadProject returns the usage of the project of a directory, without a walk. It
// needs Linux 5.14, and ext4 or xfs mounted with prjquota. It fails with
// [ErrNoProject] if the directory has no project quota.
func ReadProject(path string) (Project, error) {
	fd, err := openDir(unix.AT_FDCWD, path)
	if err != nil {
		return Project{}, fmt.Errorf("read project of %s: %w", path, err)
	}
	defer unix.Close(fd)
	p, err := project(fd)
	if err != nil {
		return Project{}, fmt.Errorf("read project of %s: %w", path, err)
	}
	return p, nil
}

func project(fd int) (Project, error) {
	var x fsxattr
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), fsIocFsGetXattr, uintptr(unsafe.Pointer(&x))); errno != 0 {
		if errno == unix.ENOTTY || errno == unix.EOPNOTSUPP {
			return Project{}, ErrNoProject
		}
		return Project{}, os.NewSyscallError("FS_IOC_FSGETXATTR", errno)
	}
	// Without the flag, new files in the directory belong to no project.
	if x.project == 0 || x.flags&flagInherit == 0 {
		return Project{}, ErrNoProject
	}
	var q dqblk
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), getQuota<<8|projectQuota, uintptr(x.project), uintptr(unsafe.Pointer(&q)), 0, 0)
	switch errno {
	case 0:
	case unix.ENOSYS:
		return Project{}, fmt.Errorf("%w: quotactl_fd (Linux 5.14)", kernel.ErrUnavailable)
	case unix.ESRCH, unix.ENOTSUP: // quota is off, or not supported by this filesystem
		return Project{}, ErrNoProject
	default:
		return Project{}, os.NewSyscallError("quotactl_fd", errno)
	}
	if q.valid&validSpace == 0 || q.valid&validInodes == 0 {
		return Project{}, ErrNoProject
	}
	return Project{ID: x.project, Usage: Usage{Bytes: q.space, Inodes: q.inodes}}, nil
}
