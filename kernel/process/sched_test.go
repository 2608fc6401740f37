package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/kerneltest"
)

// TestChild is the body of a process that other tests start, for changes that a
// process can't undo or may not survive.
func TestChild(t *testing.T) {
	body, ok := children[os.Getenv("EVICTD_TEST_CHILD")]
	if !ok {
		return // not started by another test
	}
	body()
	fmt.Println("done")
	os.Exit(0)
}

var children = map[string]func(){
	"fifo":              childFIFO,
	"fifo unprivileged": childUnprivileged,
	"fifo cgroup":       childCgroup,
	"nice":              childNice,
	"session nice":      childSessionNice,
	"runaway":           childRunaway,
	"lock then grow":    childLockThenGrow,
	"drop, lock, grow":  childDropLockGrow,
	"lock, drop, grow":  childLockDropGrow,
	"zero limit":        childZeroLimit,
	"infinite limit":    childInfinite,
}

// child runs one of children and returns its output and its exit error.
func child(t *testing.T, name string, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestChild$")
	cmd.Env = append(append(os.Environ(), "EVICTD_TEST_CHILD="+name), env...)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s: not within a minute: %s", name, first(string(out), 20))
	}
	return string(out), err
}

// succeeds runs a child whose output ends with "done".
func succeeds(t *testing.T, name string, env ...string) {
	t.Helper()
	out, err := child(t, name, env...)
	skipped(t, out)
	if err != nil || !strings.HasSuffix(out, "done\n") {
		t.Errorf("%s: %v\n%s", name, err, first(out, 20))
		return
	}
	if rest := strings.TrimSuffix(out, "done\n"); rest != "" {
		t.Log(strings.TrimSpace(rest))
	}
}

// skipped skips the test if the child called skip.
func skipped(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if missing, ok := strings.CutPrefix(line, "skip: "); ok {
			t.Skip(strings.TrimSpace(missing))
		}
	}
}

func first(out string, lines int) string {
	split := strings.SplitAfterN(out, "\n", lines+1)
	return strings.Join(split[:min(lines, len(split))], "")
}

// must ends a child if err is not nil.
func must(err error) {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}

func check(ok bool, format string, args ...any) {
	if !ok {
		must(fmt.Errorf(format, args...))
	}
}

func skip(format string, args ...any) {
	fmt.Printf("skip: "+format+"\n", args...)
	os.Exit(0)
}

// dropCapabilities drops all capabilities of all threads.
func dropCapabilities() {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := allThreads(unix.SYS_CAPSET, &header, &none)
	if errno == syscall.ENOTSUP {
		skip("needs CGO_ENABLED=0: capabilities are dropped on all threads")
	}
	if errno != 0 {
		must(errno)
	}
}

func childFIFO() {
	runtime.LockOSThread()
	before, err := ThreadScheduling()
	must(err)
	probe := ProbeFIFO(7)
	after, err := ThreadScheduling()
	must(err)
	check(before == after, "ProbeFIFO(7) left %+v; want %+v", after, before)
	got, err := SetFIFO(7)
	check((err == nil) == (probe == nil), "ProbeFIFO(7) = %v, and SetFIFO(7) = %v", probe, err)
	if errors.Is(err, ErrNoRealTime) || errors.Is(err, unix.EPERM) {
		skip("needs CAP_SYS_NICE, and a cpu cgroup with real-time runtime: %v", err)
	}
	must(err)
	want := Scheduling{Policy: FIFO, Priority: 7, ResetOnFork: true}
	check(got == want, "SetFIFO(7) = %+v; want %+v", got, want)
	// Processes and threads started from here have normal scheduling.
	out, err := exec.Command("/proc/self/exe", "-test.run=^$").CombinedOutput()
	check(err == nil, "process of a real-time thread: %v: %s", err, out)
	other := make(chan Scheduling)
	go func() {
		runtime.LockOSThread()
		s, err := ThreadScheduling()
		must(err)
		other <- s
	}()
	s := <-other
	check(s.Policy == Normal, "another thread is %+v; want it normal", s)
}

func TestSetFIFO(t *testing.T) {
	succeeds(t, "fifo")
	for _, priority := range []int{-1, 0, 100} {
		if got, err := SetFIFO(priority); err == nil {
			t.Errorf("SetFIFO(%d) = %+v; want an error", priority, got)
		}
	}
}

func childUnprivileged() {
	dropCapabilities()
	must(unix.Setrlimit(unix.RLIMIT_RTPRIO, &unix.Rlimit{}))
	runtime.LockOSThread()
	got, err := SetFIFO(7)
	check(errors.Is(err, unix.EPERM) && !errors.Is(err, ErrNoRealTime), "SetFIFO() = %+v, %v; want EPERM without ErrNoRealTime", got, err)
	probe := ProbeFIFO(7)
	check(errors.Is(probe, unix.EPERM), "ProbeFIFO() = %v; want EPERM", probe)
	fmt.Println(err)
}

func TestSetFIFOUnprivileged(t *testing.T) { succeeds(t, "fifo unprivileged") }

