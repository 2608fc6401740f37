package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/tests/hog/stamp"
	"github.com/evictd/evictd/tests/node"
)

// workload describes what a victim does.
type workload struct {
	drop  int64 // bytes from available memory at first to the threshold
	total int64 // bytes that the victim allocates if it is not killed
	// preallocated is the part of both that a second container of the pod has allocated beforehand.
	preallocated int64
	rate         int64 // bytes per second; 0 is as fast as possible
	// processes is the number of helper processes that allocate in the container's cgroup instead of the container's own
	// process; 0 means the container's own.
	processes int
	huge      bool // allocate huge pages
	quota     int  // percent of a CPU; 0 is no quota
}

// victim is a pod that allocates memory on its start signal.
type victim struct {
	workload
	pod       node.Pod
	pids      []int // the first is one that allocates
	pidfds    []int
	stampFile string // file with the time stamps of the container's own process
	helpers   []*helper
	started   time.Duration // CLOCK_MONOTONIC
}

// victim runs a victim, which waits for its start signal.
func (s *testbed) victim(ctx context.Context, name string, sh workload) (_ *victim, err error) {
	v := &victim{workload: sh, stampFile: filepath.Join(s.stampDir, name)}
	grow := node.ContainerSpec{RunAsUser: victimUser}
	if sh.processes == 0 {
		grow.Args = []string{
			"grow", "-bytes", strconv.FormatInt(sh.total-sh.preallocated, 10), "-rate", strconv.FormatInt(sh.rate, 10),
			"-delay", "1h", "-thp=false", "-stamp", "/stamps/" + name,
		}
		grow.Mounts = []node.Mount{{Host: s.stampDir, Container: "/stamps"}}
	}
	spec := node.PodSpec{Name: name, TerminationGracePeriod: time.Second, Containers: []node.ContainerSpec{grow}}
	if sh.preallocated > 0 {
		spec.Containers = append(spec.Containers, node.ContainerSpec{
			Name: "preallocated", RunAsUser: victimUser, Args: []string{"hold", "-thp=false", "-bytes", strconv.FormatInt(sh.preallocated, 10)},
		})
	}
	if v.pod, err = s.node.RunPod(ctx, spec); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("prepare %s: %w", name, err), v.remove(s.node))
		}
	}()
	for range sh.processes {
		a, err := startAllocator(sh.total/int64(sh.processes), sh.huge)
		if err != nil {
			return nil, err
		}
		v.helpers = append(v.helpers, a)
		if err := joinCgroups(a.PID(), v.pod.Containers[0].PID); err != nil {
			return nil, err
		}
		v.pids = append(v.pids, a.PID())
	}
	for _, c := range v.pod.Containers {
		at := len(v.pids)
		if c.Name == "main" && sh.processes == 0 {
			at = 0
		}
		v.pids = slices.Insert(v.pids, at, c.PID)
	}
	if err := v.watch(v.pids...); err != nil {
		return nil, err
	}
	if sh.quota > 0 {
		return v, limitCPU(v.pod.Containers[0].PID, sh.quota)
	}
	return v, nil
}

// watch sets the processes of the victim and opens their pidfds.
func (v *victim) watch(pids ...int) error {
	v.pids = pids
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return fmt.Errorf("open pidfd of process %d: %w", pid, err)
		}
		v.pidfds = append(v.pidfds, fd)
	}
	return nil
}

// awaitPreallocated returns when the last container has preallocated its part.
func (v *victim) awaitPreallocated(ctx context.Context) error {
	if v.preallocated == 0 {
		return nil
	}
	pid := v.pids[len(v.pids)-1]
	for {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: a victim was killed before it had preallocated", errDrift)
		}
		if err != nil {
			return fmt.Errorf("wait until the pod has preallocated: %w", err)
		}
		if kib, err := statusField(status, "RssAnon:"); err == nil && kib<<10 >= v.preallocated {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("wait until the pod has preallocated: %w", err)
		}
	}
}

// alive reports whether all of its processes are running.
func (v *victim) alive() bool { return !v.ended(0) }

