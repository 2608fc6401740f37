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

// shape is what a victim does.
type shape struct {
	drop  int64 // from what is available at first to the threshold, bytes
	takes int64 // in all, if nobody stops it
	// held is the part of both that a second container of the pod has taken before.
	held int64
	rate int64 // bytes a second; 0 is as fast as possible
	// processes allocate instead of the container's own, in its cgroup; 0 is the container's own.
	processes int
	huge      bool // pages
	quota     int  // percent of a processor; 0 is no quota
}

// victim is a pod that takes memory on its cue.
type victim struct {
	shape
	pod    node.Pod
	pids   []int // the one that takes is the first
	pidfds []int
	stamps string // the marks of the container's own process
	actors []*actor
	cued   time.Duration // CLOCK_MONOTONIC
}

// victim runs one, which waits for its cue.
func (s *stage) victim(ctx context.Context, name string, sh shape) (_ *victim, err error) {
	v := &victim{shape: sh, stamps: filepath.Join(s.stamps, name)}
	grow := node.ContainerSpec{RunAsUser: hogUser}
	if sh.processes == 0 {
		grow.Args = []string{
			"grow", "-bytes", strconv.FormatInt(sh.takes-sh.held, 10), "-rate", strconv.FormatInt(sh.rate, 10),
			"-delay", "1h", "-thp=false", "-stamp", "/stamps/" + name,
		}
		grow.Mounts = []node.Mount{{Host: s.stamps, Container: "/stamps"}}
	}
	spec := node.PodSpec{Name: name, TerminationGracePeriod: time.Second, Containers: []node.ContainerSpec{grow}}
	if sh.held > 0 {
		spec.Containers = append(spec.Containers, node.ContainerSpec{
			Name: "held", RunAsUser: hogUser, Args: []string{"hold", "-thp=false", "-bytes", strconv.FormatInt(sh.held, 10)},
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
		a, err := allocator(sh.takes/int64(sh.processes), sh.huge)
		if err != nil {
			return nil, err
		}
		v.actors = append(v.actors, a)
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

// watch has the processes be those that it goes by.
func (v *victim) watch(pids ...int) error {
	v.pids = pids
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return fmt.Errorf("hold process %d: %w", pid, err)
		}
		v.pidfds = append(v.pidfds, fd)
	}
	return nil
}

// awaitHeld returns when the last container holds what it is to.
func (v *victim) awaitHeld(ctx context.Context) error {
	if v.held == 0 {
		return nil
	}
	pid := v.pids[len(v.pids)-1]
	for {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: a victim was killed before it held its part", errMoved)
		}
		if err != nil {
			return fmt.Errorf("wait for what the pod holds: %w", err)
		}
		if kib, err := statusField(status, "RssAnon:"); err == nil && kib<<10 >= v.held {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return fmt.Errorf("wait for what the pod holds: %w", err)
		}
	}
}

// alive says whether none of its processes has ended.
func (v *victim) alive() bool { return !v.ended(0) }

// ended waits for the end of one of its processes.
func (v *victim) ended(patience time.Duration) bool {
	var fds []unix.PollFd
	for _, fd := range v.pidfds {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	n, err := unix.Poll(fds, int(patience.Milliseconds()))
	return err == nil && n > 0
}

// cue has it begin, and returns once it has.
func (v *victim) cue(ctx context.Context) error {
	if len(v.actors) > 0 {
		v.cued = stamp.Now()
		for _, a := range v.actors {
			a.cue.Close()
		}
		return nil
	}
	for {
		// Before the hog listens, the signal has no effect on process 1 of a pid namespace.
		if err := unix.PidfdSendSignal(v.pidfds[0], unix.SIGUSR1, nil, 0); err != nil {
			return fmt.Errorf("wake the hog: %w", err)
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
		marks, err := stamp.Read(v.stamps)
		if err == nil && len(marks) > 0 {
			v.cued = marks[0]
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// kill ends all of its processes that are left.
func (v *victim) kill() {
	for _, fd := range v.pidfds {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // dead already, at worst
	}
}

// remove removes it, also after its crossing failed. A runtime that is asked to stop a container in the moment of its
// death may answer with an error, and do it when asked again.
func (v *victim) remove(n *node.Node) error {
	v.kill()
	ctx, cancel := context.WithTimeout(context.Background(), node.Slow(20*time.Second))
	defer cancel()
	for _, a := range v.actors {
		a.stop(ctx)
	}
	var errs []error
	for _, fd := range v.pidfds {
		errs = append(errs, unix.Close(fd))
	}
	v.pidfds, v.actors = nil, nil
	if err := os.Remove(v.stamps); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for {
		err := n.RemovePod(ctx, v.pod)
		if err == nil || ctx.Err() != nil {
			return errors.Join(append(errs, err)...)
		}
		_ = sleep(ctx, 100*time.Millisecond) // too late, the next turn is the last
	}
}

// cgroupDirs are the directories of a process's cgroups, by controllers as /proc/PID/cgroup writes them:
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

// cgroupMount finds where a hierarchy is mounted, by lines of /proc/self/mountinfo; "" is the unified one:
//
//	36 32 0:29 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
func cgroupMount(mountinfo, controllers string) string {
	for line := range strings.Lines(mountinfo) {
		place, what, ok := strings.Cut(line, " - ")
		at, of := strings.Fields(place), strings.Fields(what)
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

// joinCgroups puts a process where another is, in every hierarchy.
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

// limitCPU gives a process's cgroup a quota, in percent of a processor.
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
