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

// events is the lane of cgroup v2's counts, memory.events.local of kubepods and of
// the containers. That all pods together meet their limit is a good moment to look
// whether a mark has been crossed; that a container meets its own, as some do all
// day, is a fact to be counted. memory.events of kubepods would tell of both.
type events struct {
	o      memory.Options
	wait   Waiter
	wanted atomic.Pointer[map[string]bool] // paths of containers

	swept      time.Time
	pods       *counted
	troubled   trouble             // with the pods
	containers map[string]*counted // by path
	failed     map[string]*trouble // with containers, by path
	totals     LimitCounts
}

// LimitCounts are totals of what the kernel did for the memory limits of the
// containers, as far as they were followed.
type LimitCounts struct {
	Max      uint64 // a container was about to pass its limit
	OOM      uint64 // it was at its limit, and nothing could be freed
	OOMKills uint64 // the kernel's OOM killer took a process of it
}

// counted is a cgroup's counts that are polled.
type counted struct {
	path   string
	file   *memcg.Events
	last   memcg.Counts // of the watch over the lanes
	dirty  atomic.Bool
	raises bool
	// Of the thread that waits.
	seen  memcg.Counts
	alarm time.Time
}

// FD implements Source.
func (c *counted) FD() int { return c.file.FD() }

// Events implements Source. Edges alone, as a cgroup that is gone may report
// its error for ever.
func (c *counted) Events() uint32 { return unix.EPOLLPRI | unix.EPOLLET }

// eventPause is the least time between two alarms for the counts of a cgroup.
const eventPause = 100 * time.Millisecond

// Ready implements Source. A container's counts are left for the watch over the
// lanes to read: an edge is told of anew although nobody has read (fs/kernfs/file.c:
// kernfs_notify wakes whoever polls).
func (c *counted) Ready(now time.Time) (Raise, bool) {
	if !c.raises {
		c.dirty.Store(true)
		return Raise{}, false
	}
	counts, err := c.file.Read()
	if err != nil {
		return Raise{}, false // the watch over the lanes finds out
	}
	pressed := counts.High != c.seen.High || counts.Max != c.seen.Max || counts.OOM != c.seen.OOM
	c.seen = counts
	if !pressed || now.Sub(c.alarm) < eventPause {
		return Raise{}, false
	}
	c.alarm = now
	return Raise{Lane: Events, Seen: now}, true
}

// open implements lane.
func (l *events) open(now time.Time, w *watched) error {
	l.containers, l.failed = map[string]*counted{}, map[string]*trouble{}
	if l.o.Hierarchy.Version != cgroup.V2 {
		return errNoEvents
	}
	return l.tend(now, w)
}

var errNoEvents = unavailableError("memory is in a v1 tree, which has no memory.events")

// unavailableError is a reason why something can't be had here.
type unavailableError string

func (e unavailableError) Error() string        { return string(e) }
func (e unavailableError) Is(target error) bool { return target == kernel.ErrUnavailable }

// sweepEach is how often all counts are read, also of those that have not told of
// anything: a cgroup that was removed does not.
const sweepEach = 10 * time.Second

// tend implements lane. Nothing that is amiss with one cgroup is with the others.
func (l *events) tend(now time.Time, _ *watched) error {
	if !l.troubled.waits(now) {
		l.troubled.set(now, l.followPods())
	}
	var wanted map[string]bool
	if w := l.wanted.Load(); w != nil {
		wanted = *w
	}
	sweep := now.Sub(l.swept) >= sweepEach
	if sweep {
		l.swept = now
	}
	for path, c := range l.containers {
		if c.dirty.Swap(false) || sweep || !wanted[path] {
			l.count(now, c, wanted[path])
		}
	}
	for path := range wanted {
		if l.containers[path] == nil {
			l.follow(now, path)
		}
	}
	for path := range l.failed {
		if !wanted[path] {
			delete(l.failed, path)
		}
	}
	return nil
}

// count reads a container's counts, and drops one that is gone or not wanted.
func (l *events) count(now time.Time, c *counted, wanted bool) {
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
	l.fails(now, c.path, err)
}

// follow begins to count for a container.
func (l *events) follow(now time.Time, path string) {
	if t := l.failed[path]; t != nil && t.waits(now) {
		return
	}
	c, err := l.add(path, false)
	if err == nil {
		l.containers[path] = c
	} else if errors.Is(err, cgroup.ErrGone) {
		err = nil
	}
	l.fails(now, path, err)
}

// fails notes what is amiss with a container, or that nothing is.
func (l *events) fails(now time.Time, path string, err error) {
	if err == nil {
		delete(l.failed, path)
		return
	}
	t := &trouble{}
	t.set(now, err)
	l.failed[path] = t
}

// add opens a cgroup's counts and has them polled.
func (l *events) add(path string, raises bool) (*counted, error) {
	group, err := l.o.Hierarchy.Open(path)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	file, err := memcg.OpenLocalEvents(l.o.Hierarchy, group)
	if err != nil {
		return nil, err
	}
	c := &counted{path: path, file: file, raises: raises}
	c.last, err = file.Read()
	c.seen = c.last
	if err == nil {
		err = l.wait.Add(c)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return c, nil
}

func (l *events) drop(c *counted) error { return errors.Join(l.wait.Remove(c), c.file.Close()) }

// followPods opens the counts of the pods' cgroup that is there now.
func (l *events) followPods() error {
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

// note implements noter.
func (l *events) note() string {
	if note := l.troubled.note(ofPods); note != "" || len(l.failed) == 0 {
		return note
	}
	// The same one each time, or the note would change without a reason.
	first := slices.Min(slices.Collect(maps.Keys(l.failed)))
	return l.failed[first].note(fmt.Sprintf("%d containers, such as %s", len(l.failed), first))
}

// close implements lane.
func (l *events) close() error {
	var errs []error
	if l.pods != nil {
		errs = append(errs, l.drop(l.pods))
	}
	for _, c := range l.containers {
		errs = append(errs, l.drop(c))
	}
	l.pods, l.containers, l.failed, l.troubled = nil, nil, nil, trouble{}
	return errors.Join(errs...)
}
