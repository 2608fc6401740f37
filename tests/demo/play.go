package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

// play is one demonstration.
type play struct {
	timeline   *timeline
	node       *node.Node
	dir        string
	executable string
	dryRun     bool

	pods    []node.Pod // the bystanders
	hog     node.Pod
	daemon  *daemon.Daemon
	witness *witness
	calm    int64 // available before the hog wakes, bytes
}

// patience bounds the wait for each thing that is due. A machine that is busy otherwise may let the hog take no more
// than a tenth of what it wants.
const patience = 30 * time.Second

// perform plays all scenes. What is left running is for tidy.
func (p *play) perform(ctx context.Context) error {
	p.timeline.chapter("Its pods")
	if err := p.enter(ctx); err != nil {
		return err
	}
	p.timeline.chapter("evictd")
	if err := p.guard(ctx); err != nil {
		return err
	}
	p.timeline.chapter("The hog wakes up and takes up to %s a second; memory.available:", control.Bytes(hogRate))
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go p.witness.watch(watching)
	if err := p.cue(ctx); err != nil {
		return err
	}
	record, err := p.pressure(ctx)
	if err != nil {
		return err
	}
	p.timeline.chapter("Did it go well?")
	return p.judge(ctx, &record)
}

// configuration is what evictd is given. The threshold on what kubepods may use is switched off: the pods of a
// demonstration are limited to far less than the node has.
const configuration = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
dryRun: %t
evictionHard:
  memory.available: %dMi
enforceNodeAllocatable: [none]
# Otherwise a machine that has just compiled something holds the kill back until the cache of it can't explain the
# crossing any more.
memoryAccounting: available
evictionPressureTransitionPeriod: 2s
`

// guard starts evictd with a threshold on half the hog's way, and waits until it watches.
func (p *play) guard(ctx context.Context) error {
	file, err := openMeminfo()
	if err != nil {
		return err
	}
	defer func() {
		if p.witness == nil {
			file.Close()
		}
	}()
	if p.calm, err = available(file); err != nil {
		return err
	}
	if p.calm < leastAvailable {
		return fmt.Errorf("needs %s of available memory; there is %s", control.Bytes(leastAvailable), control.Bytes(p.calm))
	}
	threshold := (p.calm - hogTakes/2) / mebibyte
	p.daemon, err = daemon.Start(daemon.Options{
		Executable: p.executable, Dir: p.dir,
		Config: fmt.Sprintf(configuration, p.node.Endpoint(), p.node.CgroupRoot(), p.dryRun, threshold),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := p.daemon.Await(ctx, func(s *control.Status) bool {
		return s.Runtime.Connected && s.Pods.Count == len(p.pods)+1 && s.Signals[signal.MemoryAvailable].Status == control.Observed
	})
	if err != nil {
		return err
	}
	if status.Mode.DryRun != p.dryRun {
		return fmt.Errorf("evictd's mode is %+v; want dry run %t", status.Mode, p.dryRun)
	}
	doing := "enforcing"
	if p.dryRun {
		doing = "in dry run (" + strings.Join(status.Mode.Why, "; ") + ")"
	}
	p.timeline.say("evictd watches %d pods of %s %s, %s", status.Pods.Count, status.Runtime.Name, status.Runtime.Version, doing)
	p.timeline.more("memory.available is %s, the threshold %s", control.Bytes(*status.Signals[signal.MemoryAvailable].Available), control.Bytes(threshold*mebibyte))
	explanation, err := p.daemon.Client().Explain(ctx, signal.MemoryAvailable)
	if err != nil {
		return err
	}
	p.timeline.more("If memory ran out now, they would go in this order:")
	ranked := make([]evict.Ranked, len(explanation.Ranking))
	for i, c := range explanation.Ranking {
		ranked[i] = c.Ranked
	}
	p.ranking(ranked)
	p.witness = &witness{file: file, threshold: threshold * mebibyte}
	return nil
}

func (p *play) ranking(ranked []evict.Ranked) {
	for i, r := range ranked {
		p.timeline.more("  %d. %-13s  %s", i+1, r.Pod, control.Why(signal.MemoryAvailable, ranked, i))
	}
}

// cue wakes the hog. A signal that comes before it listens has no effect on process 1 of a pid namespace, so that it
// is repeated.
func (p *play) cue(ctx context.Context) error {
	c := p.hog.Containers[0]
	return p.await(ctx, "the hog to wake up", func() (bool, error) {
		if err := unix.Kill(c.PID, unix.SIGUSR1); err != nil {
			return false, fmt.Errorf("wake the hog: %w", err)
		}
		usage, err := p.node.MemoryUsage(c.Cgroup)
		return usage > hog.request, err
	})
}

// await polls for something.
func (p *play) await(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %v", patience))
	defer cancel()
	for {
		switch is, err := ok(); {
		case err != nil:
			return err
		case is:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
