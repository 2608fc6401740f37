package lanes

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent/memory"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/memcg"
)

// eventsLane is the lane of cgroup v2's memory.events.local, of kubepods and of the containers.
// When all pods together reach their limit, a threshold may have been crossed, and the
// lane raises an alarm. When a container reaches its own limit, which may happen all the
// time, the lane only counts it. memory.events of kubepods would include both.
type eventsLane struct {
	o      memory.Options
	wait   Waiter
	wanted atomic.Pointer[map[string]bool] // paths of containers

	lastFullCheck time.Time
	pods          *cgroupEvents
	podsFailure   partialFailure
	containers    map[string]*cgroupEvents   // by path
	failures      map[string]*partialFailure // of containers, by path
	totals        LimitCounts
}

// LimitCounts are totals of the kernel's actions at the memory limits of the containers,
// while they were followed.
type LimitCounts struct {
	Max      uint64 // memory.events max: usage was about to exceed the limit
	OOM      uint64 // memory.events oom: an allocation at the limit failed to reclaim
	OOMKills uint64 // memory.events oom_kill: processes killed by the OOM killer
}

// cgroupEvents are the polled event counters of a cgroup.
type cgroupEvents struct {
	path    string
	file    *memcg.Events
	last    memcg.Counts // used by the Set's goroutine
	changed atomic.Bool  // since that goroutine read the counts of a container
	raises  bool         // alarms: it is kubepods, and not a container
	// Used by the waiting thread.
	alarmed   memcg.Counts
	lastAlarm time.Time
}

// FD implements Source.
func (c *cgroupEvents) FD() int { return c.file.FD() }

// Events implements Source. It is edge-triggered, as a removed cgroup may report EPOLLERR
// forever.
func (c *cgroupEvents) Events() uint32 { return unix.EPOLLPRI | unix.EPOLLET }

// Ready implements Source. The counts of a container are read by the Set's goroutine: the
// kernel reports the next edge even if nothing has read the file since
// (fs/kernfs/file.c: kernfs_notify).
func (c *cgroupEvents) Ready(now time.Time) (Alarm, bool) {
	if !c.raises {
		c.changed.Store(true)
		return Alarm{}, false
	}
	counts, err := c.file.Read()
	if err != nil {
		return Alarm{}, false // reconcile handles the error
	}
	atLimit := counts.High != c.alarmed.High || counts.Max != c.alarmed.Max || counts.OOM != c.alarmed.OOM
	c.alarmed = counts
	if !atLimit || now.Sub(c.lastAlarm) < cgroupAlarmInterval {
		return Alarm{}, false
	}
	c.lastAlarm = now
	return Alarm{Lane: Events, Seen: now}, true
}

// open implements lane.
func (l *eventsLane) open(now time.Time, in *laneInput) error {
	l.containers, l.failures = map[string]*cgroupEvents{}, map[string]*partialFailure{}
	if l.o.Hierarchy.Version != cgroup.V2 {
		return errNoLocalEvents
	}
	return l.reconcile(now, in)
}

var errNoLocalEvents = unavailableError("memory is in a v1 tree, which has no memory.events")

// unavailableError is a reason why something is not available on this host.
type unavailableError string

func (e unavailableError) Error() string        { return string(e) }
func (e unavailableError) Is(target error) bool { return target == kernel.ErrUnavailable }

// reconcile implements lane. A failure of one cgroup does not affect the others. Each
// fullCheckInterval it reads all counters, because a removed cgroup raises no event.
func (l *eventsLane) reconcile(now time.Time, _ *laneInput) error {
	if !l.podsFailure.backingOff(now) {
		l.podsFailure.record(now, l.followPods())
	}
	var wanted map[string]bool
	if paths := l.wanted.Load(); paths != nil {
		wanted = *paths
	}
	full := now.Sub(l.lastFullCheck) >= fullCheckInterval
	if full {
		l.lastFullCheck = now
	}
	for path, c := range l.containers {
		if c.changed.Swap(false) || full || !wanted[path] {
			l.updateCounts(now, c, wanted[path])
		}
	}
	for path := range wanted {
		if l.containers[path] == nil {
			l.follow(now, path)
		}
	}
	for path := range l.failures {
		if !wanted[path] {
			delete(l.failures, path)
		}
	}
	return nil
}

