// Command demo shows an eviction: it runs three pods with constant memory on a private containerd, starts evictd
// and then a hog, and prints what happens, with the seconds since the start.
//
// It needs root, Go, and containerd and runc, or a network to fetch Debian's packages. All of its files are below one
// temporary directory, all of its processes below one cgroup, and it removes both when it ends, by success, failure
// or ^C. The exit code is 0 if the hog and no other pod was evicted, in dry run if it would have been.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

const (
	mebibyte = 1 << 20
	// hogBytes is what the hog would allocate. It crosses the threshold after half of it, so that other processes on the
	// machine have little influence.
	hogBytes   = 3 << 30
	growthRate = 1 << 30 // of each pod, in bytes per second
	podsLimit  = 4 << 30 // of all pods together; the machine must have as much available
	// timeout bounds all steps, which take 10 s. On a busy machine the hog may reach only a tenth of its rate.
	timeout = 2 * time.Minute
)

type demo struct {
	dryRun    bool
	start     time.Time
	dir       string
	node      *node.Node
	pods      []node.Pod // the last one is the hog
	daemon    *daemon.Daemon
	threshold int64
	printed   int64 // the last printed value of memory.available
	record    evict.Record
}

func main() {
	d := &demo{start: time.Now()}
	flag.BoolVar(&d.dryRun, "dry-run", false, "run evictd in dry run")
	flag.Parse()
	// The signals only cancel ctx, also a second ^C, so that the node is always removed completely.
	ctx, stop := ossignal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := d.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// run starts a node, runs the steps of the demo on it and removes it.
func (d *demo) run(ctx context.Context) (err error) {
	switch err := node.Check(""); {
	case errors.Is(err, node.ErrNoContainerd):
		fmt.Println("no containerd and runc on this machine: unpacking Debian's into a cache directory, installing nothing")
		if err := node.Fetch(ctx, "", os.Stdout); err != nil {
			return err
		}
	case err != nil:
		return fmt.Errorf("needs %w", err)
	}
	if d.dir, err = os.MkdirTemp("", "evictd-demo-"); err != nil {
		return err
	}
	fmt.Printf("\nA private containerd, below %s\n", d.dir)
	d.node, err = node.Start(ctx, node.Options{Dir: filepath.Join(d.dir, "node"), MemoryLimit: podsLimit, Log: os.Stdout})
	if err != nil {
		return errors.Join(err, os.RemoveAll(d.dir))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, step := range []func(context.Context) error{d.runPods, d.startDaemon, d.runHog, d.check} {
		if err == nil {
			err = step(ctx)
		}
	}
	if d.daemon != nil {
		err = errors.Join(err, d.daemon.Stop())
	}
	err = errors.Join(err, d.node.Close(), os.RemoveAll(d.dir))
	if left := d.node.Leftovers(); len(left) > 0 {
		return errors.Join(err, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	fmt.Println("  ok  nothing is left behind: no process, cgroup, mount or file")
	return err
}

// pod is a pod of the demonstration. The amounts are in MiB.
type pod struct {
	name                            string
	usage, request, limit, priority int64
}

// runPods runs pods with constant memory and waits until they use it.
func (d *demo) runPods(ctx context.Context) error {
	fmt.Println("\nIts pods")
	usage := int64(0)
	for _, p := range []pod{
		{"database", 256, 320, 320, 1000},
		{"web", 128, 256, 0, 500},
		{"batch", 64, 0, 0, 0},
	} {
		if err := d.runPod(ctx, p); err != nil {
			return err
		}
		usage += p.usage * mebibyte
	}
	return wait(ctx, "the pods to use their memory", func() (bool, error) {
		used, err := d.node.MemoryUsage(d.node.Kubepods())
		return used >= usage, err
	})
}

// runPod runs a pod. It lacks the annotation of a kubelet's pods, and has evictd's own annotations for its priority and
// request.
func (d *demo) runPod(ctx context.Context, p pod) error {
	pod, err := d.node.RunPod(ctx, node.PodSpec{
		Name: p.name, Namespace: "demo", TerminationGracePeriod: time.Second,
		Annotations: map[string]string{
			"evictd.io/priority":       fmt.Sprint(p.priority),
			"evictd.io/memory-request": fmt.Sprintf("%dMi", p.request),
		},
		Containers: []node.ContainerSpec{{
			Args:          []string{"grow", "-bytes", fmt.Sprint(p.usage * mebibyte), "-rate", fmt.Sprint(growthRate)},
			MemoryRequest: p.request * mebibyte, MemoryLimit: p.limit * mebibyte,
		}},
	})
	if err == nil {
		d.pods = append(d.pods, pod)
		d.print(time.Now(), "%s: priority %d, requests %d MiB, allocates %d MiB", p.name, p.priority, p.request, p.usage)
	}
	return err
}

// configuration is evictd's. enforceNodeAllocatable disables the threshold on the usage of kubepods, whose limit is far
// below the node's memory. memoryAccounting counts active file cache as available: otherwise evictd could wait because
// of the file cache that a compiler has just filled.
const configuration = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
dryRun: %t
evictionHard:
  memory.available: %dMi
enforceNodeAllocatable: [none]
memoryAccounting: available
evictionPressureTransitionPeriod: 2s
`

// startDaemon starts evictd, waits until it observes memory.available, and prints its ranking.
func (d *demo) startDaemon(ctx context.Context) error {
	fmt.Println("\nevictd")
	n, err := available()
	if err != nil {
		return err
	}
	if n < podsLimit {
		return fmt.Errorf("needs %s of available memory; there is %s", control.Bytes(podsLimit), control.Bytes(n))
	}
	d.threshold = (n - hogBytes/2) / mebibyte * mebibyte
	config := fmt.Sprintf(configuration, d.node.Endpoint(), d.node.CgroupRoot(), d.dryRun, d.threshold/mebibyte)
	if d.daemon, err = daemon.Start(daemon.Options{Executable: daemon.Executable, Dir: d.dir, Config: config}); err != nil {
		return err
	}
	s, err := d.daemon.Await(ctx, func(s *control.Status) bool {
		return s.Runtime.Connected && s.Pods.Count == len(d.pods) && s.Signals[signal.MemoryAvailable].Status == control.Observed
	})
	if err != nil {
		return err
	}
	d.print(time.Now(), "evictd observes %d pods of %s %s, dry run: %t", s.Pods.Count, s.Runtime.Name, s.Runtime.Version, s.Mode.DryRun)
	explanation, err := d.daemon.Client().Explain(ctx, signal.MemoryAvailable)
	var ranked []evict.Ranked
	for _, c := range explanation.Ranking {
		ranked = append(ranked, c.Ranked)
	}
	d.printRanking(time.Now(), ranked, "with memory.available below the threshold of %s it would evict:", control.Bytes(d.threshold))
	return err
}

// runHog runs a pod that crosses the threshold, and prints what happens until memory.available has recovered.
func (d *demo) runHog(ctx context.Context) error {
	fmt.Printf("\nA hog, which allocates up to %s a second; memory.available:\n", control.Bytes(growthRate))
	if err := d.runPod(ctx, pod{"hog", hogBytes / mebibyte, 64, 0, 0}); err != nil {
		return err
	}
	if err := d.waitRecord(ctx, func(r *evict.Record) bool { return !r.SignalSent.IsZero() || r.Result == evict.ResultDryRun }); err != nil {
		return fmt.Errorf("%w; evictd's log:\n%s", err, d.daemon.LogTail())
	}
	r := &d.record
	d.print(r.CrossingSeen, "CROSSING  memory.available is below the threshold, seen by the lane %q", r.Lane)
	d.printRanking(r.Decided, r.Candidates, "RANKING   evictd confirms %s below the threshold, and ranks:", control.Bytes(r.Deficit))
	if d.dryRun {
		d.print(r.Decided, "DRY RUN   would evict %s, which then counts as gone", r.Pod)
		return nil
	}
	d.print(r.SignalSent, "SIGKILL   to %s, %v after the crossing", r.Pod, r.SignalSent.Sub(r.CrossingSeen).Round(time.Microsecond))
	if err := d.waitRecord(ctx, func(*evict.Record) bool { n, err := available(); return err == nil && n >= d.threshold }); err != nil {
		return err
	}
	d.print(time.Now(), "RECOVERY  memory.available is above the threshold, %v after the crossing", time.Since(r.CrossingSeen).Round(time.Millisecond))
	return nil
}

// waitRecord prints memory.available until evictd has a record and ok returns true for it.
func (d *demo) waitRecord(ctx context.Context, ok func(*evict.Record) bool) error {
	return wait(ctx, "evictd's record of the hog", func() (bool, error) {
		answer, err := d.daemon.Client().Records(ctx)
		if err != nil || len(answer.Records) == 0 {
			return false, errors.Join(err, d.printAvailable())
		}
		d.record = answer.Records[0]
		return ok(&d.record), d.printAvailable()
	})
}

// check returns an error unless the hog and no other pod was evicted, in dry run none.
func (d *demo) check(ctx context.Context) error {
	fmt.Println("\nChecks")
	// If one eviction had not been enough, evictd would evict another pod before the condition ends.
	s, err := d.daemon.Await(ctx, func(s *control.Status) bool {
		return len(s.Conditions) == 0 && s.Records[0].Result != evict.ResultPending
	})
	if err != nil {
		return err
	}
	fmt.Println("  ok  the condition MemoryPressure has ended")
	r := s.Records[0]
	if len(s.Records) != 1 || r.Pod != "demo/hog" || r.Cause != "memory.available" || !r.Hard || r.DryRun != d.dryRun || r.Error != "" {
		return fmt.Errorf("evictd's records are %+v; want demo/hog alone, for a hard threshold on memory.available, dry run: %t", s.Records, d.dryRun)
	}
	fmt.Printf("  ok  %s, result %s: %s\n", r.Pod, r.Result, strings.TrimSpace(r.Message))
	for _, before := range d.pods {
		pod, err := d.node.Pod(ctx, before.ID)
		if err != nil {
			return err
		}
		want, first := before.Name != "hog" || d.dryRun, before.Containers[0].PID
		if alive := pod.Containers[0].Running && pod.Containers[0].PID == first; alive != want || pod.Ready != want {
			return fmt.Errorf("%s: process %d alive: %t, sandbox ready: %t; want %t", pod.Name, first, alive, pod.Ready, want)
		}
		fmt.Printf("  ok  %s: process %d alive: %t\n", pod.Name, first, want)
	}
	return nil
}

// available returns memory.available with active file cache counted as available, as evictd does.
func available() (int64, error) {
	i, err := meminfo.Read(kernel.FS("/proc"))
	return int64(i.MemTotal) - int64(i.Hugetlb) - int64(i.WorkingSet()) + int64(i.ActiveFile), err
}

// printAvailable prints memory.available if it has changed by 192 MiB, with a # for each 64 MiB above the threshold.
func (d *demo) printAvailable() error {
	n, err := available()
	if err == nil && max(n-d.printed, d.printed-n) >= 192*mebibyte {
		d.printed = n
		d.print(time.Now(), "%8s  |%s", control.Bytes(n), strings.Repeat("#", int(max(n-d.threshold, 0)/(64*mebibyte))))
	}
	return err
}

// printRanking prints a line and a ranking below it.
func (d *demo) printRanking(at time.Time, ranked []evict.Ranked, format string, args ...any) {
	d.print(at, format, args...)
	for i, r := range ranked {
		fmt.Printf("             %d. %-13s  %s\n", i+1, r.Pod, control.RankReason(signal.MemoryAvailable, ranked, i))
	}
}

// print prints a line with its time. evictd's times have no monotonic clock reading, so all are wall clock times.
func (d *demo) print(at time.Time, format string, args ...any) {
	fmt.Printf("%8.3fs  %s\n", at.Round(0).Sub(d.start.Round(0)).Seconds(), fmt.Sprintf(format, args...))
}

// wait polls every 2 ms until ok returns true or an error.
func wait(ctx context.Context, what string, ok func() (bool, error)) error {
	for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
		if done, err := ok(); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
}
