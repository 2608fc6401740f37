package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/tests/daemon"
)

// contender is a program that stops hogs. A contender that was begun is ended, and may then be begun anew.
type contender interface {
	// name is the same in every run.
	name() string
	// meter reads the amount that the contender compares with its threshold.
	meter() meter
	// begin returns when the contender watches. threshold is in bytes of its meter; pods are those that it finds.
	begin(ctx context.Context, threshold int64, pods int) error
	// aim is called before a victim gets its cue.
	aim(ctx context.Context, v *victim) error
	// done returns when the contender has finished with the n-th victim since it was begun, and its own account of it,
	// which is empty where it keeps none.
	done(ctx context.Context, n int) (account, error)
	// end ends the contender if it was begun.
	end() error
}

// The contenders' names. Those of evictd tell its lanes.
const (
	allLanes   = "evictd, all lanes"
	bpfAlone   = "evictd, BPF alone"
	memcgAlone = "evictd, memcg alone"
	pollAlone  = "evictd, polling alone"
	// countingCache is another configuration, which its name tells.
	countingCache = "evictd, all lanes, memoryAccounting: available"
	busyPoll      = "busy polling"
	earlyoom      = "earlyoom"
	oomdCalm      = "systemd-oomd"
	oomdEager     = "systemd-oomd, eager"
)

// withEvictd is evictd, which owns the node's pods.
type withEvictd struct {
	stage  *stage
	title  string
	meters meter
	lanes  map[string]string // modes by lane; those that are not there are the default's
	daemon *daemon.Daemon
}

// evictds are evictd with one lane each. Polling is always there, and at its ease where another lane is up.
func evictds(s *stage) map[string]*withEvictd {
	alone := func(title, lane string) *withEvictd {
		modes := make(map[string]string)
		for _, l := range lanes.Names() {
			modes[l] = "off"
		}
		modes[lane] = "require"
		delete(modes, lanes.Polling) // which can't be switched
		return &withEvictd{stage: s, title: title, meters: signalAvailable, lanes: modes}
	}
	return map[string]*withEvictd{
		allLanes:      {stage: s, title: allLanes, meters: signalAvailable},
		bpfAlone:      alone(bpfAlone, lanes.BPF),
		memcgAlone:    alone(memcgAlone, lanes.Memcg),
		pollAlone:     alone(pollAlone, lanes.Polling),
		countingCache: {stage: s, title: countingCache, meters: cacheAvailable},
	}
}

// pressConfig is the default configuration but for the threshold. The pods' own limit has no part in this.
const pressConfig = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard:
  memory.available: "%d"
enforceNodeAllocatable: [none]
%s`

// notification is the configuration of the lanes.
func (e *withEvictd) notification() string {
	if len(e.lanes) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("notification:\n")
	for _, l := range lanes.Names() {
		if mode := e.lanes[l]; mode != "" {
			fmt.Fprintf(&b, "  %s: \"%s\"\n", l, mode)
		}
	}
	return b.String()
}

func (e *withEvictd) name() string { return e.title }

func (e *withEvictd) meter() meter { return e.meters }

func (e *withEvictd) begin(ctx context.Context, threshold int64, pods int) error {
	dir, err := os.MkdirTemp(e.stage.dir, "e")
	if err != nil {
		return err
	}
	settings := e.stage.settings + e.notification()
	if e.title == countingCache {
		settings += "memoryAccounting: available\n"
	}
	config := fmt.Sprintf(pressConfig, e.stage.node.Endpoint(), e.stage.node.CgroupRoot(), threshold, settings)
	if e.daemon, err = daemon.Start(daemon.Options{Executable: e.stage.executable, Dir: dir, Config: config}); err != nil {
		return err
	}
	var last control.Status
	_, err = e.daemon.Await(ctx, func(s *control.Status) bool {
		last = *s
		return len(s.Records) > 0 || s.Pods.Eligible == pods && !s.Mode.DryRun && e.listens(s)
	})
	if len(last.Records) > 0 {
		return fmt.Errorf("%w: a victim was killed before its cue", errMoved)
	}
	if err != nil {
		return fmt.Errorf("%w: %d of %d pods, dry run %t, lanes %+v", err, last.Pods.Eligible, pods, last.Mode.DryRun, last.Lanes)
	}
	e.stage.version = last.Version
	return nil
}

// listens says whether all lanes are up, besides those that are switched off or can't be had here.
func (e *withEvictd) listens(s *control.Status) bool {
	waits := func(l control.Lane) bool {
		return l.State == string(lanes.Starting) || l.State == string(lanes.Degraded)
	}
	return len(s.Lanes) > 0 && !slices.ContainsFunc(s.Lanes, waits)
}

func (*withEvictd) aim(context.Context, *victim) error { return nil }

func (e *withEvictd) done(ctx context.Context, n int) (account, error) {
	s, err := e.daemon.Await(ctx, func(s *control.Status) bool {
		return len(s.Records) > n || len(s.Records) == n && !s.Records[n-1].LastGone.IsZero()
	})
	switch {
	case err != nil:
		return account{}, err
	case len(s.Records) > n:
		return account{}, fmt.Errorf("evictd evicted %d pods; want %d", len(s.Records), n)
	}
	if e.stage.crossed != nil {
		if err := e.stage.crossed(ctx, e.daemon); err != nil {
			return account{}, err
		}
	}
	return accountOf(&s.Records[n-1]), nil
}

func (e *withEvictd) end() error {
	if e.daemon == nil {
		return nil
	}
	d := e.daemon
	e.daemon = nil
	select {
	case <-d.Done():
		return fmt.Errorf("evictd had ended by itself (%v): %s", d.Err(), d.LogTail())
	default:
	}
	// How long it takes to end is not what is measured here, on a machine that may be busy to the last.
	if err := d.Terminate(backTime); err != nil {
		return fmt.Errorf("stop evictd: %w: %s", err, d.LogTail())
	}
	return nil
}

// withKiller is the limit of what polling can do: a process that does nothing else on one of the processors, and knows
// whom to kill.
type withKiller struct {
	threshold int64
	actor     *actor
}

func (*withKiller) name() string { return busyPoll }

func (*withKiller) meter() meter { return signalAvailable }

func (k *withKiller) begin(_ context.Context, threshold int64, _ int) error {
	k.threshold = threshold
	return nil
}

func (k *withKiller) aim(_ context.Context, v *victim) (err error) {
	k.actor, err = startActor("killer", "-threshold", strconv.FormatInt(k.threshold, 10), "-pid", strconv.Itoa(v.pids[0]))
	return err
}

func (k *withKiller) done(ctx context.Context, _ int) (account, error) {
	select {
	case <-k.actor.Done():
		k.actor.cue.Close()
		return account{}, k.actor.Err()
	case <-ctx.Done():
		return account{}, fmt.Errorf("wait for the killer: %w", context.Cause(ctx))
	}
}

func (k *withKiller) end() error {
	if k.actor == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	k.actor.stop(ctx)
	k.actor = nil
	return nil
}

// terminate ends a process that need not catch SIGTERM.
func terminate(p *daemon.Process) error {
	err := p.Terminate(5 * time.Second)
	if killedBy(err, unix.SIGTERM) {
		return nil
	}
	return err
}

// errAbsent says that a contender can't be had here.
var errAbsent = errors.New("not here")