// updateCounts reads the counts of a container, and closes it if it was removed or is not
// wanted.
func (l *eventsLane) updateCounts(now time.Time, c *cgroupEvents, wanted bool) {
	counts, err := c.file.Read()
	if err == nil {
		l.totals.Max += counts.Max - c.last.Max
		l.totals.OOM += counts.OOM - c.last.OOM
		l.totals.OOMKills += counts.OOMKill - c.last.OOMKill
		c.last = counts
		if wanted {
			return
		}
	}
	delete(l.containers, c.path)
	if dropped := l.drop(c); errors.Is(err, cgroup.ErrGone) || err == nil {
		err = dropped
	}
	l.setFailure(now, c.path, err)
}

// follow opens the counters of a container.
func (l *eventsLane) follow(now time.Time, path string) {
	if failure := l.failures[path]; failure != nil && failure.backingOff(now) {
		return
	}
	c, err := l.add(path, false)
	if err == nil {
		l.containers[path] = c
	} else if errors.Is(err, cgroup.ErrGone) {
		err = nil
	}
	l.setFailure(now, path, err)
}

// setFailure records the failure of a container; nil clears it.
func (l *eventsLane) setFailure(now time.Time, path string, err error) {
	if err == nil {
		delete(l.failures, path)
		return
	}
	failure := &partialFailure{}
	failure.record(now, err)
	l.failures[path] = failure
}

// add opens the counters of a cgroup and polls them.
func (l *eventsLane) add(path string, raises bool) (*cgroupEvents, error) {
	group, err := l.o.Hierarchy.Open(path)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	file, err := memcg.OpenLocalEvents(l.o.Hierarchy, group)
	if err != nil {
		return nil, err
	}
	c := &cgroupEvents{path: path, file: file, raises: raises}
	c.last, err = file.Read()
	c.alarmed = c.last
	if err == nil {
		err = l.wait.Add(c)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return c, nil
}

func (l *eventsLane) drop(c *cgroupEvents) error {
	return errors.Join(l.wait.Remove(c), c.file.Close())
}

// followPods opens the counters of the current kubepods cgroup.
func (l *eventsLane) followPods() error {
	if l.pods != nil {
		_, err := l.pods.file.Read()
		if err == nil {
			return nil
		}
		if errors.Is(err, cgroup.ErrGone) {
			err = nil
		}
		pods := l.pods
		l.pods = nil
		if err := errors.Join(err, l.drop(pods)); err != nil {
			return err
		}
	}
	found, ok, err := l.o.Hierarchy.Kubepods(l.o.CgroupRoot)
	if err != nil || !ok {
		return err
	}
	pods, err := l.add(found.Path, true)
	if errors.Is(err, cgroup.ErrGone) {
		return nil
	}
	l.pods = pods
	return err
}

// partialFailure implements partialFailer.
func (l *eventsLane) partialFailure() string {
	if failed := l.podsFailure.describe(podsPart); failed != "" || len(l.failures) == 0 {
		return failed
	}
	// Always the same container, so that the text does not change without a reason.
	first := slices.Min(slices.Collect(maps.Keys(l.failures)))
	return l.failures[first].describe(fmt.Sprintf("%d containers, such as %s", len(l.failures), first))
}

// close implements lane.
func (l *eventsLane) close() error {
	var errs []error
	if l.pods != nil {
		errs = append(errs, l.drop(l.pods))
	}
	for _, c := range l.containers {
		errs = append(errs, l.drop(c))
	}
	l.pods, l.containers, l.failures, l.podsFailure = nil, nil, nil, partialFailure{}
	return errors.Join(errs...)
}
