package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
	"github.com/evictd/evictd/tests/hog/stamp"
	"github.com/evictd/evictd/tests/node"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30

	// reserve is what every burst leaves the machine; the witness acts a little before.
	reserve = 4 * gibibyte
	margin  = gibibyte / 2
	// burstTime bounds one burst; afterTime is watched once the hog is gone.
	burstTime = time.Minute
	afterTime = 300 * time.Millisecond
)

// plan is how much a hog takes, the same in every burst.
type plan struct {
	drop  int64 // from what is available at first to the threshold, bytes
	takes int64 // in all, if nobody stops it
	// stamps is a directory on a tmpfs, for the hog's marks.
	stamps string
}

// planFor shares out what is available.
func planFor(available int64) (plan, error) {
	p := plan{drop: min(3*gibibyte, available/8)}
	p.takes = 3 * p.drop
	if available-p.takes < reserve+gibibyte {
		return plan{}, fmt.Errorf("needs 8 GiB of available memory; there are %.1f", float64(available)/gibibyte)
	}
	return p, nil
}

// result is one burst. Durations are from the last sample above the threshold.
type result struct {
	signal    time.Duration // 0 where the contender does not say
	stopped   time.Duration // the hog's last MiB
	recovered time.Duration
	overshoot int64 // bytes
	gap       time.Duration
	rate      int64 // of the hog until it was stopped, bytes a second
	full      bool  // the hog had taken all that it wanted before
}

// bursts lets the contenders stop hogs in turns.
func bursts(ctx context.Context, s *stage) error {
	contenders := []contender{&withEvictd{stage: s}}
	switch e, err := newEarlyoom(ctx, s); {
	case err == nil:
		contenders = append(contenders, e)
	default:
		fmt.Fprintf(s.out, "\nearlyoom is left out: %v\n", err)
	}
	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		return err
	}
	p, err := planFor(int64(info.MemAvailable))
	if err != nil {
		return err
	}
	if p.stamps, err = s.node.Volume("stamps", 4*mebibyte); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n%d bursts each, in turns: a hog at full speed, the threshold %.1f GiB below what is available at first:\n", s.bursts, float64(p.drop)/gibibyte)
	results := make([][]result, len(contenders))
	for round := range s.bursts {
		fmt.Fprintf(s.out, "%4d", round+1)
		for i := range contenders {
			at := (round + i) % len(contenders) // who comes first changes
			r, err := s.burst(ctx, contenders[at], p)
			if err != nil {
				err = fmt.Errorf("burst %d under %s: %w", round+1, contenders[at].name(), err)
				fmt.Fprint(s.out, "\n\n")
				return errors.Join(err, s.report(contenders, results)) // what there is
			}
			results[at] = append(results[at], r)
			fmt.Fprintf(s.out, "   %s: back after %s, %s below", contenders[at].name(), milliseconds(int64(r.recovered)), mebibyteText(r.overshoot))
		}
		fmt.Fprintln(s.out)
	}
	fmt.Fprintln(s.out)
	return s.report(contenders, results)
}

// burst runs one hog under one contender.
func (s *stage) burst(ctx context.Context, c contender, p plan) (r result, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, burstTime, fmt.Errorf("not over after %v", burstTime))
	defer cancel()
	h, err := s.wakeable(ctx, p)
	if err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, c.stop(), h.remove(s.node))
	}()

	info, err := meminfo.Read(kernel.FS("/proc"))
	if err != nil {
		return r, err
	}
	if int64(info.MemAvailable)-p.takes < reserve+margin {
		return r, fmt.Errorf("only %.1f MiB are available by now", mebibytes(int64(info.MemAvailable)))
	}
	threshold := c.meter()(&info) - p.drop
	if err := c.start(ctx, threshold); err != nil {
		return r, err
	}
	// Whatever its period is at rest, the burst comes at any point of it.
	if err := sleep(ctx, time.Second+rand.N(time.Second)); err != nil {
		return r, err
	}
	w := &witness{meter: c.meter(), threshold: threshold, floor: reserve + margin, rescue: h.kill}
	if err := w.watch(); err != nil {
		return r, err
	}
	ended := h.burst(ctx)
	seen := w.testify()
	if err := errors.Join(ended, seen.err); err != nil {
		return r, err
	}
	if seen.rescued {
		return r, errors.New("the hog came near to the machine's reserve, and was killed by the witness")
	}
	return h.result(ctx, c, &seen, threshold-seen.lowest, p)
}

// hogPod is a pod whose only process takes memory when it is told to.
type hogPod struct {
	pod    node.Pod
	pidfd  int
	stamps string
	gone   time.Duration // CLOCK_MONOTONIC
}

