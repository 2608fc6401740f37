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

	"github.com/evictd/evictd/tests/trace"
)

const (
	// bombRoom is the PID limit of a fork bomb's pod. The threshold is crossed after bombThreshold tasks.
	bombRoom      = 10_000
	bombThreshold = bombRoom / 2
	// A bomb is over when there are at most bombOverTasks more tasks than before.
	bombOverTasks = 100
)

// earlyKillWindow is how long before the sampled crossing a SIGKILL may be to count as an answer to it: the sampler may
// be that late.
const earlyKillWindow = 5 * time.Millisecond

// bombConfig has only a threshold on pid.available.
const bombConfig = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard:
  pid.available: "%d"
%s`

// bombContender ends fork bombs.
type bombContender struct {
	name   string
	period time.Duration // the start signal comes at a random point of it
	// start runs the contender, which acts when fewer tasks than the threshold are left. It returns when the contender
	// watches, with a function that stops it.
	start func(ctx context.Context, s *testbed, threshold int64, pod node.Pod) (stop func() error, err error)
}

// evictdBombContender returns evictd with modes of its lanes.
func evictdBombContender(name string, modes map[string]string) bombContender {
	e := &evictdContender{title: name, lanes: modes}
	return bombContender{name, time.Second, func(ctx context.Context, s *testbed, threshold int64, _ node.Pod) (func() error, error) {
		dir, err := os.MkdirTemp(s.dir, "b")
		if err != nil {
			return nil, err
		}
		config := fmt.Sprintf(bombConfig, s.node.Endpoint(), s.node.CgroupRoot(), threshold, e.notification())
		d, err := daemon.Start(daemon.Options{Executable: s.executable, Dir: dir, Config: config})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, crossingTimeout, fmt.Errorf("not ready after %v", crossingTimeout))
		defer cancel()
		status, err := d.Await(ctx, func(st *control.Status) bool {
			return st.Pods.Eligible == 1 && !st.Mode.DryRun && e.lanesUp(st) && st.Signals[signal.PIDAvailable].Capacity != nil
		})
		if err != nil {
			return nil, errors.Join(err, d.Stop())
		}
		s.version = status.Version
		return func() error { return d.Terminate(recoveryTimeout) }, nil
	}}
}

// pollerBombContender returns a process that polls at an interval, as the kubelet does, and kills all processes of the pod
// at once when the threshold is crossed.
func pollerBombContender(period time.Duration) bombContender {
	return bombContender{fmt.Sprintf("a look every %v", period), period, func(_ context.Context, s *testbed, threshold int64, pod node.Pod) (func() error, error) {
		dirs, err := cgroupDirs(pod.Containers[0].PID)
		if err != nil {
			return nil, err
		}
		dir, ok := dirs["pids"]
		if !ok {
			dir = dirs[""]
		}
		a, err := startHelper("poller", "-period", period.String(), "-threshold", strconv.FormatInt(threshold, 10), "-cgroup", dir)
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

// runPoller is the helper of pollerBombContender.
func runPoller(args []string, _ io.Reader, out io.Writer) error {
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

// killAll kills the processes of a cgroup until none is left.
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
				_ = unix.Kill(pid, unix.SIGKILL) // it may have exited
			}
		}
	}
}

// bombs are the results of fork bombs under one contender. The lists have one value for each bomb that it ended.
type bombs struct {
	origin
	Contender string `json:"contender"`
	// Killed is the time from the crossing to the first SIGKILL, Gone that until the tasks are gone, in microseconds.
	Killed []int64 `json:"killedMicroseconds"`
	Gone   []int64 `json:"goneMicroseconds"`
	// Left is the least number of tasks that the pod could still create, of Room.
	Left []int64 `json:"left"`
	Room int64   `json:"room"`
	// Rate is the median of forks a second until the crossing. NotEnded counts bombs that the contender did not end.
	Rate     int64 `json:"forksPerSecond"`
	NotEnded int   `json:"nobody"`

	rates []int64
}

// forkBombs is the step bombs: fork bombs under evictd with and without the BPF count of forks, and under a process that
// polls as often as the kubelet.
func forkBombs(ctx context.Context, s *testbed) error {
	alone := make(map[string]string)
	for _, l := range lanes.Names() {
		if l != lanes.Polling {
			alone[l] = "off"
		}
	}
	contenders := []bombContender{evictdBombContender(allLanes, nil), evictdBombContender(pollAlone, alone), pollerBombContender(signal.KubeletInterval)}
	all := make([]*bombs, len(contenders))
	for i, d := range contenders {
		all[i] = &bombs{origin: s.origin(), Contender: d.name, Room: bombRoom}
	}
	fmt.Fprintf(s.out, "\nFork bombs, %d tasks at most, threshold after %d:\n", bombRoom, bombThreshold)
	var errs []error
	for n := range s.bombs {
		for i := range contenders {
			at := (n + i) % len(contenders)
			if err := s.bomb(ctx, contenders[at], all[at]); err != nil {
				errs = append(errs, fmt.Errorf("fork bomb %d under %s: %w", n+1, contenders[at].name, err))
			}
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
	}
	for _, b := range all {
		if len(b.Killed)+b.NotEnded == 0 {
			continue
		}
		b.Version = s.version
		errs = append(errs, s.results.add(result{Bombs: b}))
	}
	_, err := fmt.Fprint(s.out, bombTable(all).text())
	return errors.Join(append(errs, err)...)
}

// bomb runs one fork bomb under a contender and adds the result.
func (s *testbed) bomb(ctx context.Context, d bombContender, b *bombs) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*crossingTimeout, fmt.Errorf("not over after %v", 2*crossingTimeout))
	defer cancel()
	s.podCount.Add(1)
	pod, err := s.node.RunPod(ctx, node.PodSpec{
		Name: fmt.Sprintf("bomb-%04d", s.podCount.Load()), PIDLimit: bombRoom, TerminationGracePeriod: time.Second,
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
	threshold := int64(before.Max) - int64(before.Tasks) - bombThreshold
	if threshold <= bombThreshold {
		return fmt.Errorf("the machine's limit is %d tasks and it has %d; a bomb needs more room", before.Max, before.Tasks)
	}
	stop, err := d.start(ctx, s, threshold, pod)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := sleep(ctx, s.startDelay/4+rand.N(d.period)); err != nil {
		return err
	}
	if err := s.kills.Clear(); err != nil {
		return err
	}
	limit := int64(before.Max) - threshold
	if before, err = pids.ReadNode(kernel.FS("/proc")); err != nil { // including the contender's tasks
		return err
	}
	w := watchTasks(limit, bombOverTasks+int64(before.Tasks))
	notEnded, err := s.awaitBomb(ctx, v, w)
	seen := w.stop()
	if err := errors.Join(err, seen.err); err != nil {
		return err
	}
	kills, err := s.kills.Kills()
	if err != nil {
		return err
	}
	// The kill can't be found by PID, since a bomb uses all of them. A SIGKILL shortly before the sampled crossing counts
	// with its negative time; an earlier one was not for the bomb.
	first := slices.IndexFunc(kills, func(k trace.Kill) bool { return !k.Kernel && k.At >= seen.crossed-earlyKillWindow })
	if notEnded || seen.crossed == 0 || first < 0 {
		b.NotEnded++
		return nil
	}
	b.Killed = append(b.Killed, microseconds(kills[first].At-seen.crossed))
	b.Gone = append(b.Gone, microseconds(seen.gone-seen.crossed))
	b.Left = append(b.Left, int64(before.Tasks)+bombRoom-seen.most)
	if took := (seen.crossed - seen.began).Seconds(); took > 0 {
		b.rates = append(b.rates, int64((bombThreshold-bombOverTasks)/took))
		b.Rate = median(b.rates)
	}
	if s.verbose {
		fmt.Fprintf(s.out, "  %s: killed after %s, gone after %s, %d left\n", d.name, milliseconds(b.Killed[len(b.Killed)-1]),
			milliseconds(b.Gone[len(b.Gone)-1]), b.Left[len(b.Left)-1])
	}
	return nil
}

// awaitBomb sends a bomb its start signal and returns when it is over. notEnded reports that the contender did not end it,
// so that awaitBomb did.
func (s *testbed) awaitBomb(ctx context.Context, v *victim, w *taskSampler) (notEnded bool, err error) {
	for !w.rises.Load() {
		// Process 1 of a PID namespace ignores the signal until it has installed a handler.
		if err := unix.PidfdSendSignal(v.pidfds[0], unix.SIGUSR1, nil, 0); err != nil {
			return false, fmt.Errorf("start the bomb: %w", err)
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return false, err
		}
	}
	for end := time.Now().Add(crossingTimeout); !w.over.Load(); {
		if time.Now().After(end) || ctx.Err() != nil {
			v.kill() // the kernel kills the whole PID namespace with its process 1
			return true, sleep(ctx, time.Second)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return false, nil
}

// taskSampler counts the machine's tasks on a separate thread.
type taskSampler struct {
	limit, bombOver int64 // numbers of tasks above which the threshold is crossed, and at which the bomb is over

	done, rises, over atomic.Bool
	end               chan taskSamplerResult
}

// taskSamplerResult is the result of a taskSampler. Times are of CLOCK_MONOTONIC, and zero for events that did not occur.
type taskSamplerResult struct {
	began, crossed, gone time.Duration
	most                 int64
	err                  error
}

func watchTasks(limit, bombOver int64) *taskSampler {
	w := &taskSampler{limit: limit, bombOver: bombOver, end: make(chan taskSamplerResult, 1)}
	go func() {
		// The thread stays locked, so that it ends with the goroutine and its priority is not inherited.
		runtime.LockOSThread()
		if _, err := process.SetFIFO(samplerPriority); err != nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // best effort
		}
		w.end <- w.sample()
	}()
	return w
}

// stop ends the sampling and returns its result.
func (w *taskSampler) stop() taskSamplerResult {
	w.done.Store(true)
	return <-w.end
}

func (w *taskSampler) sample() (t taskSamplerResult) {
	pause := unix.NsecToTimespec(int64(sampleInterval))
	for !w.done.Load() {
		_ = unix.Nanosleep(&pause, nil) // after EINTR the sample is only early
		n, err := pids.ReadNode(kernel.FS("/proc"))
		if err != nil {
			t.err = err
			return t
		}
		tasks, now := int64(n.Tasks), stamp.Now()
		t.most = max(t.most, tasks)
		if tasks > w.bombOver && t.began == 0 {
			t.began = now
			w.rises.Store(true)
		}
		if tasks > w.limit && t.crossed == 0 {
			t.crossed = now
		}
		if tasks <= w.bombOver && t.crossed != 0 && t.gone == 0 {
			t.gone = now
			w.over.Store(true)
		}
	}
	return t
}

// bombsAbout introduces fork bombs in the document.
var bombsAbout = fmt.Sprintf("Processes that only fork, in a pod with a limit of %d tasks. Half of them cross the threshold on pid.available. "+
	"The kubelet polls every %v. The process that stands for it here polls as often and, without the runtime, kills all processes of the pod at once; "+
	"like the kubelet, it has no real-time priority.", bombRoom, signal.KubeletInterval)

// bombTable returns a table with a row per contender.
func bombTable(all []*bombs) *table {
	t := &table{head: []string{
		"", "n", "fewest tasks left: median", "min", "crossing → SIGKILL: median", "max", "all tasks gone: median", "max", "never ended", "forks per second",
	}}
	for _, b := range all {
		n := fmt.Sprint(len(b.Killed) + b.NotEnded)
		if len(b.Killed) == 0 {
			t.add(b.Contender, n, "–", "–", "–", "–", "–", "–", fmt.Sprint(b.NotEnded), "–")
			continue
		}
		t.add(b.Contender, n, fmt.Sprint(median(b.Left)), fmt.Sprint(quantile(b.Left, 0)),
			milliseconds(median(b.Killed)), milliseconds(quantile(b.Killed, 1)), milliseconds(median(b.Gone)), milliseconds(quantile(b.Gone, 1)),
			fmt.Sprint(b.NotEnded), fmt.Sprint(b.Rate))
	}
	return t
}
