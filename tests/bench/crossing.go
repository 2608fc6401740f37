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
)

const (
	kibibyte = 1 << 10
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

var (
	// crossingTime bounds one crossing, and backTime what is waited for after it: for the memory of a victim that is dead,
	// and for a contender.
	crossingTime = node.Slow(time.Minute)
	backTime     = node.Slow(20 * time.Second)
	// calmTime is watched once memory is back: it may fall again.
	calmTime = 20 * time.Millisecond
)

// crossing is what became of one. Durations are from the crossing on.
type crossing struct {
	by         killer
	crossed    time.Duration // CLOCK_MONOTONIC
	killed     time.Duration
	killer     int             // the thread that sent the SIGKILL
	runs       []time.Duration // when that got a processor, if it is one of evictd's real-time threads; CLOCK_MONOTONIC
	back       time.Duration
	doubt      time.Duration
	overshoot  int64 // bytes
	rate       int64 // of the victim until it was killed, bytes a second
	bystanders int
	calm       int  // pods besides the victims
	spared     bool // all of them live
	account    account
}

// errMoved says that available memory is too far from where it was, for reasons that are not the victim's.
var errMoved = errors.New("what is available has moved")

// available reads what a meter shows.
func available(m meter) (int64, error) {
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		return 0, err
	}
	return m(&info), nil
}

// cross has a victim cross the threshold under a contender that was begun. others are the victims that should live.
func (s *stage) cross(ctx context.Context, c contender, v *victim, threshold int64, others []*victim) (crossing, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, crossingTime, fmt.Errorf("not over after %v", crossingTime))
	defer cancel()
	if err := c.aim(ctx, v); err != nil {
		return crossing{}, err
	}
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		return crossing{}, err
	}
	above := c.meter()(&info) - threshold
	if to := v.drop - v.held; above < to/4 || above > 3*to {
		return crossing{}, fmt.Errorf("%w: %.1f MiB above the threshold; want about %.1f", errMoved, mebibytes(above), mebibytes(to))
	}
	if int64(info.MemAvailable)-v.takes+v.held < s.reserve {
		return crossing{}, fmt.Errorf("only %.1f MiB are available by now", mebibytes(int64(info.MemAvailable)))
	}
	oom, err := oomKills()
	if err != nil {
		return crossing{}, err
	}
	if err := s.kills.clear(); err != nil {
		return crossing{}, err
	}
	w := &witness{meter: c.meter(), threshold: threshold, floor: s.reserve, rescue: v.kill}
	if err := w.watch(); err != nil {
		return crossing{}, err
	}
	gone, err := s.await(ctx, w, v)
	seen := w.testify()
	if err := errors.Join(err, seen.err); err != nil {
		return crossing{}, err
	}
	kills, runs, err := s.kills.killsAndRuns()
	if err != nil {
		return crossing{}, err
	}
	now, err := oomKills()
	if err != nil {
		return crossing{}, err
	}
	s.oomKills += now - oom
	r, err := judge(v, &seen, threshold, kills, gone, others)
	for _, run := range runs {
		if run.pid == r.killer {
			r.runs = append(r.runs, run.at)
		}
	}
	return r, err
}

// await gives the victim its cue, and returns when it is dead and its memory is back, or when there is no time left.
func (s *stage) await(ctx context.Context, w *witness, v *victim) (gone bool, err error) {
	if err := v.cue(ctx); err != nil {
		return false, err
	}
	for !v.ended(20 * time.Millisecond) {
		if ctx.Err() != nil {
			v.kill()
			return false, nil
		}
	}
	for end := time.Now().Add(backTime); !w.back.Load() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(calmTime)
	return true, nil
}

// judge puts together what the witness and the kernel's trace saw.
func judge(v *victim, seen *testimony, threshold int64, kills []kill, gone bool, others []*victim) (crossing, error) {
	r := crossing{doubt: seen.below.at - seen.above.at}
	var first *kill
	for i := range kills {
		if first == nil && slices.Contains(v.pids, kills[i].pid) {
			first = &kills[i]
		}
		if slices.ContainsFunc(others, func(o *victim) bool { return slices.Contains(o.pids, kills[i].pid) }) {
			r.bystanders++
		}
	}
	switch {
	case !gone:
		r.by = byNobody
		return r, nil
	case first == nil:
		return r, errors.New("the victim has ended, and nobody sent it a SIGKILL")
	case seen.rescued:
		r.by = byWitness
		return r, nil
	case first.kernel:
		r.by = byKernel
		return r, nil
	}
	if seen.below.at == 0 {
		r.by = byEarly
		return r, nil
	}
	r.by = byContender
	r.crossed = seen.crossed(threshold)
	r.killed, r.killer = first.at-r.crossed, first.by
	if seen.recovered == 0 {
		// The victim is dead, so that somebody else has it.
		return r, fmt.Errorf("%w: the memory of the victim did not come back within %v", errMoved, backTime)
	}
	r.back = seen.recovered - r.crossed
	r.overshoot = threshold - seen.lowest
	if took := (first.at - v.cued).Seconds(); took > 0 {
		r.rate = int64(float64(v.drop-v.held+r.overshoot) / took)
	}
	return r, nil
}

// add adds a crossing to a series.
func (c *crossings) add(r crossing) {
	if c.By == nil {
		c.By, c.Lanes = make(map[killer]int), make(map[string]int)
	}
	c.By[r.by]++
	c.Bystanders += r.bystanders
	if c.Calm = max(c.Calm, r.calm); r.calm > 0 && r.spared {
		c.Spared++
	}
	if r.by != byContender {
		return
	}
	if lane := r.account.lane; lane != "" {
		c.Lanes[lane]++
		for len(c.Parts) < len(c.Killed) { // those that evictd gave no account of
			c.Parts = append(c.Parts, nil)
		}
		c.Parts = append(c.Parts, r.account.parts(r.crossed, r.crossed+r.killed, r.runs))
	}
	c.Killed = append(c.Killed, microseconds(r.killed))
	c.Back = append(c.Back, microseconds(r.back))
	c.Doubt = append(c.Doubt, microseconds(r.doubt))
	c.Overshoot = append(c.Overshoot, r.overshoot/kibibyte)
	c.rates = append(c.rates, r.rate/mebibyte)
	c.Rate = median(c.rates)
}

// n is how many crossings there were.
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
