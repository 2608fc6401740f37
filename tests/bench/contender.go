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

// contender is a program that kills victims. It can begin again after it was ended.
type contender interface {
	// name returns the contender's name, which is the same in every run.
	name() string
	// meter returns the meter of the amount that the contender compares with its threshold.
	meter() meter
	// begin starts the contender and returns when it watches memory. threshold is in bytes of its meter, pods is the
	// number of pods on the node.
	begin(ctx context.Context, threshold int64, pods int) error
	// target is called before a victim gets its start signal.
	target(ctx context.Context, v *victim) error
	// done waits until the contender has finished with the n-th victim since begin. It returns the times of the
	// contender's own record, which are zero if it writes none.
	done(ctx context.Context, n int) (recordTimes, error)
	// end stops the contender if it is running.
	end() error
}

// The contenders' names, as the results store them.
const (
	allLanes   = "evictd, all lanes"
	bpfAlone   = "evictd, BPF alone"
	memcgAlone = "evictd, memcg alone"
	pollAlone  = "evictd, polling alone"
	// countingCache has another configuration, which is part of its name.
	countingCache = "evictd, all lanes, memoryAccounting: available"
	busyPoll      = "busy polling"
	earlyoom      = "earlyoom"
	oomdDefault   = "systemd-oomd"
	oomdEager     = "systemd-oomd, eager"
)

// evictdContender is evictd in enforcing mode.
type evictdContender struct {
	testbed   *testbed
	title     string
	meterFunc meter
	lanes     map[string]string // modes by lane; others have their default
	daemon    *daemon.Daemon
}

// evictds returns evictd with all lanes and with one lane each, by name. The poll lane is always on, with a long
// interval while another lane is up.
func evictds(s *testbed) map[string]*evictdContender {
	alone := func(title, lane string) *evictdContender {
		modes := make(map[string]string)
		for _, l := range lanes.Names() {
			modes[l] = "off"
		}
		modes[lane] = "require"
		delete(modes, lanes.Polling) // which can't be switched
		return &evictdContender{testbed: s, title: title, meterFunc: signalAvailable, lanes: modes}
	}
	return map[string]*evictdContender{
		allLanes:      {testbed: s, title: allLanes, meterFunc: signalAvailable},
		bpfAlone:      alone(bpfAlone, lanes.BPF),
		memcgAlone:    alone(memcgAlone, lanes.Memcg),
		pollAlone:     alone(pollAlone, lanes.Polling),
		countingCache: {testbed: s, title: countingCache, meterFunc: cacheAvailable},
	}
}

// evictdConfig is the default configuration except for the threshold. It has no threshold for the pods as a whole.
const evictdConfig = `apiVersion: evictd.io/v1alpha1
kind: AgentConfiguration
runtimeEndpoint: %s
cgroupRoot: %s
evictionHard:
  memory.available: "%d"
enforceNodeAllocatable: [none]
%s`

// notification returns the configuration of the lanes.
func (e *evictdContender) notification() string {
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

func (e *evictdContender) name() string { return e.title }

func (e *evictdContender) meter() meter { return e.meterFunc }

func (e *evictdContender) begin(ctx context.Context, threshold int64, pods int) error {
	dir, err := os.MkdirTemp(e.testbed.dir, "e")
	if err != nil {
		return err
	}
	settings := e.testbed.settings + e.notification()
	if e.title == countingCache {
		settings += "memoryAccounting: available\n"
	}
	config := fmt.Sprintf(evictdConfig, e.testbed.node.Endpoint(), e.testbed.node.CgroupRoot(), threshold, settings)
	if e.daemon, err = daemon.Start(daemon.Options{Executable: e.testbed.executable, Dir: dir, Config: config}); err != nil {
		return err
	}
	var last control.Status
	_, err = e.daemon.Await(ctx, func(s *control.Status) bool {
		last = *s
		return len(s.Records) > 0 || s.Pods.Eligible == pods && !s.Mode.DryRun && e.lanesUp(s)
	})
	if len(last.Records) > 0 {
		return fmt.Errorf("%w: a victim was killed before its start signal", errDrift)
	}
	if err != nil {
		return fmt.Errorf("%w: %d of %d pods, dry run %t, lanes %+v", err, last.Pods.Eligible, pods, last.Mode.DryRun, last.Lanes)
	}
	e.testbed.version = last.Version
	return nil
}

// lanesUp reports whether all lanes are up, except those that are off or not available here.
func (e *evictdContender) lanesUp(s *control.Status) bool {
	waits := func(l control.Lane) bool {
		return l.State == string(lanes.Starting) || l.State == string(lanes.Degraded)
	}
	return len(s.Lanes) > 0 && !slices.ContainsFunc(s.Lanes, waits)
}

func (*evictdContender) target(context.Context, *victim) error { return nil }

func (e *evictdContender) done(ctx context.Context, n int) (recordTimes, error) {
	s, err := e.daemon.Await(ctx, func(s *control.Status) bool {
		return len(s.Records) > n || len(s.Records) == n && !s.Records[n-1].LastGone.IsZero()
	})
	switch {
	case err != nil:
		return recordTimes{}, err
	case len(s.Records) > n:
		return recordTimes{}, fmt.Errorf("evictd evicted %d pods; want %d", len(s.Records), n)
	}
	if e.testbed.onCrossing != nil {
		if err := e.testbed.onCrossing(ctx, e.daemon); err != nil {
			return recordTimes{}, err
		}
	}
	return recordTimesOf(&s.Records[n-1]), nil
}

func (e *evictdContender) end() error {
	if e.daemon == nil {
		return nil
	}
	d := e.daemon
	e.daemon = nil
	select {
	case <-d.Done():
		return fmt.Errorf("evictd exited during the run (%v): %s", d.Err(), d.LogTail())
	default:
	}
	// The timeout is long: the machine may still be busy.
	if err := d.Terminate(recoveryTimeout); err != nil {
		return fmt.Errorf("stop evictd: %w: %s", err, d.LogTail())
	}
	return nil
}

// busyPollContender is the lower bound for polling: a process that polls all the time on one CPU, and is given the
// process to kill.
type busyPollContender struct {
	threshold int64
	helper    *helper
}

func (*busyPollContender) name() string { return busyPoll }

func (*busyPollContender) meter() meter { return signalAvailable }

func (k *busyPollContender) begin(_ context.Context, threshold int64, _ int) error {
	k.threshold = threshold
	return nil
}

func (k *busyPollContender) target(_ context.Context, v *victim) (err error) {
	k.helper, err = startHelper("killer", "-threshold", strconv.FormatInt(k.threshold, 10), "-pid", strconv.Itoa(v.pids[0]))
	return err
}

func (k *busyPollContender) done(ctx context.Context, _ int) (recordTimes, error) {
	select {
	case <-k.helper.Done():
		k.helper.input.Close()
		return recordTimes{}, k.helper.Err()
	case <-ctx.Done():
		return recordTimes{}, fmt.Errorf("wait for the killer: %w", context.Cause(ctx))
	}
}

func (k *busyPollContender) end() error {
	if k.helper == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	k.helper.stop(ctx)
	k.helper = nil
	return nil
}

// terminate stops a process with SIGTERM. It is no error if the signal killed the process.
func terminate(p *daemon.Process) error {
	err := p.Terminate(5 * time.Second)
	if killedBy(err, unix.SIGTERM) {
		return nil
	}
	return err
}

// errNotFound means that a contender is not available on this machine.
var errNotFound = errors.New("not available on this machine")
