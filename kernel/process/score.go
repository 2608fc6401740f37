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

// Score is the oom_score_adj of one process, by which the kernel's OOM killer
// tells processes apart (fs/proc/base.c: proc_oom_score_adj_read). It stays that
// process's: when its pid is another's, it is [ErrGone].
type Score struct {
	pid int
	dir *sys.FD
}

// OpenScore opens the score of a process. It is ErrGone where there is no such
// process. The Score must be closed.
func OpenScore(proc kernel.FS, pid int) (*Score, error) {
	dir, err := sys.Open(proc.Path(strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, scoreError("open", pid, err)
	}
	return &Score{pid, dir}, nil
}

// Close gives the descriptor up.
func (s *Score) Close() error { return s.dir.Close() }

// Get returns the score, from -1000 to 1000.
func (s *Score) Get() (int, error) {
	fd, err := s.dir.OpenAt("oom_score_adj", unix.O_RDONLY)
	if err != nil {
		return 0, scoreError("read", s.pid, err)
	}
	defer fd.Close()
	var buf [16]byte
	content, err := fd.Read(buf[:])
	if err != nil {
		return 0, scoreError("read", s.pid, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || n < -1000 || n > 1000 {
		return 0, fmt.Errorf("read oom_score_adj of process %d: %q is not from -1000 to 1000", s.pid, content)
	}
	return n, nil
}

// Set sets the score of the process, and of those that share its memory. Lowering
// it below what it was at the last time that a privileged process set it needs
// CAP_SYS_RESOURCE, and to write that of another user's process CAP_DAC_OVERRIDE
// (fs/proc/base.c: __set_oom_adj): fs.ErrPermission without.
func (s *Score) Set(score int) error {
	fd, err := s.dir.OpenAt("oom_score_adj", unix.O_WRONLY)
	if err == nil {
		err = fd.Write([]byte(strconv.Itoa(score)))
		fd.Close()
	}
	if err != nil {
		return scoreError("set", s.pid, err)
	}
	return nil
}

// scoreError names the operation and tells when the process has gone.
func scoreError(op string, pid int, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		err = ErrGone
	}
	return fmt.Errorf("%s oom_score_adj of process %d: %w", op, pid, err)
}
