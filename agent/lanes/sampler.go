package lanes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/bpf"
	"github.com/evictd/evictd/kernel/cpu"
)

// sampler is the lane of the timer in the kernel.
type sampler struct {
	o    SetOptions
	ring *ring

	sampler  *bpf.Sampler
	holds    bool // the ring
	cpus     int  // that were online when it was opened
	checked  time.Time
	stats    bpf.Stats
	last     bpf.Sample // of the last look at it
	armed    []bpf.Threshold
	pods     uint64  // the cgroup that is followed; 0 for none
	troubled trouble // with that
}

// open implements lane.
func (l *sampler) open(now time.Time, w *watched) error {
	if err := l.ring.acquire(); err != nil {
		return err
	}
	l.holds = true
	var err error
	if l.cpus, err = cpu.Online(l.o.Sysfs); err != nil {
		return err
	}
	l.checked = now
	l.sampler, err = bpf.OpenSampler(l.ring.ring, bpf.Options{
		Floor: l.o.BPFFloor, Ceiling: l.o.BPFCeiling, CPUs: l.cpus, WalkLimit: l.o.walkLimit,
	})
	if err != nil {
		return err
	}
	// From here on: to load the programs may have taken longer than the first tick may.
	for deadline := time.Now().Add(firstTick); ; time.Sleep(time.Millisecond) {
		if _, err = l.sampler.Stats(); err == nil {
			return l.update(now, w)
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

const (
	// firstTick is how long the timer may take to tick for the first time.
	firstTick = time.Second
	// firstWalk is how long is waited for the figures of another cgroup.
	firstWalk = 50 * time.Millisecond
	// checkEach is how often the machine is looked at, whether it is still the one
	// that the sampler was opened on.
	checkEach = 10 * time.Second
)

// tend implements lane.
func (l *sampler) tend(now time.Time, w *watched) error {
	if broken := l.ring.broken.Load(); broken != nil {
		return *broken
	}
	if now.Sub(l.checked) >= checkEach {
		l.checked = now
		if err := l.check(); err != nil {
			return err
		}
	}
	return l.update(now, w)
}

// check fails where the machine has grown: the sampler would not see the memory of
// another NUMA node, nor reckon with what more CPUs hold back.
func (l *sampler) check() error {
	cpus, err := cpu.Online(l.o.Sysfs)
	if err != nil {
		return err
	}
	if cpus > l.cpus {
		return fmt.Errorf("%d CPUs are online, and were %d when it was opened", cpus, l.cpus)
	}
	outdated, err := l.sampler.Outdated()
	if err == nil && outdated {
		err = errors.New("other NUMA nodes have memory than when it was opened")
	}
	return err
}

func (l *sampler) update(now time.Time, w *watched) (err error) {
	if !l.troubled.waits(now) && !(w.calm && l.stands()) {
		l.troubled.set(now, l.follow())
	}
	if l.stats, err = l.sampler.Stats(); err != nil {
		return err
	}
	if err := l.sampler.Sample(&l.last); err != nil {
		return err
	}
	if wanted := l.want(w); !slices.Equal(l.armed, wanted) {
		if err := l.sampler.Arm(wanted); err != nil {
			return err
		}
		l.armed = wanted
	}
	l.o.Quick.SetSampler(l.source(w))
	return l.rearm(w)
}

// source is what a memory.Quick reads from; nil where files have to do, which is so for
// the node, too, while the pods can't be read.
func (l *sampler) source(w *watched) *memory.Sampler {
	known := l.readable()
	if l.pods == 0 { // either there is none, or nobody knows which
		known = l.troubled.err == nil
	}
	if !known || !l.last.Node.Valid {
		return nil
	}
	s := &memory.Sampler{
		Sampler: l.sampler, CountCache: l.o.CountCache, Pods: l.pods != 0, Armed: l.armed, Raised: &l.ring.raised,
	}
	if o := &w.observed[signal.AllocatableMemoryAvailable]; o.Status == signal.Observed {
		s.Kubepods = o.Capacity
	}
	return s
}

// want returns what should be armed.
func (l *sampler) want(w *watched) []bpf.Threshold {
	var list []bpf.Threshold
	for _, lv := range w.levels() {
		t := bpf.Threshold{
			Key: uint64(lv.mark), Capacity: uint64(lv.capacity), Available: uint64(lv.available),
			CountCache: l.o.CountCache, Margin: l.stats.Drift,
		}
		if lv.mark.Hard() && !l.o.CountCache {
			t.GrowthFloor = uint64(signal.GrowthFloor(l.o.Drift, lv.available))
		}
		if lv.mark.Signal() == signal.AllocatableMemoryAvailable {
			t.Source = bpf.SourcePods
		}
		if len(list) < bpf.MaxThresholds {
			list = append(list, t)
		}
	}
	return list
}

// rearm makes thresholds raise anew that have raised and are above again, or are
// by what was read from files, but not by the margin that the sampler waits for.
func (l *sampler) rearm(w *watched) error {
	for i := range l.armed {
		t := &l.armed[i]
		o := &w.observed[signal.Mark(t.Key).Signal()]
		if o.Status != signal.Observed || o.Available < int64(t.Available) || !l.ring.raised[t.Key].Swap(false) {
			continue
		}
		if t.Left(&l.last) < t.Available+t.Margin {
			if err := l.sampler.Rearm(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// stands reports whether the pods' cgroup is followed, and not known to be gone.
func (l *sampler) stands() bool {
	return l.pods != 0 && l.troubled.err == nil && !l.ring.gone.Load()
}

// follow has the sampler follow the pods' cgroup that is there now. Where nobody
// can say which that is, it stays at the one that it has.
func (l *sampler) follow() error {
	found, ok, err := l.o.Hierarchy.Kubepods(l.o.CgroupRoot)
	if err != nil {
		return err
	}
	if !ok {
		return l.unfollow()
	}
	dir, id, err := openDir(l.o.Hierarchy.Memory.Path(found.Path))
	if errors.Is(err, os.ErrNotExist) {
		return nil // it went just now
	}
	if err != nil {
		return fmt.Errorf("open kubepods: %w", err)
	}
	defer unix.Close(dir)
	if gone := l.ring.gone.Swap(false); id == l.pods && !gone {
		return nil
	}
	if err := l.sampler.SetPods(dir); err != nil {
		return errors.Join(err, l.unfollow())
	}
	l.pods = id
	// Where it does not come in time, the sample tells why.
	if err := l.sampler.Walk(firstWalk); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// unfollow has the sampler follow no cgroup any more.
func (l *sampler) unfollow() error {
	if l.pods == 0 {
		return nil
	}
	l.pods = 0
	return l.sampler.SetPods(-1)
}

// openDir opens a directory and returns its descriptor and its inode number.
func openDir(path string) (fd int, inode uint64, err error) {
	if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, 0, os.NewSyscallError("fstat", err)
	}
	return fd, st.Ino, nil
}

// readable reports whether the sampler can read the pods, be it that it makes sure just
// now.
func (l *sampler) readable() bool { return l.last.Pods.Valid || l.last.Pods.Uncertain }

// covers implements coverer: both memory signals, as far as they are armed and can be
// read.
func (l *sampler) covers(m signal.Mark) (slack int64, ok bool) {
	return 2 * int64(l.stats.Drift), l.threshold(m) != nil
}

// figure implements witness.
func (l *sampler) figure(m signal.Mark) (available, below, above int64, ok bool) {
	t := l.threshold(m)
	if t == nil || t.Source == bpf.SourcePods && !l.last.Pods.Valid {
		return 0, 0, 0, false
	}
	return int64(t.Left(&l.last)), int64(t.Available), int64(t.Available + t.Margin), true
}

// threshold returns what is armed for a mark whose figures the last sample has; nil
// where there is nothing.
func (l *sampler) threshold(m signal.Mark) *bpf.Threshold {
	for i := range l.armed {
		t := &l.armed[i]
		valid := l.last.Node.Valid
		if t.Source == bpf.SourcePods {
			valid = l.pods != 0 && l.readable()
		}
		if t.Key == uint64(m) && valid {
			return t
		}
	}
	return nil
}

// beat implements periodic: the ticks.
func (l *sampler) beat() uint64 { return l.stats.Ticks }

// period implements periodic.
func (l *sampler) period() time.Duration { return l.stats.Period }

// note implements noter.
func (l *sampler) note() string {
	t := l.troubled
	switch {
	case t.err != nil || l.pods == 0:
	case l.last.Pods.Truncated:
		t.err = errors.New("left to other lanes, as there are more cgroups than the sampler can read at once")
	case !l.readable():
		t.err = errors.New("left to other lanes, as the sampler can't read it")
	}
	return t.note(ofPods)
}

// close implements lane.
func (l *sampler) close() error {
	var errs []error
	l.o.Quick.SetSampler(nil)
	if l.sampler != nil {
		errs = append(errs, l.sampler.Close())
	}
	if l.holds {
		errs = append(errs, l.ring.release())
	}
	*l = sampler{o: l.o, ring: l.ring}
	return errors.Join(errs...)
}
