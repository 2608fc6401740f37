package disks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/evictd/evictd/agent/pace"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/disk"
)

// The bounds of the pace, and that below every threshold.
const (
	fastest, slowest = 50 * time.Millisecond, 10 * time.Second
	low              = 250 * time.Millisecond
)

// The rates that a filesystem is believed to fill at, at least, each second: as
// fast as one good disk writes, and as one process makes files.
const (
	leastBytes  = 1 << 30
	leastInodes = 100_000
)

// observe reads one filesystem until ctx ends, at its own pace.
func (w *Watch) observe(ctx context.Context, r Role) {
	var reading errands[disk.Space]
	paces := [2]pace.Pace{
		{Least: leastBytes, Fastest: fastest, Slowest: slowest, Low: low},
		{Least: leastInodes, Fastest: fastest, Slowest: slowest, Low: low},
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var path string
	var on disk.Mount
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.poke[r]:
		case <-timer.C:
		}
		w.mu.Lock()
		p := &w.places[r]
		if p.path != path || p.mount != on {
			path, on = p.path, p.mount
			paces[0].Forget()
			paces[1].Forget()
		}
		w.mu.Unlock()
		if path == "" {
			timer.Reset(askAgain)
			continue
		}
		asked := path // one that hangs outlives this turn
		space, err := reading.to("statfs of "+asked).ask(patience, func() (disk.Space, error) { return w.read(asked) })
		wait := w.note(r, path, space, err, &paces)
		if wait == slowest {
			wait = pace.Together(time.Now(), slowest)
		}
		timer.Reset(wait)
	}
}

// note takes a reading and returns when to take the next.
func (w *Watch) note(r Role, path string, space disk.Space, err error, paces *[2]pace.Pace) time.Duration {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.places[r]
	if p.path != path {
		return 0 // it is somewhere else meanwhile
	}
	bytes, inodes := r.signals()
	if err != nil {
		if p.err == nil {
			w.o.Log.Error("filesystem can't be read", "filesystem", r.String(), "path", path, "error", err)
			tell(w.crossed)
		}
		p.err, p.period = err, askAgain
		return p.period
	}
	if p.err != nil {
		w.o.Log.Info("filesystem can be read again", "filesystem", r.String(), "path", path)
	}
	before, had := p.space, !p.at.IsZero()
	p.space, p.at, p.err = space, now, nil

	available, inodesFree := signed(space.Available), signed(space.InodesFree)
	marks := amounts(w.marks[bytes], signed(space.Bytes))
	paces[0].Saw(now, available)
	p.period = paces[0].Next(marks)
	crossed := countAbove(marks, available) != countAbove(marks, signed(before.Available))
	if space.CountsInodes {
		marks := amounts(w.marks[inodes], signed(space.Inodes))
		paces[1].Saw(now, inodesFree)
		p.period = min(p.period, paces[1].Next(marks))
		crossed = crossed || countAbove(marks, inodesFree) != countAbove(marks, signed(before.InodesFree))
	}
	if crossed || !had {
		tell(w.crossed)
	}
	return p.period
}

// amounts returns where something happens: at each threshold, and where what was
// low counts as back.
func amounts(thresholds []signal.Threshold, capacity int64) []int64 {
	var marks []int64
	for _, t := range thresholds {
		marks = append(marks, t.Value.Amount(capacity))
		if target := t.Target(capacity); target != marks[len(marks)-1] {
			marks = append(marks, target)
		}
	}
	return marks
}

// countAbove counts the marks that are above an amount.
func countAbove(marks []int64, amount int64) (n int) {
	for _, m := range marks {
		if amount < m {
			n++
		}
	}
	return n
}

// signed returns n, or the largest number that fits.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Read fills in the disk signals with what is known, without waiting for
// anything. A signal of a filesystem that is not read in time is unreadable; one
// that the node or the filesystem does not have, or that was not asked for yet, is
// not observed.
func (w *Watch) Read(now time.Time, into *signal.Observations) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r := range roles {
		bytes, inodes := r.signals()
		into[bytes], into[inodes] = signal.Observation{}, signal.Observation{}
		if !w.applies(r) {
			continue
		}
		p := &w.places[r]
		if p.unasked() {
			continue
		}
		if err := p.unreadable(now); err != nil {
			o := signal.Observation{Status: signal.Unreadable, Time: now, Err: err}
			into[bytes], into[inodes] = o, o
			continue
		}
		into[bytes] = signal.Observation{
			Status: signal.Observed, Time: p.at, Available: signed(p.space.Available), Capacity: signed(p.space.Bytes),
			ReadOnly: p.mount.ReadOnly(),
		}
		if p.space.CountsInodes {
			into[inodes] = signal.Observation{
				Status: signal.Observed, Time: p.at, Available: signed(p.space.InodesFree), Capacity: signed(p.space.Inodes),
				ReadOnly: p.mount.ReadOnly(),
			}
		}
	}
}

var errNoPlace = errors.New("the container runtime has not told where it is")

var errNotRead = errors.New("it has not been read yet")

// unasked reports whether nobody has been asked yet, or no answer is due: what is
// left, and whether anything can be freed.
func (p *place) unasked() bool {
	return p.path == "" && p.pathErr == errNotAsked || p.path != "" && (p.at.IsZero() && p.err == nil || !p.sought)
}

// unreadable returns why the last reading can't be used, nil where it can.
func (p *place) unreadable(now time.Time) error {
	switch {
	case p.path == "":
		return errNoPlace // why is in the status
	case p.err != nil:
		return p.err
	case p.at.IsZero():
		return errNotRead
	}
	// An observer that is late by more than it may wait for an answer hangs.
	if age := now.Sub(p.at); age > p.period+2*patience {
		return fmt.Errorf("%s was read %v ago, and should have been after %v", p.path, age.Round(time.Millisecond), p.period)
	}
	return nil
}
