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

// HostPIDs tells whether the pids that this process sees are the node's.
func HostPIDs(proc kernel.FS) Feature {
	const (
		name    = "host pids"
		missing = "the host's pid namespace (hostPID), and its /proc"
	)
	// A procfs of another namespace has no self, or one of another number.
	self, err := os.Readlink(proc.Path("self"))
	if err != nil {
		return unknown(name, fmt.Errorf("find this process in procfs: %w", err))
	}
	if self != strconv.Itoa(os.Getpid()) {
		return no(name, fmt.Sprintf("this process is %d to itself and %s to %s", os.Getpid(), self, proc), missing)
	}
	ns, err := os.Readlink(proc.Path(self, "ns", "pid"))
	if err != nil {
		return unknown(name, fmt.Errorf("read pid namespace: %w", err))
	}
	if ns != process.FirstPIDNamespace {
		return no(name, fmt.Sprintf("%s is a namespace below the host's", ns), missing)
	}
	return yes(name, "the first pid namespace")
}

// pidfdOpen opens this process.
func pidfdOpen() Feature {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err == nil {
		unix.Close(fd)
	}
	return called("pidfd_open", err, nil, "Linux 5.3: without it, a pid that is used again can't be told")
}

// processMrelease names no process: a kernel that has the call says that the
// descriptor is bad.
func processMrelease() Feature {
	const none = ^uintptr(0)
	_, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, none, 0, 0)
	return called("process_mrelease", errno, unix.EBADF, "Linux 5.15: without it, memory comes back when the killed process gets to run")
}

// called tells from a system call's error whether the kernel has it; want is
// what a kernel that has it answers.
func called(name string, err, want error, missing string) Feature {
	switch {
	case err == want:
		return yes(name, "")
	case errors.Is(err, unix.ENOSYS):
		return no(name, err.Error(), missing)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		// The call itself asks for no privilege here, so this is a filter, behind
		// which the kernel can't be seen.
		return Feature{Name: name, Detail: err.Error(), Missing: "a seccomp filter that lets it through"}
	}
	return unknown(name, fmt.Errorf("%s: %w", name, err))
}

// realTime tells whether a thread may run before all normal tasks.
func realTime() Feature {
	const name = "real time"
	err := process.TryFIFO(1)
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
