package process

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/evictd/evictd/kernel"
)

// UIDs are the user IDs of a process in the user namespace of the reader
// (credentials(7)).
type UIDs struct{ Real, Effective, Saved, FS uint32 }

// ReadUIDs reads the user IDs in /proc/PID/status. It fails with ErrGone if there is
// no such process. The owner of /proc/PID is not equivalent: it is root for every
// process that is not dumpable (fs/proc/base.c: task_dump_owner).
func ReadUIDs(proc kernel.FS, pid int) (UIDs, error) {
	content, err := read(proc, pid, "status")
	if err != nil {
		return UIDs{}, err
	}
	u, err := parseUIDs(content)
	if err != nil {
		return UIDs{}, fmt.Errorf("read status of process %d: %w", pid, err)
	}
	return u, nil
}

// parseUIDs parses the line
//
//	Uid:	1000	1000	1000	1000
//
// The name of the process, on an earlier line, can't forge it: the kernel escapes
// line feeds in it (fs/proc/array.c: proc_task_name).
func parseUIDs(content []byte) (u UIDs, err error) {
	for line := range bytes.Lines(content) {
		rest, ok := bytes.CutPrefix(line, []byte("Uid:"))
		if !ok {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) != 4 {
			return UIDs{}, fmt.Errorf("%q is not a list of user IDs", line)
		}
		for n, to := range []*uint32{&u.Real, &u.Effective, &u.Saved, &u.FS} {
			id, err := strconv.ParseUint(string(fields[n]), 10, 32)
			if err != nil {
				return UIDs{}, fmt.Errorf("%q is not a list of user IDs", line)
			}
			*to = uint32(id)
		}
		return u, nil
	}
	return UIDs{}, fmt.Errorf("no line for %q", "Uid")
}
