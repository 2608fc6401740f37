package probe

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/process"
)

// HostPIDs checks whether this process and proc are in the node's pid namespace.
func HostPIDs(proc kernel.FS) Feature {
	const (
		name    = "host pids"
		missing = "the host's pid namespace (hostPID), and its /proc"
	)
	// In a procfs of another namespace, self is missing or has another pid.
	self, err := os.Readlink(proc.Path("self"))
	if err != nil {
		return unknown(name, fmt.Errorf("find this process in procfs: %w", err))
	}
	if self != strconv.Itoa(os.Getpid()) {
		return no(name, fmt.Sprintf("this process has pid %d, but %s in %s", os.Getpid(), self, proc), missing)
	}
	ns, err := os.Readlink(proc.Path(self, "ns", "pid"))
	if err != nil {
		return unknown(name, fmt.Errorf("read pid namespace: %w", err))
	}
	if ns != process.InitPIDNamespace {
		return no(name, fmt.Sprintf("%s is not the host's namespace", ns), missing)
	}
	return yes(name, "the initial pid namespace")
}

// pidfdOpen opens a pidfd of this process.
func pidfdOpen() Feature {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		unix.Close(fd)
	}
	return called("pidfd_open", err, nil, "Linux 5.3: without it, a reused pid can't be detected")
}

// processMrelease calls process_mrelease(2) with an invalid descriptor, for which a
// kernel that has the call returns EBADF.
func processMrelease() Feature {
	const none = ^uintptr(0)
	_, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, none, 0, 0)
	return called("process_mrelease", errno, unix.EBADF, "Linux 5.15: without it, memory is freed only when the killed process runs")
}

// called classifies the error of a system call. want is the error of a kernel that
// has the call.
func called(name string, err, want error, missing string) Feature {
	switch {
	case err == want:
		return yes(name, "")
	case errors.Is(err, unix.ENOSYS):
		return no(name, err.Error(), missing)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		// The call needs no privilege here, so a seccomp filter refused it, and
		// whether the kernel has it is unknown.
		return Feature{Name: name, Detail: err.Error(), Missing: "a seccomp filter that allows it"}
	}
	return unknown(name, fmt.Errorf("%s: %w", name, err))
}

// realTime probes whether a thread may use SCHED_FIFO.
func realTime() Feature {
	const name = "real time"
	err := process.ProbeFIFO(1)
	switch {
	case err == nil:
		return yes(name, "")
	case errors.Is(err, process.ErrNoRealTime):
		return no(name, err.Error(), "a cpu cgroup with real-time runtime, such as the root")
	case errors.Is(err, unix.EPERM):
		return no(name, err.Error(), "CAP_SYS_NICE")
	}
	return unknown(name, err)
}
