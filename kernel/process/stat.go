package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
)

// Stat is the part of /proc/PID/stat that evictd uses (fs/proc/array.c).
type Stat struct {
	PID     int
	Comm    string // at most 15 arbitrary bytes
	State   byte   // R, S, D, Z, T, …
	PPID    int
	Threads int
	// StartTime is when the process started, in clock ticks since boot. Together
	// with the pid it identifies the process.
	StartTime uint64
}

// ReadStat reads /proc/PID/stat. It fails with ErrGone if there is no such process.
func ReadStat(proc kernel.FS, pid int) (Stat, error) {
	content, err := read(proc, pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(content)
	if err != nil {
		return Stat{}, fmt.Errorf("read stat of process %d: %w", pid, err)
	}
	return s, nil
}

// The fields of stat that are used, counted from 0 after the comm.
const (
	statState   = 0
	statPPID    = 1
	statThreads = 17
	statStart   = 19
)

// parseStat reads, for example,
//
//	1 (systemd) S 0 1 1 0 -1 4194560 … 20 0 1 0 8 172183552 …
//
// A process chooses its comm, which may contain brackets, spaces and line feeds. It
// ends at the last closing bracket.
func parseStat(content []byte) (Stat, error) {
	before, rest, found := bytes.Cut(content, []byte(" ("))
	end := bytes.LastIndexByte(rest, ')')
	if !found || end < 0 {
		return Stat{}, errors.New("no name in brackets")
	}
	s := Stat{Comm: string(rest[:end])}
	fields := strings.Fields(string(rest[end+1:]))
	if len(fields) <= statStart {
		return Stat{}, fmt.Errorf("%d fields after the name, fewer than %d", len(fields), statStart+1)
	}
	if len(fields[statState]) != 1 {
		return Stat{}, fmt.Errorf("state %q", fields[statState])
	}
	s.State = fields[statState][0]
	var errs [4]error
	s.PID, errs[0] = number(string(before))
	s.PPID, errs[1] = number(fields[statPPID])
	s.Threads, errs[2] = number(fields[statThreads])
	s.StartTime, errs[3] = strconv.ParseUint(fields[statStart], 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return Stat{}, err
	}
	return s, nil
}

// StartTimeAt returns the [Stat.StartTime] of a process; proc is a descriptor of the
// procfs root. It opens one descriptor and allocates nothing. It fails with unix.ENOENT
// or unix.ESRCH if there is no such process.
func StartTimeAt(proc, pid int) (uint64, error) {
	var path [32]byte
	name := append(strconv.AppendInt(path[:0], int64(pid), 10), "/stat\x00"...)
	// x/sys would copy the path to the heap.
	fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(proc), uintptr(unsafe.Pointer(&name[0])), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	defer unix.Close(int(fd))
	var content [1024]byte // a line has some 50 numbers, the largest of 20 digits
	n, err := unix.Pread(int(fd), content[:], 0)
	if err != nil {
		return 0, err
	}
	start, ok := startTime(content[:n])
	if !ok {
		return 0, errNoStart
	}
	return start, nil
}

var errNoStart = errors.New("no start time in stat")

// startTime is the part of parseStat that returns the start time, without
// allocations.
func startTime(content []byte) (start uint64, ok bool) {
	end := bytes.LastIndexByte(content, ')')
	if end < 0 {
		return 0, false
	}
	field, within := -1, false
	for _, c := range content[end+1:] {
		switch {
		case c == ' ' || c == '\n':
			if within && field == statStart {
				return start, ok
			}
			within = false
			continue
		case c < ' ' || c > '~': // the kernel does not print these
			return 0, false
		case !within:
			field, within = field+1, true
		}
		if field != statStart {
			continue
		}
		if c < '0' || c > '9' || start > 1<<60 {
			return 0, false
		}
		start, ok = 10*start+uint64(c-'0'), true
	}
	return 0, false
}

func number(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err
}

// Resident returns the resident memory of a process in bytes, from
// /proc/PID/statm, whose read takes no lock of the process. It fails with ErrGone
// if there is no such process.
func Resident(proc kernel.FS, pid int) (uint64, error) {
	content, err := read(proc, pid, "statm")
	if err != nil {
		return 0, err
	}
	pages, err := parseStatm(content)
	if err != nil {
		return 0, fmt.Errorf("read statm of process %d: %w", pid, err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

// parseStatm returns the second number, the resident pages:
//
//	42037 2966 1874 12 0 4963 0
func parseStatm(content []byte) (uint64, error) {
	fields := bytes.Fields(content)
	if len(fields) < 2 {
		return 0, fmt.Errorf("%q is not a list of sizes", content)
	}
	return strconv.ParseUint(string(fields[1]), 10, 40)
}

func read(proc kernel.FS, pid int, name string) ([]byte, error) {
	content, err := os.ReadFile(proc.Path(strconv.Itoa(pid), name))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, fmt.Errorf("read %s of process %d: %w", name, pid, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of process %d: %w", name, pid, err)
	}
	return content, nil
}

// BootID returns the random ID of the current boot.
func BootID(proc kernel.FS) (string, error) {
	content, err := os.ReadFile(proc.Path("sys", "kernel", "random", "boot_id"))
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	id := strings.TrimSpace(string(content))
	if id == "" {
		return "", errors.New("read boot id: it is empty")
	}
	return id, nil
}

// Uptime returns the time since boot, including suspend.
func Uptime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0, fmt.Errorf("read the time since boot: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