// wakeable runs a hog that waits for its cue.
func (s *stage) wakeable(ctx context.Context, p plan) (*hogPod, error) {
	pod, err := s.node.RunPod(ctx, node.PodSpec{Name: "hog", TerminationGracePeriod: time.Second, Containers: []node.ContainerSpec{{
		Args:      []string{"grow", "-bytes", strconv.FormatInt(p.takes, 10), "-delay", "1h", "-stamp", "/stamps/hog"},
		Mounts:    []node.Mount{{Host: p.stamps, Container: "/stamps"}},
		RunAsUser: hogUser,
	}}})
	if err != nil {
		return nil, err
	}
	h := &hogPod{pod: pod, stamps: filepath.Join(p.stamps, "hog")}
	if h.pidfd, err = unix.PidfdOpen(pod.Containers[0].PID, 0); err != nil {
		return nil, fmt.Errorf("hold the hog: %w", err)
	}
	return h, nil
}

// burst wakes the hog and returns a moment after it is dead.
func (h *hogPod) burst(ctx context.Context) error {
	for {
		// Before the hog listens, the signal has no effect on process 1 of a pid namespace.
		if err := unix.PidfdSendSignal(h.pidfd, unix.SIGUSR1, nil, 0); err != nil {
			return fmt.Errorf("wake the hog: %w", err)
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
		marks, err := stamp.Read(h.stamps)
		if err == nil && len(marks) > 0 {
			break
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.pidfd), Events: unix.POLLIN}}, 50)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for the hog's end: %w", err)
		case n > 0:
			h.gone = stamp.Now()
			return sleep(ctx, afterTime)
		case ctx.Err() != nil:
			return fmt.Errorf("wait for the hog's end: %w", context.Cause(ctx))
		}
	}
}

func (h *hogPod) kill() { _ = unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0) } // dead already, at worst

// remove removes the hog, also after its burst failed. A runtime that is asked to stop a container in the moment of its
// death may answer with an error, and do it when asked again.
func (h *hogPod) remove(n *node.Node) error {
	h.kill()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		err := n.RemovePod(ctx, h.pod)
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, unix.Close(h.pidfd))
		}
		_ = sleep(ctx, 100*time.Millisecond) // too late, the next turn is the last
	}
}

// result puts together what the hog, the witness and the contender left.
func (h *hogPod) result(ctx context.Context, c contender, seen *testimony, overshoot int64, p plan) (result, error) {
	if seen.below == 0 || seen.recovered == 0 {
		return result{}, fmt.Errorf("the witness saw no crossing and recovery: %+v", *seen)
	}
	marks, err := stamp.Read(h.stamps)
	if err != nil {
		return result{}, err
	}
	if len(marks) < 2 {
		return result{}, errors.New("the hog has taken nothing")
	}
	last := marks[len(marks)-1]
	r := result{
		stopped:   last - seen.lastAbove,
		recovered: seen.recovered - seen.lastAbove,
		overshoot: overshoot,
		gap:       seen.gap,
		rate:      int64(float64(marks.Mebibytes()) * mebibyte / (last - marks[0]).Seconds()),
		full:      int64(marks.Mebibytes())*mebibyte >= p.takes,
	}
	if r.full {
		r.stopped = h.gone - seen.lastAbove
	}
	signal, err := c.signalled(ctx)
	if err != nil {
		return result{}, err
	}
	if signal != 0 {
		r.signal = signal - seen.lastAbove
	}
	return r, nil
}

// report prints all bursts as one table.
func (s *stage) report(contenders []contender, results [][]result) error {
	measures := []struct {
		name   string
		of     func(*result) int64
		format func(int64) string
	}{
		{"crossing -> SIGKILL, as it says", func(r *result) int64 { return int64(r.signal) }, milliseconds},
		{"crossing -> the hog stops", func(r *result) int64 { return int64(r.stopped) }, milliseconds},
		{"crossing -> back above the threshold", func(r *result) int64 { return int64(r.recovered) }, milliseconds},
		{"overshoot", func(r *result) int64 { return r.overshoot }, mebibyteText},
		{"(the hog's speed, a second)", func(r *result) int64 { return r.rate }, mebibyteText},
		{"(longest gap between two samples)", func(r *result) int64 { return int64(r.gap) }, milliseconds},
	}
	var names []string
	rows := make([]row, len(measures))
	for i, c := range contenders {
		names = append(names, c.name())
		for j, m := range measures {
			var values []int64
			for k := range results[i] {
				if v := m.of(&results[i][k]); v != 0 || m.name != measures[0].name {
					values = append(values, v)
				}
			}
			rows[j].name, rows[j].format = m.name, m.format
			rows[j].values = append(rows[j].values, values)
		}
	}
	if err := printTable(s.out, names, rows); err != nil {
		return err
	}
	for i, c := range contenders {
		full := 0
		for _, r := range results[i] {
			if r.full {
				full++
			}
		}
		if full > 0 {
			fmt.Fprintf(s.out, "In %d bursts under %s the hog had taken all it wanted before it was stopped.\n", full, c.name())
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
