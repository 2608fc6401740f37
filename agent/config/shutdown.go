package config

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/shutdown"
)

// The names of the fields about shutdown.
const (
	fieldShutdown         = "shutdownGracePeriod"
	fieldShutdownCritical = "shutdownGracePeriodCriticalPods"
	fieldShutdownGroups   = "shutdownGracePeriodByPodPriority"
)

// Shutdown are evictd's own fields about a graceful node shutdown.
type Shutdown struct {
	// BesideKubelet selects which program stops the pods on a node with a kubelet.
	BesideKubelet ShutdownOwner `yaml:"besideKubelet"`
}

// ShutdownOwner is the program that stops the pods when a node with a kubelet
// shuts down.
type ShutdownOwner string

// The owners.
const (
	// ShutdownAuto makes evictd stop the pods if the kubelet is known not to, and evictd-kube
	// reports evictions. Otherwise the shutdown is left to the kubelet.
	ShutdownAuto ShutdownOwner = "auto"
	// ShutdownKubelet leaves the shutdown to the kubelet.
	ShutdownKubelet ShutdownOwner = "kubelet"
	// ShutdownOwn makes evictd stop the pods; the kubelet's shutdownGracePeriod
	// must be 0s.
	ShutdownOwn ShutdownOwner = "own"
)

// UnmarshalText accepts auto, kubelet and own.
func (o *ShutdownOwner) UnmarshalText(text []byte) error {
	return choose(o, text, ShutdownAuto, ShutdownKubelet, ShutdownOwn)
}

// ShutdownSchedule returns the groups in which the pods are stopped when the node shuts
// down. An empty schedule stops no pod.
func (c *Config) ShutdownSchedule() shutdown.Schedule {
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		return shutdown.ByPeriods(c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods)
	}
	const maxSeconds = math.MaxInt64 / int64(time.Second)
	groups := make([]shutdown.Group, 0, len(c.ShutdownGracePeriodByPodPriority))
	for _, g := range c.ShutdownGracePeriodByPodPriority {
		groups = append(groups, shutdown.Group{Priority: g.Priority, Time: time.Duration(min(g.ShutdownGracePeriodSeconds, maxSeconds)) * time.Second})
	}
	return shutdown.ByPriority(groups)
}

func (c *Config) checkShutdown() {
	c.resolveShutdown()
	if c.ShutdownGracePeriodCriticalPods > c.ShutdownGracePeriod && !c.failed(fieldShutdown) {
		c.errorf(fieldShutdownCritical, "%v is more than shutdownGracePeriod, of which it is a part and which is %v",
			c.ShutdownGracePeriodCriticalPods, c.ShutdownGracePeriod)
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{{fieldShutdown, c.ShutdownGracePeriod}, {fieldShutdownCritical, c.ShutdownGracePeriodCriticalPods}} {
		if f.value != 0 && f.value < time.Second {
			c.errorf(f.name, "is %v; want 0s, or at least 1s", f.value)
		}
	}
	c.checkShutdownGroups()
}

// resolveShutdown keeps one of the two ways to configure a shutdown. Both in one
// file are an error. If each comes from another file, the AgentConfiguration's
// overrides the kubelet's.
func (c *Config) resolveShutdown() {
	periods := fieldShutdown
	if c.ShutdownGracePeriod == 0 {
		periods = fieldShutdownCritical
	}
	if len(c.ShutdownGracePeriodByPodPriority) == 0 || c.ShutdownGracePeriod == 0 && c.ShutdownGracePeriodCriticalPods == 0 {
		return
	}
	switch fromKubelet := c.sources.fromKubelet(periods); {
	case fromKubelet == c.sources.fromKubelet(fieldShutdownGroups):
		c.errorf(fieldShutdownGroups, "excludes %s; give one of them", periods)
	case fromKubelet:
		c.noticef(periods, "is overridden by %s", fieldShutdownGroups)
		c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods = 0, 0
	default:
		c.noticef(fieldShutdownGroups, "is overridden by %s", periods)
		c.ShutdownGracePeriodByPodPriority = []ShutdownGroup{}
	}
}

func (c *Config) checkShutdownGroups() {
	fromKubelet := c.sources.fromKubelet(fieldShutdownGroups)
	first := map[int32]int{} // by priority, the index in the file
	kept := make([]ShutdownGroup, 0, len(c.ShutdownGracePeriodByPodPriority))
	for i, group := range c.ShutdownGracePeriodByPodPriority {
		at := strict.Index(fieldShutdownGroups, i)
		seconds, priority := strict.Key(at, "shutdownGracePeriodSeconds"), strict.Key(at, "priority")
		if c.failed(at) {
			continue
		}
		if group.ShutdownGracePeriodSeconds < 0 {
			if fromKubelet {
				c.noticef(seconds, "%d is negative and counts as 0", group.ShutdownGracePeriodSeconds)
				group.ShutdownGracePeriodSeconds = 0
			} else {
				c.errorf(seconds, "is %d; want a number of seconds of at least 0", group.ShutdownGracePeriodSeconds)
			}
		}
		if other, twice := first[group.Priority]; !twice {
			first[group.Priority] = i
		} else if !fromKubelet {
			c.errorf(priority, "%d is listed twice, first in %s", group.Priority, strict.Index(fieldShutdownGroups, other))
		} else {
			c.noticef(priority, "%d is listed twice; as in the kubelet the first applies to pods of exactly that priority, the last to those above", group.Priority)
		}
		kept = append(kept, group)
	}
	if fromKubelet {
		kept = splitDuplicates(kept)
	}
	c.ShutdownGracePeriodByPodPriority = slices.Clip(kept)
}

// splitDuplicates makes groups of the same priority unique in the way the kubelet
// reads them (nodeshutdown_manager.go: groupByPriority): its binary search puts
// pods of exactly that priority into the first group, and those above it, up to
// the next priority, into the last. The groups in between get no pod.
func splitDuplicates(groups []ShutdownGroup) []ShutdownGroup {
	slices.SortStableFunc(groups, func(a, b ShutdownGroup) int { return cmp.Compare(a.Priority, b.Priority) })
	var unique []ShutdownGroup
	for i := 0; i < len(groups); {
		g := groups[i]
		next := i + 1
		for next < len(groups) && groups[next].Priority == g.Priority {
			next++
		}
		unique = append(unique, g)
		adjacent := next < len(groups) && groups[next].Priority == g.Priority+1 // no priority in between
		if next-i > 1 && g.Priority < math.MaxInt32 && !adjacent {
			last := groups[next-1]
			last.Priority++
			unique = append(unique, last)
		}
		i = next
	}
	return unique
}
