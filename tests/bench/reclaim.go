package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

const (
	// softGrace is the grace period of the soft threshold, within which reclaim has to end.
	// Writing 100 MiB to a swap file takes less, even on an emulated disk.
	softGrace = 20 * time.Second
	// reclaimPods run before the first crossing, with reclaimPodSize bytes each.
	reclaimPods, reclaimPodSize = 3, 128 * mebibyte
	// reclaimHeadroom is available above the threshold before the first crossing. Each
	// crossing brings available memory to reclaimDeficit below it.
	reclaimHeadroom, reclaimDeficit = 64 * mebibyte, 96 * mebibyte
	// reclaimSwap is the size of the swap file, with room for all pods.
	reclaimSwap = gibibyte
)

// reclaimConfig has a soft threshold on memory.available, and a hard one far below it.
const reclaimConfig = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard:
  memory.available: 100Mi
evictionSoft:
  memory.available: "%d"
evictionSoftGracePeriod:
  memory.available: %v
evictionMaxPodGracePeriod: 2
enforceNodeAllocatable: [none]
reclaim:
  memory: "%s"
`

// reclaimCrossings are crossings of a soft threshold by pods that allocate memory once and do not use it again.
type reclaimCrossings struct {
	origin
	// Reclaim is evictd's reclaim.memory: auto or off.
	Reclaim   string `json:"reclaim"`
	Crossings int    `json:"crossings"`
	Evictions int    `json:"evictions"`
	// Reclaimed is what memory.reclaim freed, in bytes. Durations are the times from when evictd noticed a crossing until
	// the signal was above the threshold, in milliseconds.
	Reclaimed int64   `json:"takenBackBytes"`
	Durations []int64 `json:"overMilliseconds"`
}

// proactiveReclaim is the step cold: it counts evictions with and without proactive reclaim, for the same number of
// crossings on a node with swap.
func proactiveReclaim(ctx context.Context, s *testbed) (err error) {
	if s.machine.Cgroup != "v2" || !s.vm {
		return errors.New("needs a virtual machine with the unified hierarchy: uses memory.reclaim and adds swap")
	}
	swapoff, err := swapon(filepath.Join(s.dir, "swap"), reclaimSwap)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, swapoff()) }()
	fmt.Fprintf(s.out, "\nProactive reclaim, %d crossings of a soft threshold:\n", s.bursts)
	var all []*reclaimCrossings
	for _, mode := range []string{"off", "auto"} {
		c := &reclaimCrossings{origin: s.origin(), Reclaim: mode}
		if err := s.reclaimSeries(ctx, c); err != nil {
			return fmt.Errorf("reclaim.memory %s, crossing %d: %w", mode, c.Crossings+1, err)
		}
		c.Version = s.version
		if err := s.results.add(result{Reclaim: c}); err != nil {
			return err
		}
		all = append(all, c)
	}
	_, err = fmt.Fprint(s.out, reclaimTable(all).text())
	return err
}

// reclaimSeries runs the crossings of one mode under one evictd.
func (s *testbed) reclaimSeries(ctx context.Context, c *reclaimCrossings) (err error) {
	var pods []node.Pod
	defer func() {
		for _, p := range pods {
			err = errors.Join(err, (&victim{pod: p}).remove(s.node))
		}
	}()
	run := func(bytes int64) error {
		s.podCount.Add(1)
		p, err := s.node.RunPod(ctx, node.PodSpec{
			Name: fmt.Sprintf("reclaim-%04d", s.podCount.Load()), TerminationGracePeriod: time.Second,
			Containers: []node.ContainerSpec{{RunAsUser: victimUser, Args: []string{"hold", "-thp=false", "-bytes", strconv.FormatInt(bytes, 10)}}},
		})
		if err != nil {
			return err
		}
		pods = append(pods, p)
		v := &victim{workload: workload{preallocated: bytes}, pod: p, pids: []int{0, p.Containers[0].PID}}
		if err := v.awaitPreallocated(ctx); !errors.Is(err, errDrift) { // it may be evicted as soon as it has allocated
			return err
		}
		return nil
	}
	for range reclaimPods {
		if err := run(reclaimPodSize); err != nil {
			return err
		}
	}
	at, err := available(signalAvailable)
	if err != nil {
		return err
	}
	threshold := at - reclaimHeadroom
	dir, err := os.MkdirTemp(s.dir, "c")
	if err != nil {
		return err
	}
	d, err := daemon.Start(daemon.Options{Executable: s.executable, Dir: dir,
		Config: fmt.Sprintf(reclaimConfig, s.node.Endpoint(), s.node.CgroupRoot(), threshold, softGrace, c.Reclaim)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Terminate(recoveryTimeout)) }()
	for c.Crossings < s.bursts {
		if err := s.reclaimCrossing(ctx, d, c, threshold, len(pods), run); err != nil {
			return fmt.Errorf("%w: %s", err, d.LogTail())
		}
		c.Crossings++
	}
	return nil
}

// reclaimCrossing runs a pod whose memory crosses the threshold, and waits until the threshold is no longer met.
func (s *testbed) reclaimCrossing(ctx context.Context, d *daemon.Daemon, c *reclaimCrossings, threshold int64, pods int, run func(int64) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, crossingTimeout+softGrace, errors.New("the crossing is not over"))
	defer cancel()
	status, err := d.Await(ctx, func(st *control.Status) bool {
		return (c.Crossings > 0 || st.Pods.Eligible == pods) && !st.Mode.DryRun && !softMet(st)
	})
	if err != nil {
		return err
	}
	s.version = status.Version
	evicted, taken := len(status.Records), reclaimed(&status)
	at, err := available(signalAvailable)
	if err != nil {
		return err
	}
	if err := run(max(0, at-threshold) + reclaimDeficit); err != nil {
		return err
	}
	if status, err = d.Await(ctx, func(st *control.Status) bool {
		return softMet(st) || len(st.Records) > evicted || reclaimed(st) > taken
	}); err != nil {
		return err
	}
	noticed := time.Now()
	if status, err = d.Await(ctx, func(st *control.Status) bool {
		n := len(st.Records)
		return !softMet(st) && len(st.Victims) == 0 && (n == evicted || !st.Records[n-1].LastGone.IsZero())
	}); err != nil {
		return err
	}
	c.Durations = append(c.Durations, time.Since(noticed).Milliseconds())
	c.Evictions, c.Reclaimed = len(status.Records), reclaimed(&status)
	if s.verbose {
		fmt.Fprintf(s.out, "  reclaim.memory %s: not met after %d ms, %d evicted, %s reclaimed\n",
			c.Reclaim, c.Durations[len(c.Durations)-1], c.Evictions-evicted, size((c.Reclaimed-taken)/kibibyte))
	}
	return nil
}

// softMet reports whether the soft threshold is met.
func softMet(s *control.Status) bool {
	for _, th := range s.Signals[signal.MemoryAvailable].Thresholds {
		if th.Soft && th.Met {
			return true
		}
	}
	return false
}

// reclaimed returns the bytes that memory.reclaim freed.
func reclaimed(s *control.Status) (freed int64) {
	for _, r := range s.Reclaims {
		if r.Kind == evict.ReclaimMemory {
			freed += r.Freed
		}
	}
	return freed
}

// swapon adds a swap file to the machine, and returns a function that removes it.
func swapon(file string, bytes int64) (swapoff func() error, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, bytes)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("allocate swap file: %w", err)
	}
	call := func(args ...string) error {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	if err := call("mkswap", file); err != nil {
		return nil, err
	}
	return func() error { return call("swapoff", file) }, call("swapon", file)
}

// reclaimTable returns a table with a row per mode.
func reclaimTable(all []*reclaimCrossings) *table {
	t := &table{head: []string{"reclaim.memory", "crossings", "evictions", "reclaimed", "threshold met for: median", "max"}}
	for _, c := range all {
		t.add(c.Reclaim, fmt.Sprint(c.Crossings), fmt.Sprint(c.Evictions), size(c.Reclaimed/kibibyte),
			fmt.Sprintf("%.1f s", float64(median(c.Durations))/1000), fmt.Sprintf("%.1f s", float64(quantile(c.Durations, 1))/1000))
	}
	return t
}

// reclaimAbout introduces proactive reclaim in the document.
var reclaimAbout = fmt.Sprintf("Pods start one after the other on a node with swap, allocate memory once and do not use it again. "+
	"Each crosses the soft threshold by %s. The grace period is %v.", size(reclaimDeficit/kibibyte), softGrace)

// reclaimCrossings returns the results of proactive reclaim on a machine.
func (b *resultSet) reclaimCrossings(on string) (all []*reclaimCrossings) {
	for _, r := range b.results {
		if r.Reclaim != nil && r.Reclaim.On == on {
			all = append(all, r.Reclaim)
		}
	}
	return all
}
