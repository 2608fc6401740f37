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

const (
	// kernelKillSummary is how often further kills in one container are logged and
	// saved after the first, in one line that counts them. A container that reaches
	// its limit again and again loses a hundred processes a second.
	kernelKillSummary = execute.KernelKillGap
	// kernelKillList bounds how often a kill asks the runtimes for a new list.
	kernelKillList = time.Second
)

// KernelKills reports the processes that the kernel's OOM killer takes. The first
// in a container is reported at once; further ones are counted and summed up, so
// that neither lines nor lists nor records grow with the number of kills.
type KernelKills struct {
	Victims  <-chan lanes.Victim
	Snapshot func() *pods.Snapshot
	Records  *execute.Records
	Warn     func(message string, attributes ...any)
	Count    func(ofPod bool)
	Save     func() // asks for the state to be saved
	List     func() // asks for a new list of pods

	// recent are the containers whose last report is younger than
	// kernelKillSummary.
	recent map[killedContainer]*killCount
	// listed is when a list was last asked for, and stale says that a process was
	// killed since.
	listed time.Time
	stale  bool
}

// killedContainer names a container over its restarts. All processes that are in no
// listed container share the empty one: cgroups outside the pods are without bound.
type killedContainer struct{ uid, container string }

// killCount counts what was not reported yet.
type killCount struct {
	pod      string
	reported time.Time
	more     int
	last     lanes.Victim
}

// Run reports what the kernel's OOM killer takes until ctx ends.
func (k *KernelKills) Run(ctx context.Context) {
	k.recent = map[killedContainer]*killCount{}
	timer := time.NewTimer(kernelKillSummary)
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

// killed counts one process, and reports it where it is the first of its container.
func (k *KernelKills) killed(v *lanes.Victim, now time.Time) {
	k.stale = true
	pod, container := podOfCgroup(k.Snapshot(), v.Cgroup)
	k.Count(pod != nil)
	key, name := killedContainer{}, ""
	if pod != nil {
		key, name = killedContainer{pod.UID, container}, pod.Key()
		k.Records.KernelKilled(evict.Record{
			Pod: name, UID: pod.UID, Cause: evict.CauseKernelOOM, Hard: true, Reason: "OOMKilled",
			Message: fmt.Sprintf("The kernel's OOM killer took process %d (%s). ", v.TGID, v.Comm),
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
	k.Warn("the kernel's OOM killer took a process", "pod", name, "container", container, "thread", v.PID, "process", v.TGID,
		"command", v.Comm, "cgroup_id", v.Cgroup)
}

// due does what has come due, and returns the time until something does again.
func (k *KernelKills) due(now time.Time) time.Duration {
	wait := kernelKillSummary
	if k.stale {
		if left := kernelKillList - now.Sub(k.listed); left > 0 {
			wait = min(wait, left)
		} else {
			k.listed, k.stale = now, false
			k.List()
		}
	}
	for key, c := range k.recent {
		if left := kernelKillSummary - now.Sub(c.reported); left > 0 {
			wait = min(wait, left)
			continue
		}
		if c.more == 0 {
			delete(k.recent, key)
			continue
		}
		k.Save()
		k.Warn("the kernel's OOM killer took more processes", "pod", c.pod, "container", key.container, "processes", c.more,
			"seconds", int(now.Sub(c.reported).Seconds()), "last_process", c.last.TGID, "last_command", c.last.Comm)
		c.reported, c.more = now, 0
	}
	return wait
}

// podOfCgroup returns the pod that has a container in a cgroup, and the container's
// name; nil where none does.
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