// ended waits until one of its processes has exited, and reports whether one has before the timeout.
func (v *victim) ended(patience time.Duration) bool {
	var fds []unix.PollFd
	for _, fd := range v.pidfds {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	n, err := unix.Poll(fds, int(patience.Milliseconds()))
	return err == nil && n > 0
}

// start sends the start signal, and returns when the victim has begun to allocate.
func (v *victim) start(ctx context.Context) error {
	if len(v.helpers) > 0 {
		v.started = stamp.Now()
		for _, a := range v.helpers {
			a.input.Close()
		}
		return nil
	}
	for {
		// Process 1 of a PID namespace ignores the signal until it has installed a handler.
		if err := unix.PidfdSendSignal(v.pidfds[0], unix.SIGUSR1, nil, 0); err != nil {
			return fmt.Errorf("start the victim: %w", err)
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
		times, err := stamp.Read(v.stampFile)
		if err == nil && len(times) > 0 {
			v.started = times[0]
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// kill kills all of its processes that are still running.
func (v *victim) kill() {
	for _, fd := range v.pidfds {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // ESRCH: it has exited already
	}
}

// remove removes the victim, in whatever state it is. It repeats a failed removal: a runtime may fail to stop a container
// whose process exits at the same time.
func (v *victim) remove(n *node.Node) error {
	v.kill()
	ctx, cancel := context.WithTimeout(context.Background(), node.ScaleTimeout(20*time.Second))
	defer cancel()
	for _, a := range v.helpers {
		a.stop(ctx)
	}
	var errs []error
	for _, fd := range v.pidfds {
		errs = append(errs, unix.Close(fd))
	}
	v.pidfds, v.helpers = nil, nil
	if err := os.Remove(v.stampFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for {
		err := n.RemovePod(ctx, v.pod)
		if err == nil || ctx.Err() != nil {
			return errors.Join(append(errs, err)...)
		}
		_ = sleep(ctx, 100*time.Millisecond) // after the timeout the next attempt is the last
	}
}

// cgroupDirs returns the directories of a process's cgroups, by controllers as in /proc/PID/cgroup:
//
//	4:memory:/kubepods/burstable/pod1/2
//	0::/kubepods/burstable/pod1/2
func cgroupDirs(pid int) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	dirs := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok {
			return nil, fmt.Errorf("parse cgroups of process %d: %q", pid, line)
		}
		mount := cgroupMount(string(mounts), controllers)
		if mount == "" {
			return nil, fmt.Errorf("cgroup hierarchy %q is not mounted", controllers)
		}
		dirs[controllers] = filepath.Join(mount, path)
	}
	return dirs, nil
}

// cgroupMount returns the mount point of a hierarchy by /proc/self/mountinfo, or "". Controllers "" mean the unified
// hierarchy:
//
//	36 32 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
func cgroupMount(mountinfo, controllers string) string {
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		at, of := strings.Fields(left), strings.Fields(right)
		if !ok || len(at) < 5 || len(of) < 3 {
			continue
		}
		if controllers == "" && of[0] == "cgroup2" {
			return at[4]
		}
		if of[0] != "cgroup" || controllers == "" {
			continue
		}
		options := strings.Split(of[2], ",")
		if !slices.ContainsFunc(strings.Split(controllers, ","), func(c string) bool { return !slices.Contains(options, c) }) {
			return at[4]
		}
	}
	return ""
}

// joinCgroups moves a process into the cgroups of another, in every hierarchy.
func joinCgroups(pid, where int) error {
	dirs, err := cgroupDirs(where)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("join a container: %w", err)
		}
	}
	return nil
}

// limitCPU sets the CPU quota of a process's cgroup, in percent of a CPU.
func limitCPU(pid, percent int) error {
	dirs, err := cgroupDirs(pid)
	if err != nil {
		return err
	}
	const period = 100_000 // microseconds, the kernel's own
	quota := percent * period / 100
	for controllers, dir := range dirs {
		if slices.Contains(strings.Split(controllers, ","), "cpu") {
			return os.WriteFile(filepath.Join(dir, "cpu.cfs_quota_us"), []byte(strconv.Itoa(quota)), 0)
		}
	}
	return os.WriteFile(filepath.Join(dirs[""], "cpu.max"), fmt.Appendf(nil, "%d %d", quota, period), 0)
}
