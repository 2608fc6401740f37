package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/pods"
)

// oneKernelKill is how long the kernel may take for the processes of a pod that
// make one record: it names each of them.
const oneKernelKill = 10 * time.Second

// followKernelKills tells of the processes that the kernel's OOM killer takes,
// until ctx ends.
func (d *daemon) followKernelKills(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-d.lanes.Victims():
			d.kernelKilled(v.PID, v.TGID, v.Comm, v.Cgroup)
		}
	}
}

func (d *daemon) kernelKilled(pid, process int, command string, cgroup uint64) {
	var snapshot pods.Snapshot
	if v := d.board.view.Load(); v != nil {
		snapshot = v.Snapshot
	}
	pod := podOfCgroup(&snapshot, cgroup)
	name := ""
	if pod != nil {
		name = pod.Key()
		d.board.records.kernelKilled(evict.Record{
			Pod: name, UID: pod.UID, Cause: evict.CauseKernelOOM, Hard: true, Reason: "OOMKilled",
			Message: fmt.Sprintf("The kernel's OOM killer took process %d (%s). ", process, command),
			Lane:    lanes.Reclaim, Decided: time.Now(), Processes: 1, Result: evict.ResultKernel,
		}, oneKernelKill)
		d.keeper.poke()
	}
	d.metrics.KernelKilled(pod != nil)
	d.log.Warn("the kernel's OOM killer took a process", "pod", name, "thread", pid, "process", process, "command", command, "cgroup_id", cgroup)
	d.inventory.Refresh()
}

// podOfCgroup returns the pod that has a container in a cgroup, nil where none
// does.
func podOfCgroup(s *pods.Snapshot, id uint64) *evict.Pod {
	for i := range s.Pods {
		for _, c := range s.Handles[s.Pods[i].UID].Containers {
			if c.CgroupID == id && id != 0 {
				return &s.Pods[i]
			}
		}
	}
	return nil
}

// kernelKilled adds the record of a process that the kernel took. Where there is
// one of the same pod that is not older than together, the process is counted
// there.
func (r *records) kernelKilled(record evict.Record, together time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		known := &r.list[i]
		if known.UID == record.UID && known.Result == evict.ResultKernel && record.Decided.Sub(known.Decided) < together {
			known.Processes++
			return
		}
	}
	r.list = append(r.list, record)
	r.trim()
}
