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

// samplerLane is the lane of the BPF timer.
type samplerLane struct {
	o    SetOptions
	ring *ring

	sampler      *bpf.Sampler
	ringAcquired bool
	cpus         int // online when it was opened
	checkedAt    time.Time
	stats        bpf.Stats
	last         bpf.Sample // of the last reconcile
	armed        []bpf.Threshold
	pods         uint64 // inode of the followed cgroup; 0 for none
	podsFailure  partialFailure
}

// open implements lane.
func (l *samplerLane) open(now time.Time, in *laneInput) error {
	if err := l.ring.acquire(); err != nil {
		return err
	}
	l.ringAcquired = true
	var err error
	if l.cpus, err = cpu.Online(l.o.Sysfs); err != nil {
		return err
	}
	l.checkedAt = now
	l.sampler, err = bpf.OpenSampler(l.ring.ring, bpf.Options{
		MinPeriod: l.o.BPFMinPeriod, MaxPeriod: l.o.BPFMaxPeriod, CPUs: l.cpus, WalkLimit: l.o.walkLimit,
	})
	if err != nil {
		return err
	}
	// The deadline starts here: loading the programs may have taken longer.
	for deadline := time.Now().Add(firstTickDeadline); ; time.Sleep(time.Millisecond) {
		if _, err = l.sampler.Stats(); err == nil {
			return l.update(now, in)
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

const (
	// firstTickDeadline bounds the wait for the first tick. It is long compared with the
	// longest sampling interval, for a busy machine.
	firstTickDeadline = time.Second
	// firstWalkDeadline bounds the wait for the first walk of another kubepods cgroup.
	// Reconcile retries, so it is kept short.
	firstWalkDeadline = 50 * time.Millisecond
)

// reconcile implements lane.
func (l *samplerLane) reconcile(now time.Time, in *laneInput) error {
	if err := l.ring.readErr.Load(); err != nil {
		return *err
	}
	if now.Sub(l.checkedAt) >= fullCheckInterval {
		l.checkedAt = now
		if err := l.checkMachine(); err != nil {
			return err
		}
	}
	return l.update(now, in)
}

// checkMachine returns an error if the machine has grown: the sampler would miss the
// memory of another NUMA node, and the drift of more CPUs.
func (l *samplerLane) checkMachine() error {
	cpus, err := cpu.Online(l.o.Sysfs)
	if err != nil {
		return err
	}
	if cpus > l.cpus {
		return fmt.Errorf("%d CPUs are online; the sampler was opened with %d", cpus, l.cpus)
	}
	changed, err := l.sampler.NUMANodesChanged()
	if err == nil && changed {
		err = errors.New("the NUMA nodes with memory have changed since the sampler was opened")
	}
	return err
}

func (l *samplerLane) update(now time.Time, in *laneInput) (err error) {
	if !l.podsFailure.backingOff(now) && !(in.idle && l.podsFollowed()) {
		l.podsFailure.record(now, l.followPods())
	}
	if l.stats, err = l.sampler.Stats(); err != nil {
		return err
	}
	if err := l.sampler.Sample(&l.last); err != nil {
		return err
	}
	if wanted := l.wantedThresholds(in); !slices.Equal(l.armed, wanted) {
		if err := l.sampler.Arm(wanted); err != nil {
			return err
		}
		l.armed = wanted
	}
	l.o.SamplerReader.SetSampler(l.source(in))
	return l.rearm(in)
}

// source returns what a [memory.SamplerReader] reads; nil if files have to be read. Files
// are read for the node too while kubepods can't be read.
func (l *samplerLane) source(in *laneInput) *memory.Sampler {
	known := l.podsReadable()
	if l.pods == 0 { // there is none, or it is not known which it is
		known = l.podsFailure.err == nil
	}
	if !known || !l.last.Node.Valid {
		return nil
	}
	s := &memory.Sampler{
		Sampler: l.sampler, CountCache: l.o.CountCache, Pods: l.pods != 0, Armed: l.armed, Raised: &l.ring.raised,
	}
	if o := &in.observed[signal.AllocatableMemoryAvailable]; o.Status == signal.Observed {
		s.Kubepods = o.Capacity
	}
	return s
}

// wantedThresholds returns the thresholds to arm.
func (l *samplerLane) wantedThresholds(in *laneInput) []bpf.Threshold {
	var list []bpf.Threshold
	for _, th := range in.memoryThresholds() {
		t := bpf.Threshold{
			Key: uint64(th.id), Capacity: uint64(th.capacity), Available: uint64(th.available),
			CountCache: l.o.CountCache, Margin: l.stats.Drift,
		}
		if th.id.Hard() && !l.o.CountCache {
			t.GrowthFloor = uint64(signal.GrowthFloor(l.o.Drift, th.available))
		}
		if th.id.Signal() == signal.AllocatableMemoryAvailable {
			t.Source = bpf.SourcePods
		}
		if len(list) < bpf.MaxThresholds {
			list = append(list, t)
		}
	}
	return list
}

// rearm arms thresholds again that have raised an alarm and are not crossed in the last
// reading. The sampler itself would wait for a margin above the threshold.
func (l *samplerLane) rearm(in *laneInput) error {
	for i := range l.armed {
		t := &l.armed[i]
		o := &in.observed[signal.ThresholdID(t.Key).Signal()]
		if o.Status != signal.Observed || o.Available < int64(t.Available) || !l.ring.raised[t.Key].Swap(false) {
			continue
		}
		if t.AvailableIn(&l.last) < t.Available+t.Margin {
			if err := l.sampler.Rearm(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// podsFollowed reports whether the cgroup of the pods is followed and, as far as is known,
// not removed.
func (l *samplerLane) podsFollowed() bool {
	return l.pods != 0 && l.podsFailure.err == nil && !l.ring.podsRemoved.Load()
}

// followPods makes the sampler follow the current kubepods cgroup. If it is not known
// which that is, the sampler keeps its cgroup.
func (l *samplerLane) followPods() error {
	found, ok, err := l.o.Hierarchy.Kubepods(l.o.CgroupRoot)
	if err != nil {
		return err
	}
	if !ok {
		return l.unfollowPods()
	}
	dir, id, err := openDir(l.o.Hierarchy.Memory.Path(found.Path))
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was removed just now
	}
	if err != nil {
		return fmt.Errorf("open kubepods: %w", err)
	}
	defer unix.Close(dir)
	if removed := l.ring.podsRemoved.Swap(false); id == l.pods && !removed {
		return nil
	}
	if err := l.sampler.SetPods(dir); err != nil {
		return errors.Join(err, l.unfollowPods())
	}
	l.pods = id
	// After the deadline, the sample has the reason.
	if err := l.sampler.Walk(firstWalkDeadline); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// unfollowPods makes the sampler follow no cgroup.
func (l *samplerLane) unfollowPods() error {
	if l.pods == 0 {
		return nil
	}
	l.pods = 0
	return l.sampler.SetPods(-1)
}

// openDir opens a directory and returns its descriptor and inode number.
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

// podsReadable reports whether the sampler can read kubepods, or is verifying that now.
func (l *samplerLane) podsReadable() bool { return l.last.Pods.Valid || l.last.Pods.Uncertain }

// covers implements coverer. Thresholds of both memory signals are covered if they are
// armed and the sampler can read their values.
func (l *samplerLane) covers(id signal.ThresholdID) (tolerance int64, ok bool) {
	return 2 * int64(l.stats.Drift), l.threshold(id) != nil
}

// lastSample implements selfChecker.
func (l *samplerLane) lastSample(id signal.ThresholdID) (available, below, above int64, ok bool) {
	t := l.threshold(id)
	if t == nil || t.Source == bpf.SourcePods && !l.last.Pods.Valid {
		return 0, 0, 0, false
	}
	return int64(t.AvailableIn(&l.last)), int64(t.Available), int64(t.Available + t.Margin), true
}

// threshold returns the armed threshold if the last sample has its values, else nil.
func (l *samplerLane) threshold(id signal.ThresholdID) *bpf.Threshold {
	for i := range l.armed {
		t := &l.armed[i]
		valid := l.last.Node.Valid
		if t.Source == bpf.SourcePods {
			valid = l.pods != 0 && l.podsReadable()
		}
		if t.Key == uint64(id) && valid {
			return t
		}
	}
	return nil
}

// heartbeat implements periodic: the number of ticks.
func (l *samplerLane) heartbeat() uint64 { return l.stats.Ticks }

// period implements periodic.
func (l *samplerLane) period() time.Duration { return l.stats.Period }

// partialFailure implements partialFailer.
func (l *samplerLane) partialFailure() string {
	failure := l.podsFailure
	switch {
	case failure.err != nil || l.pods == 0:
	case l.last.Pods.Truncated:
		failure.err = errors.New("left to other lanes: more cgroups than the sampler can walk at once")
	case !l.podsReadable():
		failure.err = errors.New("left to other lanes: the sampler can't read it")
	}
	return failure.describe(podsPart)
}

// close implements lane.
func (l *samplerLane) close() error {
	var errs []error
	l.o.SamplerReader.SetSampler(nil)
	if l.sampler != nil {
		errs = append(errs, l.sampler.Close())
	}
	if l.ringAcquired {
		errs = append(errs, l.ring.release())
	}
	*l = samplerLane{o: l.o, ring: l.ring}
	return errors.Join(errs...)
}
