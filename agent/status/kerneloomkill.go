package status

import (
	"context"
	"fmt"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/pods"
)

// summaryInterval is how often further kills in a container are logged and saved, in one
// line with their number. A container that reaches its limit again and again loses a
// hundred processes a second.
const summaryInterval = execute.KernelKillGap

// KernelOOMKills reports the processes that the kernel's OOM killer kills. The first in
// a container is reported at once. Further ones are counted and reported as a
// number, so that log, lists and records don't grow with the number of kills.
type KernelOOMKills struct {
	Victims  <-chan lanes.OOMVictim
	Snapshot func() *pods.Snapshot
	Records  *execute.Records
	Warn     func(message string, attributes ...any)
	Count    func(ofPod bool)
	Save     func() // requests a save of the state
	List     func() // requests a new list of pods

	// recent are the containers whose last report is younger than summaryInterval.
	recent map[killedContainer]*killCount
	// listed is when a list was last requested. stale is set if a process was killed
	// since then.
	listed time.Time
	stale  bool
}

// killedContainer identifies a container across restarts. All processes outside the
// listed containers share the zero value, because the number of cgroups outside the
// pods is not limited.
type killedContainer struct{ uid, container string }

// killCount counts the kills that are not reported yet.
type killCount struct {
	pod      string
	reported time.Time
	more     int
	last     lanes.OOMVictim
}

// Run reports kills until ctx ends.
func (k *KernelOOMKills) Run(ctx context.Context) {
	k.recent = map[killedContainer]*killCount{}
	timer := time.NewTimer(summaryInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-k.Victims:
			k.killed(&v, time.Now())
		case <-timer.C:
		}
		timer.Reset(k.due(time.Now()))
	}
}

// killed counts one process, and reports it if it is the first of its container.
func (k *KernelOOMKills) killed(v *lanes.OOMVictim, now time.Time) {
	k.stale = true
	pod, container := podOfCgroup(k.Snapshot(), v.Cgroup)
	k.Count(pod != nil)
	key, name := killedContainer{}, ""
	if pod != nil {
		key, name = killedContainer{pod.UID, container}, pod.Key()
		k.Records.AddKernelKill(evict.Record{
			Pod: name, UID: pod.UID, Cause: evict.CauseKernelOOM, Hard: true, Reason: "OOMKilled",
			Message: fmt.Sprintf("The kernel's OOM killer killed process %d (%s). ", v.TGID, v.Comm),
			Lane:    lanes.Reclaim, Decided: now, LastGone: now, Processes: 1, Result: evict.ResultKernel,
		})
	}
	if c := k.recent[key]; c != nil {
		c.more++
		c.last = *v
		return
	}
	k.recent[key] = &killCount{pod: name, reported: now}
	k.Save()
	k.Warn("kernel OOM killer killed a process", "pod", name, "container", container, "thread", v.PID, "process", v.TGID,
		"command", v.Comm, "cgroup_id", v.Cgroup)
}

// due requests a list and reports the summaries that are due. It returns the time
// until the next one is.
func (k *KernelOOMKills) due(now time.Time) time.Duration {
	wait := summaryInterval
	if k.stale {
		if left := pods.ListInterval - now.Sub(k.listed); left > 0 {
			wait = min(wait, left)
		} else {
			k.listed, k.stale = now, false
			k.List()
		}
	}
	for key, c := range k.recent {
		if left := summaryInterval - now.Sub(c.reported); left > 0 {
			wait = min(wait, left)
			continue
		}
		if c.more == 0 {
			delete(k.recent, key)
			continue
		}
		k.Save()
		k.Warn("kernel OOM killer killed more processes", "pod", c.pod, "container", key.container, "processes", c.more,
			"seconds", int(now.Sub(c.reported).Seconds()), "last_process", c.last.TGID, "last_command", c.last.Comm)
		c.reported, c.more = now, 0
	}
	return wait
}

// podOfCgroup returns the pod with a container in a cgroup, and the container's
// name. It returns nil if there is none.
func podOfCgroup(s *pods.Snapshot, id uint64) (*evict.Pod, string) {
	for i := range s.Pods {
		for _, c := range s.Handles[s.Pods[i].UID].Containers {
			if c.CgroupID == id && id != 0 {
				return &s.Pods[i], c.Name
			}
		}
	}
	return nil, ""
}
