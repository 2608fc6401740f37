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

// SetSessionNice gives the session that this process leads a nice value, from -20 to 19, beside other sessions: where
// the kernel shares out processors among sessions first (sched(7), autogroup), the nice values of processes count
// within one alone. Lowering it needs CAP_SYS_NICE or an RLIMIT_NICE that allows it: EPERM. kernel.ErrUnavailable says
// that this kernel does no such thing, or that the session is another's.
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
		return fmt.Errorf("set nice value of the session: %w: the kernel does not schedule by sessions", kernel.ErrUnavailable)
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
