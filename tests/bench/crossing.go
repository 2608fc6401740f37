package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/node"

	"github.com/evictd/evictd/tests/trace"
)

const (
	kibibyte = 1 << 10
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

var (
	// crossingTimeout bounds one crossing: systemd-oomd waits 30 s by default. recoveryTimeout bounds the waits
	// after it: for the memory of a dead victim, and for a contender to finish.
	crossingTimeout = node.ScaleTimeout(time.Minute)
	recoveryTimeout = node.ScaleTimeout(20 * time.Second)
	// recoveryWatch is for how long sampling goes on after the recovery: available memory may fall again.
	recoveryWatch = 20 * time.Millisecond
)

// crossing is the result of one crossing. Durations are from the crossing on.
type crossing struct {
	by               killSource
	crossed          time.Duration // CLOCK_MONOTONIC
	killed           time.Duration
	killer           int             // the thread that sent the SIGKILL
	runs             []time.Duration // when that thread got a CPU, if it is a real-time thread of evictd; CLOCK_MONOTONIC
	back             time.Duration
	uncertainty      time.Duration
	overshoot        int64 // bytes
	rate             int64 // of the victim until it was killed, bytes a second
	bystandersKilled int
	bystanderPods    int  // pods besides the victims
	bystandersAlive  bool // all of them live
	times            recordTimes
}

// errDrift means that something other than the victim changed available memory too much.
var errDrift = errors.New("available memory was changed by other processes")

// available returns the current value of a meter.
func available(m meter) (int64, error) {
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		return 0, err
	}
	return m(&info), nil
}

// cross lets a victim cross the threshold under a running contender. others are the pods that should survive. It fails
// with errDrift if available memory is not where the case wants it.
func (s *testbed) cross(ctx context.Context, c contender, v *victim, threshold int64, others []*victim) (crossing, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, crossingTimeout, fmt.Errorf("not over after %v", crossingTimeout))
	defer cancel()
	if err := c.target(ctx, v); err != nil {
		return crossing{}, err
	}
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		return crossing{}, err
	}
	above := c.meter()(&info) - threshold
	if to := v.drop - v.preallocated; above < to/4 || above > 3*to {
		return crossing{}, fmt.Errorf("%w: %.1f MiB above the threshold; want about %.1f", errDrift, mebibytes(above), mebibytes(to))
	}
	if int64(info.MemAvailable)-v.total+v.preallocated < s.reserve {
		return crossing{}, fmt.Errorf("only %.1f MiB are available; the victim would reach the reserve", mebibytes(int64(info.MemAvailable)))
	}
	oom, err := oomKills()
	if err != nil {
		return crossing{}, err
	}
	if err := s.kills.Clear(); err != nil {
		return crossing{}, err
	}
	w := &memorySampler{meter: c.meter(), threshold: threshold, floor: s.reserve, killVictim: v.kill}
	if err := w.watch(); err != nil {
		return crossing{}, err
	}
	gone, err := s.await(ctx, w, v)
	seen := w.stop()
	if err := errors.Join(err, seen.err); err != nil {
		return crossing{}, err
	}
	kills, runs, err := s.kills.KillsAndRuns()
	if err != nil {
		return crossing{}, err
	}
	now, err := oomKills()
	if err != nil {
		return crossing{}, err
	}
	s.oomKills += now - oom
	r, err := evaluate(v, &seen, threshold, kills, gone, others)
	for _, run := range runs {
		if run.PID == r.killer {
			r.runs = append(r.runs, run.At)
		}
	}
	return r, err
}

// await sends the victim its start signal, and returns when it is dead and its memory is free, or after a timeout. gone
// reports whether the victim died before the timeout.
func (s *testbed) await(ctx context.Context, w *memorySampler, v *victim) (gone bool, err error) {
	if err := v.start(ctx); err != nil {
		return false, err
	}
	for !v.ended(20 * time.Millisecond) {
		if ctx.Err() != nil {
			v.kill()
			return false, nil
		}
	}
	for end := time.Now().Add(recoveryTimeout); !w.back.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(recoveryWatch)
	return true, nil
}

// evaluate computes the result of a crossing from the samples and the kernel's trace.
func evaluate(v *victim, seen *samplerResult, threshold int64, kills []trace.Kill, gone bool, others []*victim) (crossing, error) {
	r := crossing{uncertainty: seen.below.at - seen.above.at}
	var first *trace.Kill
	for i := range kills {
		if first == nil && slices.Contains(v.pids, kills[i].PID) {
			first = &kills[i]
		}
		if slices.ContainsFunc(others, func(o *victim) bool { return slices.Contains(o.pids, kills[i].PID) }) {
			r.bystandersKilled++
		}
	}
	switch {
	case !gone:
		r.by = byNone
		return r, nil
	case first == nil:
		return r, errors.New("the victim exited without a SIGKILL")
	case seen.killedVictim:
		r.by = bySampler
		return r, nil
	case first.Kernel:
		r.by = byKernel
		return r, nil
	}
	if seen.below.at == 0 {
		r.by = byEarly
		return r, nil
	}
	r.by = byContender
	r.crossed = seen.crossedAt(threshold)
	r.killed, r.killer = first.At-r.crossed, first.By
	if seen.recovered == 0 {
		// The victim is dead, so another process has taken the memory.
		return r, fmt.Errorf("%w: available memory was not above the threshold within %v of the kill", errDrift, recoveryTimeout)
	}
	r.back = seen.recovered - r.crossed
	r.overshoot = threshold - seen.lowest
	if took := (first.At - v.started).Seconds(); took > 0 {
		r.rate = int64(float64(v.drop-v.preallocated+r.overshoot) / took)
	}
	return r, nil
}

// add adds a crossing to a series.
func (c *crossings) add(r crossing) {
	if c.By == nil {
		c.By, c.Lanes = make(map[killSource]int), make(map[string]int)
	}
	c.By[r.by]++
	c.BystandersKilled += r.bystandersKilled
	if c.BystanderPods = max(c.BystanderPods, r.bystanderPods); r.bystanderPods > 0 && r.bystandersAlive {
		c.Survived++
	}
	if r.by != byContender {
		return
	}
	if lane := r.times.lane; lane != "" {
		c.Lanes[lane]++
		for len(c.Parts) < len(c.Killed) { // crossings without a record of evictd
			c.Parts = append(c.Parts, nil)
		}
		c.Parts = append(c.Parts, r.times.parts(r.crossed, r.crossed+r.killed, r.runs))
	}
	c.Killed = append(c.Killed, microseconds(r.killed))
	c.Back = append(c.Back, microseconds(r.back))
	c.Uncertainty = append(c.Uncertainty, microseconds(r.uncertainty))
	c.Overshoot = append(c.Overshoot, r.overshoot/kibibyte)
	c.rates = append(c.rates, r.rate/mebibyte)
	c.Rate = median(c.rates)
}

// n returns the number of crossings.
func (c *crossings) n() (n int) {
	for _, k := range c.By {
		n += k
	}
	return n
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
