package process

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/internal/sys"
)

// OOMScoreAdj is the oom_score_adj of one process, which the kernel's OOM killer adds to
// its score (fs/proc/base.c: proc_oom_score_adj_read). If the pid is reused, its
// methods fail with [ErrGone].
type OOMScoreAdj struct {
	pid int
	dir *sys.FD
}

// OpenOOMScoreAdj opens the oom_score_adj of a process. It fails with ErrGone if there is
// no such process. The caller must close the OOMScoreAdj.
func OpenOOMScoreAdj(proc kernel.FS, pid int) (*OOMScoreAdj, error) {
	dir, err := sys.Open(proc.Path(strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, oomScoreAdjError("open", pid, err)
	}
	return &OOMScoreAdj{pid, dir}, nil
}

// Close closes the descriptor.
func (o *OOMScoreAdj) Close() error { return o.dir.Close() }

// Get returns the oom_score_adj, from -1000 to 1000.
func (o *OOMScoreAdj) Get() (int, error) {
	fd, err := o.dir.OpenAt("oom_score_adj", unix.O_RDONLY)
	if err != nil {
		return 0, oomScoreAdjError("read", o.pid, err)
	}
	defer fd.Close()
	var buf [16]byte
	content, err := fd.Read(buf[:])
	if err != nil {
		return 0, oomScoreAdjError("read", o.pid, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || n < -1000 || n > 1000 {
		return 0, fmt.Errorf("read oom_score_adj of process %d: %q is not from -1000 to 1000", o.pid, content)
	}
	return n, nil
}

// Set sets the oom_score_adj of the process and of those that share its memory. It
// fails with fs.ErrPermission without CAP_SYS_RESOURCE if the value is lower than
// the last one set by a privileged process, and without CAP_DAC_OVERRIDE for a
// process of another user (fs/proc/base.c: __set_oom_adj).
func (o *OOMScoreAdj) Set(value int) error {
	fd, err := o.dir.OpenAt("oom_score_adj", unix.O_WRONLY)
	if err == nil {
		err = fd.Write([]byte(strconv.Itoa(value)))
		fd.Close()
	}
	if err != nil {
		return oomScoreAdjError("set", o.pid, err)
	}
	return nil
}

// oomScoreAdjError adds the operation to an error, and turns the errors of a process that
// has ended into ErrGone.
func oomScoreAdjError(op string, pid int, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	return fmt.Errorf("%s oom_score_adj of process %d: %w", op, pid, err)
}
