package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/pids"
	"github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/hog/stamp"
	"github.com/evictd/evictd/tests/node"
)

const (
	// bombRoom is how many tasks the pod of a fork bomb may have, and bombMiddle where the threshold lies.
	bombRoom   = 10_000
	bombMiddle = bombRoom / 2
	// kubeletPeriod is how often the kubelet looks at pid.available.
	kubeletPeriod = 10 * time.Second
	// calmTasks is how many more tasks than before there may be when a bomb is over.
	calmTasks = 100
)

// justBefore is how late the witness may be.
const justBefore = 5 * time.Millisecond

// bombConfig has one threshold, on tasks.
const bombConfig = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard:
  pid.available: "%d"
%s`

// defuser ends fork bombs. start has it watch for less than some tasks left, and returns what ends it.
type defuser struct {
	name   string
	period time.Duration // the cue comes at any point of it
	start  func(ctx context.Context, s *stage, threshold int64, pod node.Pod) (stop func() error, err error)
}

// byEvictd is evictd with modes of its lanes.
func byEvictd(name string, modes map[string]string) defuser {
	e := &withEvictd{title: name, lanes: modes}
	return defuser{name, time.Second, func(ctx context.Context, s *stage, threshold int64, _ node.Pod) (func() error, error) {
		dir, err := os.MkdirTemp(s.dir, "b")
		if err != nil {
			return nil, err
		}
		config := fmt.Sprintf(bombConfig, s.node.Endpoint(), s.node.CgroupRoot(), threshold, e.notification())
		d, err := daemon.Start(daemon.Options{Executable: s.executable, Dir: dir, Config: config})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, crossingTime, fmt.Errorf("it does not watch after %v", crossingTime))
		defer cancel()
		status, err := d.Await(ctx, func(st *control.Status) bool {
			return st.Pods.Eligible == 1 && !st.Mode.DryRun && e.listens(st) && st.Signals[signal.PIDAvailable].Capacity != nil
		})
		if err != nil {
			return nil, errors.Join(err, d.Stop())
		}
		s.version = status.Version
		return func() error { return d.Terminate(backTime) }, nil
	}}
}

// byPoller looks once in a while, as the kubelet does, and kills everything in the pod when it is too late.
func byPoller(period time.Duration) defuser {
	return defuser{fmt.Sprintf("a look every %v", period), period, func(_ context.Context, s *stage, threshold int64, pod node.Pod) (func() error, error) {
		dirs, err := cgroupDirs(pod.Containers[0].PID)
		if err != nil {
			return nil, err
		}
		dir, ok := dirs["pids"]
		if !ok {
			dir = dirs[""]
		}
		a, err := startActor("poller", "-period", period.String(), "-threshold", strconv.FormatInt(threshold, 10), "-cgroup", dir)
		if err != nil {
			return nil, err
		}
		return func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			a.stop(ctx)
			return nil
		}, nil
	}}
}

// actPoller is the process of byPoller.
func actPoller(args []string, _ io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("poller", flag.ContinueOnError)
	period := flags.Duration("period", 0, "")
	threshold := flags.Int64("threshold", 0, "")
	dir := flags.String("cgroup", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := ready(out); err != nil {
		return err
	}
	for {
		n, err := pids.ReadNode(kernel.FS("/proc"))
		if err != nil {
			return err
		}
		if int64(n.Max)-int64(n.Tasks) < *threshold {
			return killAll(*dir)
		}
		time.Sleep(*period)
	}
}

// killAll kills what is in a cgroup until nobody is.
func killAll(dir string) error {
	for {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		all := strings.Fields(string(text))
		if len(all) == 0 {
			return nil
		}
		for _, field := range all {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			if pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have gone
			}
		}
	}
}

// bombs are fork bombs under one defuser. The lists have one value for each that it ended.
type bombs struct {
	origin
	Contender string `json:"contender"`
	// Killed is from the crossing to the first SIGKILL, Gone from the crossing until the tasks are gone: microseconds.
	Killed []int64 `json:"killedMicroseconds"`
	Gone   []int64 `json:"goneMicroseconds"`
	// Left is how many tasks the pod could still have begun when there were most, of Room.
	Left []int64 `json:"left"`
	Room int64   `json:"room"`
	// Rate is the median of forks a second until the crossing, Nobody counts those that went on for too long.
	Rate   int64 `json:"forksPerSecond"`
	Nobody int   `json:"nobody"`

	rates []int64
}

// forkBombs are fork bombs under evictd, with the kernel's count of forks and without, and under what looks as often as
// the kubelet.
func forkBombs(ctx context.Context, s *stage) error {
	alone := make(map[string]string)
	for _, l := range lanes.Names() {
		if l != lanes.Polling {
			alone[l] = "off"
		}
	}
	defusers := []defuser{byEvictd(allLanes, nil), byEvictd(pollAlone, alone), byPoller(kubeletPeriod)}
	all := make([]*bombs, len(defusers))
	for i, d := range defusers {
		all[i] = &bombs{origin: s.origin(), Contender: d.name, Room: bombRoom}
	}
	fmt.Fprintf(s.out, "\nFork bombs, %d tasks at most, threshold after %d:\n", bombRoom, bombMiddle)
	var errs []error
	for n := range s.bombs {
		for i := range defusers {
			at := (n + i) % len(defusers)
			if err := s.bomb(ctx, defusers[at], all[at]); err != nil {
				errs = append(errs, fmt.Errorf("fork bomb %d under %s: %w", n+1, defusers[at].name, err))
			}
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	for _, b := range all {
		if len(b.Killed)+b.Nobody == 0 {
			continue
		}
		b.Version = s.version
		errs = append(errs, s.book.add(result{Bombs: b}))
	}
	_, err := fmt.Fprint(s.out, bombTable(all).text())
	return errors.Join(append(errs, err)...)
}

// bomb sets one off.
func (s *stage) bomb(ctx context.Context, d defuser, b *bombs) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*crossingTime, fmt.Errorf("not over after %v", 2*crossingTime))
	defer cancel()
	s.made.Add(1)
	pod, err := s.node.RunPod(ctx, node.PodSpec{
		Name: fmt.Sprintf("bomb-%04d", s.made.Load()), PIDLimit: bombRoom, TerminationGracePeriod: time.Second,
		Containers: []node.ContainerSpec{{Args: []string{"bomb", "-forks", "-bytes", "4096", "-delay", "1h"}}},
	})
	if err != nil {
		return err
	}
	v := &victim{pod: pod}
	defer func() { err = errors.Join(err, v.remove(s.node)) }()
	if err := v.watch(pod.Containers[0].PID); err != nil {
		return err
	}
	before, err := pids.ReadNode(kernel.FS("/proc"))
	if err != nil {
		return err
	}
	threshold := int64(before.Max) - int64(before.Tasks) - bombMiddle
	if threshold <= bombMiddle {
		return fmt.Errorf("the machine can have %d tasks and has %d; a bomb needs more", before.Max, before.Tasks)
	}
	stop, err := d.start(ctx, s, threshold, pod)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := sleep(ctx, s.rest/4+rand.N(d.period)); err != nil {
		return err
	}
	if err := s.kills.clear(); err != nil {
		return err
	}
	limit := int64(before.Max) - threshold
	if before, err = pids.ReadNode(kernel.FS("/proc")); err != nil { // with the defuser's own
		return err
	}
	w := watchTasks(limit, calmTasks+int64(before.Tasks))
	nobody, err := s.awaitBomb(ctx, v, w)
	seen := w.testify()
	if err := errors.Join(err, seen.err); err != nil {
		return err
	}
	kills, err := s.kills.kills()
	if err != nil {
		return err
	}
	// Pids say little of whose a process was, as a bomb goes through all there are. One killed just before the crossing, as
	// the witness saw it, counts with its negative time; what was killed long before was not for it.
	first := slices.IndexFunc(kills, func(k kill) bool { return !k.kernel && k.at >= seen.crossed-justBefore })
	if nobody || seen.crossed == 0 || first < 0 {
		b.Nobody++
		return nil
	}
	b.Killed = append(b.Killed, microseconds(kills[first].at-seen.crossed))
	b.Gone = append(b.Gone, microseconds(seen.gone-seen.crossed))
	b.Left = append(b.Left, int64(before.Tasks)+bombRoom-seen.most)
	if took := (seen.crossed - seen.began).Seconds(); took > 0 {
		b.rates = append(b.rates, int64((bombMiddle-calmTasks)/took))
		b.Rate = median(b.rates)
	}
	if s.verbose {
		fmt.Fprintf(s.out, "  %s: killed after %s, gone after %s, %d left\n", d.name, milliseconds(b.Killed[len(b.Killed)-1]),
			milliseconds(b.Gone[len(b.Gone)-1]), b.Left[len(b.Left)-1])
	}
	return nil
}

// awaitBomb gives a bomb its cue and returns when it is over; nobody tells that it had to be ended.
func (s *stage) awaitBomb(ctx context.Context, v *victim, w *taskWitness) (nobody bool, err error) {
	for !w.rises.Load() {
		// Before the hog listens, the signal has no effect on process 1 of a pid namespace.
		if err := unix.PidfdSendSignal(v.pidfds[0], unix.SIGUSR1, nil, 0); err != nil {
			return false, fmt.Errorf("wake the bomb: %w", err)
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return false, err
		}
	}
	for end := time.Now().Add(crossingTime); !w.over.Load(); {
		if time.Now().After(end) || ctx.Err() != nil {
			v.kill() // with process 1 goes its whole pid namespace
			return true, sleep(ctx, time.Second)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false, nil
}

// taskWitness counts the machine's tasks on a thread of its own, apart from the contenders.
type taskWitness struct {
	limit, calm int64 // tasks above which the threshold is crossed, and below which the bomb is over

	done, rises, over atomic.Bool
	end               chan taskTestimony
}

// taskTestimony is what it saw; times are of CLOCK_MONOTONIC, and zero for what was not seen.
type taskTestimony struct {
	began, crossed, gone time.Duration
	most                 int64
	err                  error
}

func watchTasks(limit, calm int64) *taskWitness {
	w := &taskWitness{limit: limit, calm: calm, end: make(chan taskTestimony, 1)}
	go func() {
		// Not unlocked again: the thread's priority dies with it.
		runtime.LockOSThread()
		if _, err := process.SetFIFO(witnessPriority); err != nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // without either it sees less
		}
		w.end <- w.sample()
	}()
	return w
}

// testify ends the sampling and returns what was seen.
func (w *taskWitness) testify() taskTestimony {
	w.done.Store(true)
	return <-w.end
}

func (w *taskWitness) sample() (t taskTestimony) {
	pause := unix.NsecToTimespec(int64(samplePause))
	for !w.done.Load() {
		_ = unix.Nanosleep(&pause, nil) // cut short, the sample is only early
		n, err := pids.ReadNode(kernel.FS("/proc"))
		if err != nil {
			t.err = err
			return t
		}
		tasks, now := int64(n.Tasks), stamp.Now()
		t.most = max(t.most, tasks)
		if tasks > w.calm && t.began == 0 {
			t.began = now
			w.rises.Store(true)
		}
		if tasks > w.limit && t.crossed == 0 {
			t.crossed = now
		}
		if tasks <= w.calm && t.crossed != 0 && t.gone == 0 {
			t.gone = now
			w.over.Store(true)
		}
	}
	return t
}

// bombsAbout says in the document what was done.
var bombsAbout = fmt.Sprintf("Processes that do nothing but fork, in a pod that may have %d tasks; the threshold on pid.available is crossed by half "+
	"of that. The kubelet looks every %v; here whoever looks then kills all at once, and asks no runtime; it has no real-time priority, "+
	"which the kubelet has not either.", bombRoom, kubeletPeriod)

// bombTable has a row per contender.
func bombTable(all []*bombs) *table {
	t := &table{head: []string{
		"", "n", "tasks left at the least: median", "fewest", "crossing → SIGKILL: median", "max", "all gone: median", "max", "never ended", "forks a second",
	}}
	for _, b := range all {
		n := fmt.Sprint(len(b.Killed) + b.Nobody)
		if len(b.Killed) == 0 {
			t.add(b.Contender, n, "–", "–", "–", "–", "–", "–", fmt.Sprint(b.Nobody), "–")
			continue
		}
		t.add(b.Contender, n, fmt.Sprint(median(b.Left)), fmt.Sprint(quantile(b.Left, 0)),
			milliseconds(median(b.Killed)), milliseconds(quantile(b.Killed, 1)), milliseconds(median(b.Gone)), milliseconds(quantile(b.Gone, 1)),
			fmt.Sprint(b.Nobody), fmt.Sprint(b.Rate))
	}
	return t
}
