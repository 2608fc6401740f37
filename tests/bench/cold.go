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
	// coldGrace is the grace period of the soft threshold: reclaim has that long. A swap
	// file on an emulated disk takes 100 MiB in a part of it.
	coldGrace = 20 * time.Second
	// coldPods run before the first crossing, with coldSize each.
	coldPods, coldSize = 3, 128 * mebibyte
	// coldRoom is left to the threshold before the first crossing, and coldShort is what
	// each crossing brings available memory below it.
	coldRoom, coldShort = 64 * mebibyte, 96 * mebibyte
	// coldSwap has room for all of it.
	coldSwap = gibibyte
)

// coldConfig has a soft threshold on memory.available, and a hard one far below it.
const coldConfig = `apiVersion: evictd.io/v1alpha1
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

// coldCrossings are crossings of a soft threshold by pods that take memory once and do not use it again.
type coldCrossings struct {
	origin
	// Reclaim is evictd's reclaim.memory: auto or off.
	Reclaim   string `json:"reclaim"`
	Crossings int    `json:"crossings"`
	Evictions int    `json:"evictions"`
	// TakenBack is what memory.reclaim brought, in bytes, and Over how long each crossing took from the notice to
	// the signal above the threshold: milliseconds.
	TakenBack int64   `json:"takenBackBytes"`
	Over      []int64 `json:"overMilliseconds"`
}

// coldMemory counts evictions with reclaim of cold memory and without: the same number of crossings, on a node with swap.
func coldMemory(ctx context.Context, s *stage) (err error) {
	if s.machine.Cgroup != "v2" || !s.vm {
		return errors.New("needs a virtual machine with the unified hierarchy: memory.reclaim, and swap of its own")
	}
	swapoff, err := swapon(filepath.Join(s.dir, "swap"), coldSwap)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, swapoff()) }()
	fmt.Fprintf(s.out, "\nCold memory, %d crossings of a soft threshold:\n", s.bursts)
	var all []*coldCrossings
	for _, mode := range []string{"off", "auto"} {
		c := &coldCrossings{origin: s.origin(), Reclaim: mode}
		if err := s.coldSeries(ctx, c); err != nil {
			return fmt.Errorf("reclaim.memory %s, crossing %d: %w", mode, c.Crossings+1, err)
		}
		c.Version = s.version
		if err := s.book.add(result{Cold: c}); err != nil {
			return err
		}
		all = append(all, c)
	}
	_, err = fmt.Fprint(s.out, coldTable(all).text())
	return err
}

// coldSeries has one evictd answer as many crossings as there are bursts.
func (s *stage) coldSeries(ctx context.Context, c *coldCrossings) (err error) {
	var pods []node.Pod
	defer func() {
		for _, p := range pods {
			err = errors.Join(err, (&victim{pod: p}).remove(s.node))
		}
	}()
	run := func(bytes int64) error {
		s.made.Add(1)
		p, err := s.node.RunPod(ctx, node.PodSpec{
			Name: fmt.Sprintf("cold-%04d", s.made.Load()), TerminationGracePeriod: time.Second,
			Containers: []node.ContainerSpec{{RunAsUser: hogUser, Args: []string{"hold", "-thp=false", "-bytes", strconv.FormatInt(bytes, 10)}}},
		})
		if err != nil {
			return err
		}
		pods = append(pods, p)
		v := &victim{shape: shape{held: bytes}, pod: p, pids: []int{0, p.Containers[0].PID}}
		if err := v.awaitHeld(ctx); !errors.Is(err, errMoved) { // it may be evicted as soon as it has its memory
			return err
		}
		return nil
	}
	for range coldPods {
		if err := run(coldSize); err != nil {
			return err
		}
	}
	at, err := available(signalAvailable)
	if err != nil {
		return err
	}
	threshold := at - coldRoom
	dir, err := os.MkdirTemp(s.dir, "c")
	if err != nil {
		return err
	}
	d, err := daemon.Start(daemon.Options{Executable: s.executable, Dir: dir,
		Config: fmt.Sprintf(coldConfig, s.node.Endpoint(), s.node.CgroupRoot(), threshold, coldGrace, c.Reclaim)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Terminate(backTime)) }()
	for c.Crossings < s.bursts {
		if err := s.coldCrossing(ctx, d, c, threshold, len(pods), run); err != nil {
			return fmt.Errorf("%w: %s", err, d.LogTail())
		}
		c.Crossings++
	}
	return nil
}

// coldCrossing runs a pod whose memory makes the threshold met, and waits until it is no longer.
func (s *stage) coldCrossing(ctx context.Context, d *daemon.Daemon, c *coldCrossings, threshold int64, pods int, run func(int64) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, crossingTime+coldGrace, errors.New("the crossing is not over"))
	defer cancel()
	status, err := d.Await(ctx, func(st *control.Status) bool {
		return (c.Crossings > 0 || st.Pods.Eligible == pods) && !st.Mode.DryRun && !softMet(st)
	})
	if err != nil {
		return err
	}
	s.version = status.Version
	evicted, taken := len(status.Records), takenBack(&status)
	at, err := available(signalAvailable)
	if err != nil {
		return err
	}
	if err := run(max(0, at-threshold) + coldShort); err != nil {
		return err
	}
	if status, err = d.Await(ctx, func(st *control.Status) bool {
		return softMet(st) || len(st.Records) > evicted || takenBack(st) > taken
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
	c.Over = append(c.Over, time.Since(noticed).Milliseconds())
	c.Evictions, c.TakenBack = len(status.Records), takenBack(&status)
	if s.verbose {
		fmt.Fprintf(s.out, "  reclaim.memory %s: over after %d ms, %d evicted, %s taken back\n",
			c.Reclaim, c.Over[len(c.Over)-1], c.Evictions-evicted, size((c.TakenBack-taken)/kibibyte))
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

// takenBack is what memory.reclaim brought, in bytes.
func takenBack(s *control.Status) (freed int64) {
	for _, r := range s.Reclaims {
		if r.Kind == evict.ReclaimMemory {
			freed += r.Freed
		}
	}
	return freed
}

// swapon gives the machine a swap file, and returns what takes it away again.
func swapon(file string, bytes int64) (swapoff func() error, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, bytes)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("make room for swap: %w", err)
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

// coldTable has a row for each way.
func coldTable(all []*coldCrossings) *table {
	t := &table{head: []string{"reclaim.memory", "crossings", "evictions", "taken back", "over after: median", "max"}}
	for _, c := range all {
		t.add(c.Reclaim, fmt.Sprint(c.Crossings), fmt.Sprint(c.Evictions), size(c.TakenBack/kibibyte),
			fmt.Sprintf("%.1f s", float64(median(c.Over))/1000), fmt.Sprintf("%.1f s", float64(quantile(c.Over, 1))/1000))
	}
	return t
}

// coldAbout introduces them in the document.
var coldAbout = fmt.Sprintf("Pods take memory once and do not use it again, one after the other, on a node with swap; "+
	"each crosses the soft threshold by %s, and the grace period is %v.", size(coldShort/kibibyte), coldGrace)

// cold returns the crossings by cold memory on a machine.
func (b *book) cold(on string) (all []*coldCrossings) {
	for _, r := range b.results {
		if r.Cold != nil && r.Cold.On == on {
			all = append(all, r.Cold)
		}
	}
	return all
}
