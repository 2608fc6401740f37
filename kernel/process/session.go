package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// SetSessionNice sets the autogroup nice value, from -20 to 19, of the session that this process leads. With autogroup
// (sched(7)), the kernel first divides CPU time among sessions, and the nice values of processes count only within
// one. It fails with EPERM if lowering the value needs CAP_SYS_NICE or a higher RLIMIT_NICE, and with
// kernel.ErrUnavailable if the kernel has no autogroup or another process leads the session.
func SetSessionNice(proc kernel.FS, nice int) error {
	session, err := unix.Getsid(0)
	if err != nil {
		return fmt.Errorf("set nice value of the session: %w", os.NewSyscallError("getsid", err))
	}
	if session != os.Getpid() {
		return fmt.Errorf("set nice value of the session: %w: process %d leads it", kernel.ErrUnavailable, session)
	}
	// kernel/sched/autogroup.c: proc_sched_autogroup_set_nice
	f, err := os.OpenFile(proc.Path("self", "autogroup"), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("set nice value of the session: %w: the kernel has no autogroup scheduling", kernel.ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("set nice value of the session: %w", err)
	}
	_, err = f.WriteString(strconv.Itoa(nice))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("set nice value of the session: %w", err)
	}
	return nil
}
