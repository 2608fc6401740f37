package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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
	gibibyte = 1 << 30

	// hogBytes is what the hog would allocate, at hogRate bytes per second. It crosses the threshold after half of it,
	// so that other processes on the machine have little influence.
	hogBytes = 3 * gibibyte
	hogRate  = gibibyte
	// podsLimit limits all pods together. The machine must have minAvailable.
	podsLimit    = hogBytes + gibibyte
	minAvailable = podsLimit + gibibyte

	// stepTimeout bounds each wait. On a busy machine the hog may reach only a tenth of its rate.
	stepTimeout = 30 * time.Second
	// pollInterval is the interval at which memory.available and evictd's record are read.
	pollInterval = 2 * time.Millisecond
	// dryRunWatch is how long the demo shows that a dry run kills nothing.
	dryRunWatch = 2 * time.Second
)

// demo is one demonstration.
type demo struct {
	executable, dir string
	dryRun          bool
	start           time.Time
	node            *node.Node
	pods            []node.Pod
	hog             node.Pod // the last of pods
	daemon          *daemon.Daemon
	threshold       int64
	printed         int64 // the last printed value of memory.available
	record          evict.Record
}

// runPods runs the pods and waits until each uses its memory. They lack the annotation of a kubelet's pods, and have
// evictd's own annotations for their priority and request.
func (d *demo) runPods(ctx context.Context) error {
	fmt.Println("\nIts pods")
	for _, r := range []struct {
		name                            string
		qos                             node.QoS
		usage, request, limit, priority int64 // the first three in MiB
	}{
		{"database", node.Guaranteed, 256, 320, 320, 1000},
		{"web", node.Burstable, 128, 256, 0, 500},
		{"batch", node.BestEffort, 64, 0, 0, 0},
		{"hog", node.Burstable, 0, 64, 0, 0},
	} {
		annotations := map[string]string{"evictd.io/priority": fmt.Sprint(r.priority)}
		if r.request > 0 {
			annotations["evictd.io/memory-request"] = fmt.Sprintf("%dMi", r.request)
		}
		args := []string{"hold", "-bytes", fmt.Sprint(r.usage * mebibyte)}
		if r.name == "hog" {
			args = []string{"grow", "-bytes", fmt.Sprint(hogBytes), "-rate", fmt.Sprint(hogRate), "-delay", "1h"}
		}
		pod, err := d.node.RunPod(ctx, node.PodSpec{
			Name: r.name, Namespace: "demo", QoS: r.qos, Annotations: annotations, TerminationGracePeriod: time.Second,
			Containers: []node.ContainerSpec{{Args: args, MemoryRequest: r.request * mebibyte, MemoryLimit: r.limit * mebibyte}},
		})
		if err != nil {
			return err
		}
		d.pods, d.hog = append(d.pods, pod), pod
		d.print(time.Now(), "%s: priority %d, requests %d MiB, uses %d MiB", r.name, r.priority, r.request, r.usage)
		if err := d.wait(ctx, r.name+" to use its memory", func() (bool, error) {
			usage, err := d.node.MemoryUsage(pod.Containers[0].Cgroup)
			return usage >= r.usage*mebibyte, err
		}); err != nil {
			return err
		}
	}
	return nil
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
	if n < minAvailable {
		return fmt.Errorf("needs %s of available memory; there is %s", control.Bytes(minAvailable), control.Bytes(n))
	}
	d.threshold = (n - hogBytes/2) / mebibyte * mebibyte
	config := fmt.Sprintf(configuration, d.node.Endpoint(), d.node.CgroupRoot(), d.dryRun, d.threshold/mebibyte)
	if d.daemon, err = daemon.Start(daemon.Options{Executable: d.executable, Dir: d.dir, Config: config}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
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

// growHog makes the hog grow and prints what happens until memory.available has recovered and the record is complete.
func (d *demo) growHog(ctx context.Context) error {
	fmt.Printf("\nThe hog allocates up to %s a second; memory.available:\n", control.Bytes(hogRate))
	c := d.hog.Containers[0]
	if err := d.wait(ctx, "the hog to grow", func() (bool, error) {
		// Before the hog handles SIGUSR1, the signal has no effect on process 1 of a PID namespace: repeat it.
		killed := unix.Kill(c.PID, unix.SIGUSR1)
		usage, err := d.node.MemoryUsage(c.Cgroup)
		return usage > 64*mebibyte, errors.Join(killed, err)
	}); err != nil {
		return err
	}
	if err := d.waitRecord(ctx, func(r *evict.Record) bool { return !r.SignalSent.IsZero() || r.Result == evict.ResultDryRun }); err != nil {
		return fmt.Errorf("%w; evictd's log:\n%s", err, d.daemon.LogTail())
	}
	r := &d.record
	d.print(r.CrossingSeen, "CROSSING  memory.available is below the threshold, seen by the lane %q", r.Lane)
	d.printRanking(r.Decided, r.Candidates, "RANKING   evictd confirms %s below the threshold, and ranks:", control.Bytes(r.Deficit))
	if d.dryRun {
		d.print(r.Decided, "DRY RUN   would evict %s", r.Pod)
		if err := d.waitRecord(ctx, func(r *evict.Record) bool { return time.Since(r.Decided) > dryRunWatch }); err != nil {
			return err
		}
		d.print(time.Now(), "KILL      the demo itself kills the hog, which is still alive")
		if err := unix.Kill(c.PID, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill the hog after a dry run: %w", err)
		}
	} else {
		d.print(r.SignalSent, "SIGKILL   to %s, %v after the crossing", r.Pod, r.SignalSent.Sub(r.CrossingSeen).Round(time.Microsecond))
	}
	if err := d.waitRecord(ctx, func(*evict.Record) bool { n, err := available(); return err == nil && n >= d.threshold }); err != nil {
		return err
	}
	d.print(time.Now(), "RECOVERY  memory.available is above the threshold, %v after the crossing", time.Since(r.CrossingSeen).Round(time.Millisecond))
	return d.waitRecord(ctx, func(r *evict.Record) bool { return r.Result != evict.ResultPending })
}

// waitRecord prints memory.available until evictd has a record and ok returns true for it.
func (d *demo) waitRecord(ctx context.Context, ok func(*evict.Record) bool) error {
	return d.wait(ctx, "evictd's record of the hog", func() (bool, error) {
		answer, err := d.daemon.Client().Records(ctx)
		if err != nil || len(answer.Records) == 0 {
			return false, errors.Join(err, d.printAvailable())
		}
		d.record = answer.Records[0]
		return ok(&d.record), d.printAvailable()
	})
}

// check returns an error unless the hog and no other pod was evicted.
func (d *demo) check(ctx context.Context) error {
	fmt.Println("\nChecks")
	r, result := d.record, evict.ResultKilled
	if d.dryRun {
		result = evict.ResultDryRun
	}
	if r.Pod != "demo/hog" || r.Cause != signal.MemoryAvailable.String() || !r.Hard || r.Result != result || r.Error != "" {
		return fmt.Errorf("evictd's record is %+v; want demo/hog with result %s for a hard threshold on %v", r, result, signal.MemoryAvailable)
	}
	fmt.Printf("  ok  %s, result %s: %s\n", r.Pod, r.Result, strings.TrimSpace(r.Message))
	// If one eviction had not been enough, evictd would evict another pod before the condition ends.
	if err := d.wait(ctx, "the condition MemoryPressure to end", func() (bool, error) {
		s, err := d.daemon.Client().Status(ctx)
		if err == nil && len(s.Records) != 1 {
			err = fmt.Errorf("evictd has %d records; want 1: %+v", len(s.Records), s.Records)
		}
		return len(s.Conditions) == 0, err
	}); err != nil {
		return err
	}
	fmt.Println("  ok  the condition MemoryPressure has ended")
	for _, before := range d.pods {
		want := before.ID != d.hog.ID
		if err := d.wait(ctx, fmt.Sprintf("%s, alive: %t", before.Name, want), func() (bool, error) {
			pod, err := d.node.Pod(ctx, before.ID)
			if err != nil {
				return false, err
			}
			alive := pod.Containers[0].Running && pod.Containers[0].PID == before.Containers[0].PID
			return alive == want && pod.Ready == (want || d.dryRun), nil
		}); err != nil {
			return err
		}
		fmt.Printf("  ok  %s: process %d alive: %t\n", before.Name, before.Containers[0].PID, want)
	}
	return nil
}

// available returns memory.available with active file cache counted as available, as evictd does.
func available() (int64, error) {
	i, err := meminfo.Read(kernel.FS("/proc"))
	return int64(i.MemTotal) - int64(i.Hugetlb) - int64(i.WorkingSet()) + int64(i.ActiveFile), err
}

// printAvailable prints memory.available if it has changed by 192 MiB, and a bar with the threshold in the middle.
func (d *demo) printAvailable() error {
	n, err := available()
	if err == nil && max(n-d.printed, d.printed-n) >= 192*mebibyte {
		d.printed = n
		const half = 20
		filled := int(min(max(half+(n-d.threshold)/(hogBytes/2/half), 0), 2*half))
		d.print(time.Now(), "%8s  [%-20s|%-20s]", control.Bytes(n), strings.Repeat("#", min(filled, half)), strings.Repeat("#", max(filled-half, 0)))
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

// wait polls until ok returns true or an error.
func (d *demo) wait(ctx context.Context, what string, ok func() (bool, error)) error {
	for end := time.Now().Add(stepTimeout); ; time.Sleep(pollInterval) {
		switch done, err := ok(); {
		case err != nil || done:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(end):
			return fmt.Errorf("wait for %s: not within %v", what, stepTimeout)
		}
	}
}