func childCgroup() {
	runtime.LockOSThread()
	dir := os.Getenv("EVICTD_TEST_CGROUP")
	must(os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0))
	got, err := SetFIFO(7)
	check(errors.Is(err, ErrNoRealTime) && errors.Is(err, unix.EPERM), "SetFIFO() in %s = %+v, %v; want ErrNoRealTime", dir, got, err)
	fmt.Println(err)
}

// A new cpu cgroup has no real-time runtime.
func TestSetFIFOInCgroup(t *testing.T) {
	const cpu = "/sys/fs/cgroup/cpu"
	dir := cpu + kerneltest.Cgroup(t, cpu)
	if _, err := os.Stat(dir + "/cpu.rt_runtime_us"); err != nil {
		t.Skip("needs a kernel with CONFIG_RT_GROUP_SCHED: ", err)
	}
	succeeds(t, "fifo cgroup", "EVICTD_TEST_CGROUP="+dir)
}

func childNice() {
	err := SetNice(5)
	if errors.Is(err, kernel.ErrUnavailable) {
		skip("needs CGO_ENABLED=0: %v", err)
	}
	must(err)
	tasks, err := os.ReadDir("/proc/self/task")
	must(err)
	check(len(tasks) > 1, "%d threads; want more than one", len(tasks))
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		must(err)
		attr, err := unix.SchedGetAttr(tid, 0)
		must(err)
		check(attr.Nice == 5, "thread %d has nice value %d; want 5", tid, attr.Nice)
	}
	// Threads that are started later inherit the value.
	seen, done := make(chan int), make(chan struct{})
	for range 20 { // more than the existing threads, so that new ones start
		go func() {
			runtime.LockOSThread()
			s, err := ThreadScheduling()
			must(err)
			seen <- s.Nice
			<-done
		}()
	}
	for range 20 {
		nice := <-seen
		check(nice == 5, "a later thread has nice value %d; want 5", nice)
	}
	close(done)
	dropCapabilities()
	must(unix.Setrlimit(unix.RLIMIT_NICE, &unix.Rlimit{}))
	err = SetNice(-5)
	check(errors.Is(err, unix.EACCES), "SetNice(-5) without CAP_SYS_NICE = %v; want EACCES", err)
}

func TestSetNice(t *testing.T) {
	succeeds(t, "nice")
	for _, nice := range []int{-21, 20} {
		if err := SetNice(nice); err == nil {
			t.Errorf("SetNice(%d) = nil; want an error", nice)
		}
	}
}

// childRunaway never blocks: the kernel sends SIGXCPU and then SIGKILL.
func childRunaway() {
	limit := RTTimeLimit{Soft: 100 * time.Millisecond, Hard: 300 * time.Millisecond}
	got, err := SetRTTimeLimit(limit)
	must(err)
	check(got == limit, "SetRTTimeLimit(%v) = %v", limit, got)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGXCPU)
	go func() { // runs if another CPU is free
		<-signals
		fmt.Println("SIGXCPU")
	}()
	runtime.LockOSThread()
	if _, err := SetFIFO(1); err != nil {
		skip("needs real-time priority: %v", err)
	}
	for spins = 0; spins < 1<<36; spins++ { // no preemption point
	}
}

var spins int

func TestRTTimeLimit(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs a second CPU: a real-time thread occupies one for 300 ms")
	}
	start := time.Now()
	out, err := child(t, "runaway", "GODEBUG=asyncpreemptoff=1") // otherwise the runtime preempts it
	skipped(t, out)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("a real-time thread that never blocks: %v, %q; want it killed", err, out)
	}
	t.Logf("killed after %v, output %q", time.Since(start), out)
}

func TestSetRTTimeLimitRefused(t *testing.T) {
	before, err := ReadRTTimeLimit()
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []RTTimeLimit{{}, {Soft: -1, Hard: time.Second}, {Soft: 2 * time.Second, Hard: time.Second}, {Soft: Unlimited, Hard: time.Second}} {
		if got, err := SetRTTimeLimit(limit); err == nil {
			t.Errorf("SetRTTimeLimit(%v) = %v; want an error", limit, got)
		}
	}
	if after, err := ReadRTTimeLimit(); after != before || err != nil {
		t.Errorf("limit after invalid calls = %v, %v; want %v", after, err, before)
	}
}

func TestMicroseconds(t *testing.T) {
	for us, want := range map[uint64]time.Duration{0: 0, 1: time.Microsecond, 200000: 200 * time.Millisecond, unix.RLIM_INFINITY: Unlimited, 1 << 62: Unlimited} {
		if got := fromMicroseconds(us); got != want {
			t.Errorf("fromMicroseconds(%d) = %v; want %v", us, got, want)
		}
	}
	for d, want := range map[time.Duration]uint64{1: 1, time.Millisecond: 1000, Unlimited: unix.RLIM_INFINITY} {
		if got := toMicroseconds(d); got != want {
			t.Errorf("toMicroseconds(%v) = %d; want %d", d, got, want)
		}
	}
}
