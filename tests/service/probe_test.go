package service_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/bpf"
)

// targets is the parent of two cgroups, each with one process of another user for the probe to kill.
type targets string

const (
	byPidfd  = "one-by-one"
	byCgroup = "as-one"
)

func (v targets) path(elem ...string) string {
	return filepath.Join(append([]string{string(v)}, elem...)...)
}

func (v targets) pid(group string) (int, error) {
	b, err := os.ReadFile(v.path(group, "cgroup.procs"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// Files that the probe reads and removes: another user's directory, a pod's logs with a link to them, and a file in
// root's home.
const (
	privateDir = "/var/lib/evictd-test-private"
	podLogs    = "/var/log/pods/default_evictd-test_0"
	logLink    = "/var/log/containers/evictd-test.log"
	homeFile   = "/root/evictd-test"
)

// ability is an operation that the unit permits or refuses.
type ability struct {
	name string
	// needs lists the capabilities that the operation needs, all of them.
	needs []string
	// never means that the unit refuses the operation in any case.
	never bool
	try   func(v targets) error
}

// abilities are tried in this order.
var abilities = []ability{
	{name: "read the executable of another user's process", needs: []string{"CAP_SYS_PTRACE"}, try: func(v targets) error {
		pid, err := v.pid(byPidfd)
		if err != nil {
			return err
		}
		_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err
	}},
	{name: "read the pid namespace of pid 1", needs: []string{"CAP_SYS_PTRACE"}, try: func(targets) error {
		_, err := os.Readlink("/proc/1/ns/pid")
		return err
	}},
	{name: "freeze and thaw a cgroup", try: func(v targets) error {
		err := os.WriteFile(v.path(byCgroup, "cgroup.freeze"), []byte("1"), 0)
		return errors.Join(err, os.WriteFile(v.path(byCgroup, "cgroup.freeze"), []byte("0"), 0))
	}},
	{name: "kill another user's process by pidfd", needs: []string{"CAP_KILL"}, try: func(v targets) error {
		pid, err := v.pid(byPidfd)
		if err != nil {
			return err
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}},
	{name: "kill a cgroup and take back the memory", try: func(v targets) error {
		pid, err := v.pid(byCgroup)
		if err != nil {
			return err
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := os.WriteFile(v.path(byCgroup, "cgroup.kill"), []byte("1"), 0); err != nil {
			return err
		}
		// ESRCH: the process has already exited.
		if _, _, errno := unix.Syscall(unix.SYS_PROCESS_MRELEASE, uintptr(fd), 0, 0); errno != 0 && errno != unix.ESRCH {
			return errno
		}
		return nil
	}},
	{name: "look into another user's directory", needs: []string{"CAP_DAC_READ_SEARCH"}, try: func(targets) error {
		_, err := os.ReadDir(privateDir)
		return err
	}},
	{name: "remove the logs of a pod", try: func(targets) error {
		if _, err := os.Stat(podLogs); err != nil {
			return err
		}
		return os.RemoveAll(podLogs)
	}},
	{name: "remove a link to logs", try: func(targets) error { return os.Remove(logLink) }},
	{name: "read meminfo", try: func(targets) error {
		_, err := os.ReadFile("/proc/meminfo")
		return err
	}},
	{name: "arm a pressure trigger with a window of 500 ms", needs: []string{"CAP_SYS_RESOURCE"}, try: func(targets) error {
		fd, err := unix.Open("/proc/pressure/memory", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte("some 250000 500000\x00"))
		return err
	}},
	{name: "set its own oom_score_adj to -999", try: func(targets) error {
		return os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	}},
	{name: "lock its memory, now and later", try: func(targets) error {
		return unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT)
	}},
	{name: "real-time priority 1", try: func(targets) error { return realTime(1) }},
	{name: "real-time priority 2", needs: []string{"CAP_SYS_NICE"}, try: func(targets) error { return realTime(2) }},
	{name: "read the kernel's types", try: func(targets) error {
		_, err := os.ReadFile("/sys/kernel/btf/vmlinux")
		return err
	}},
	{name: "run the sampler in the kernel", needs: []string{"CAP_BPF", "CAP_PERFMON"}, try: func(v targets) error {
		return withRing(func(r *bpf.Ring) (io.Closer, error) {
			s, err := bpf.OpenSampler(r, bpf.Options{})
			if err != nil {
				return nil, err
			}
			dir, err := os.Open(string(v))
			if err != nil {
				return s, err
			}
			defer dir.Close()
			return s, s.SetPods(int(dir.Fd()))
		})
	}},
	{name: "trace reclaim", needs: []string{"CAP_BPF", "CAP_PERFMON"}, try: func(targets) error {
		return withRing(func(r *bpf.Ring) (io.Closer, error) { return bpf.OpenReclaim(r) })
	}},
	{name: "trace the OOM killer", needs: []string{"CAP_BPF", "CAP_PERFMON"}, try: func(targets) error {
		return withRing(func(r *bpf.Ring) (io.Closer, error) { return bpf.OpenOOM(r) })
	}},
	{name: "write its state", try: func(targets) error {
		return os.WriteFile(filepath.Join(os.Getenv("STATE_DIRECTORY"), "probe"), nil, 0o600)
	}},
	{name: "write its runtime directory", try: func(targets) error {
		own, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
		return os.WriteFile(filepath.Join(own, "probe"), nil, 0o600)
	}},
	{name: "change the group of its runtime directory", try: func(targets) error {
		own, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
		return os.Lchown(own, -1, os.Getegid())
	}},
	{name: "write logind's drop-ins", try: func(targets) error {
		path := filepath.Join(logind.DropInDir, "probe")
		return errors.Join(os.WriteFile(path, nil, 0o600), os.Remove(path))
	}},

	{name: "write elsewhere among the logs", never: true, try: func(targets) error {
		return os.WriteFile("/var/log/probe", nil, 0o600)
	}},
	{name: "write its configuration", never: true, try: func(targets) error {
		return os.WriteFile("/etc/evictd/probe", nil, 0o600)
	}},
	{name: "write a program", never: true, try: func(targets) error { return os.WriteFile("/usr/bin/probe", nil, 0o600) }},
	{name: "see the home of root", never: true, try: func(targets) error {
		_, err := os.Stat(homeFile) // an empty directory may be mounted over it
		return err
	}},
	{name: "change a sysctl", never: true, try: func(targets) error {
		const path = "/proc/sys/vm/swappiness"
		b, err := os.ReadFile(path)
		return errors.Join(err, os.WriteFile(path, b, 0))
	}},
	{name: "read the kernel's log", never: true, try: func(targets) error {
		f, err := os.Open("/dev/kmsg")
		if err == nil {
			f.Close()
		}
		return err
	}},
	{name: "mount", never: true, try: func(targets) error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") }},
	{name: "become another user", never: true, try: func(targets) error {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534)
		return failed(errno)
	}},
	{name: "trace a process", never: true, try: func(targets) error {
		// ESRCH comes from the kernel, not from the seccomp filter.
		if err := unix.PtraceSeize(1 << 30); err != unix.ESRCH {
			return err
		}
		return nil
	}},
	{name: "make a user namespace", never: true, try: func(targets) error {
		// EINVAL comes from the kernel, for a process with threads.
		if err := unix.Unshare(unix.CLONE_NEWUSER); err != unix.EINVAL {
			return err
		}
		return nil
	}},
	{name: "map memory that is writable and executable", never: true, try: func(targets) error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		return err
	}},
	{name: "open a packet socket", never: true, try: func(targets) error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}},
	{name: "make a file that is set-user-id", never: true, try: func(targets) error {
		path := filepath.Join(os.Getenv("STATE_DIRECTORY"), "probe")
		return unix.Chmod(path, 0o4700)
	}},
	{name: "set the clock", never: true, try: func(targets) error {
		now := unix.Timeval{}
		if err := unix.Gettimeofday(&now); err != nil {
			return err
		}
		return unix.Settimeofday(&now)
	}},
	{name: "set the host's name", never: true, try: func(targets) error {
		name, err := os.Hostname()
		return errors.Join(err, unix.Sethostname([]byte(name)))
	}},
}

func failed(errno unix.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// realTime sets SCHED_FIFO with a priority for the calling thread, and resets it.
func realTime(priority uint32) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		return err
	}
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
}

// withRing opens BPF programs that write to a ring, and closes both.
func withRing(open func(*bpf.Ring) (io.Closer, error)) error {
	r, err := bpf.OpenRing()
	if err != nil {
		return err
	}
	defer r.Close()
	c, err := open(r)
	if err != nil {
		return err
	}
	return c.Close()
}

// probeMain tries every ability and writes the errors, "" for none, to path as JSON. It returns an exit code.
func probeMain(path string) int {
	runtime.LockOSThread() // namespaces, scheduling and credentials are per thread
	v := targets(os.Getenv("EVICTD_TEST_TARGETS"))
	results := map[string]string{}
	for _, a := range abilities {
		results[a.name] = ""
		if err := a.try(v); err != nil {
			results[a.name] = err.Error()
		}
	}
	b, err := json.Marshal(results)
	if err == nil {
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
