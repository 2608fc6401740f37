package driver

import (
	"context"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/shutdown"
)

// SkipReasons returns all reasons not to stop pods in a shutdown.
func (d *Driver) SkipReasons(v *loop.View) (why []string) {
	if len(v.Config.ShutdownSchedule()) == 0 {
		why = append(why, "neither shutdownGracePeriod nor shutdownGracePeriodByPodPriority is configured")
	}
	if v.Config.Shutdown.BesideKubelet == config.ShutdownOwn {
		return why
	}
	kubelet := ""
	if v.Snapshot.Kubelet.HasSandboxes {
		kubelet = "a kubelet owns pods of this node"
	} else if v.Snapshot.Kubelet.Process != "" {
		kubelet = "a kubelet runs on this node"
	}
	if kubelet != "" {
		if left := d.leftToKubelet(v); left != "" {
			why = append(why, kubelet+left)
		}
	}
	if d.o.DelayLock.Status().Kubelet {
		why = append(why, "a kubelet delays shutdowns itself (shutdown.besideKubelet: own makes evictd delay them too)")
	}
	return why
}

// leftToKubelet returns why the shutdown is left to the node's kubelet, as the end of a sentence
// about it; "" if it is not.
func (d *Driver) leftToKubelet(v *loop.View) string {
	const own = "shutdown.besideKubelet: own makes evictd stop the pods"
	if d.o.KubeletShutsDown == nil || v.Config.Shutdown.BesideKubelet == config.ShutdownKubelet {
		return " (" + own + ")"
	}
	if v.Config.Kubelet != config.KubeletAuto {
		return ", and evictions of its pods are not reported to the API server (kubelet: auto makes evictd report them; " + own + ")"
	}
	switch yes, known := d.o.KubeletShutsDown(); {
	case !known:
		return ", and its configuration is not known (evictd-kube reads it and needs the right to get nodes/configz; " + own + ")"
	case yes:
		return " and stops them itself (with shutdownGracePeriod: 0s and no shutdownGracePeriodByPodPriority in its configuration, evictd does)"
	case len(v.Mode.Reasons) > len(v.Mode.ReasonsExceptKubelet):
		return ", and their ends can't be reported to the API server: " + strings.Join(v.Mode.Reasons[len(v.Mode.ReasonsExceptKubelet):], "; ")
	}
	return ""
}

// fences reports whether the kubelet's pods are fenced in a shutdown, and those reported to the API
// server that can be. That is decided when it begins: if evictd-kube can't report any more, or has
// not connected since evictd was restarted, the pods still must not run again.
func (d *Driver) fences(v *loop.View) bool {
	if s := d.State(); s.Active() { // the published one: others than Run call this
		return s.Fences
	}
	return v.Mode.Reporting
}

// newJob returns the job for an order of a shutdown. A kubelet's pod is reported if it has facts
// and the API server permits it: not a critical one (deploy/kubernetes), which the kubelet runs
// again after the boot, and no static one, whose object the kubelet does not read.
func (d *Driver) newJob(v *loop.View, order evict.Order, guard *evict.Guard) act.Job {
	job := loop.Job(order, &v.Snapshot, guard)
	if d.fences(v) && !job.Owned {
		pod := podOf(v, order.UID)
		job.Shutdown = true
		job.Reported = v.Mode.Reporting && v.Snapshot.Handles[order.UID].Facts && !pod.Critical() && pod.Unreportable == ""
	}
	return job
}

// Schedule returns the schedule of a shutdown that begins now. Next to a kubelet the time of the
// groups includes that for the last answers of evictd-kube.
func (d *Driver) Schedule(v *loop.View) shutdown.Schedule {
	s := v.Config.ShutdownSchedule()
	if !d.fences(v) {
		return s
	}
	return s.FitInto(s.Delay() - answerTime(s.Total()))
}

// answerTime returns the part of a shutdown in which the last answers of evictd-kube are waited
// for: a tenth, at most a second.
func answerTime(total time.Duration) time.Duration { return min(time.Second, max(0, total)/10) }

// timeForAnswers returns how long the shutdown may wait for answers when its pods have stopped.
func (d *Driver) timeForAnswers() time.Duration {
	if d.o.Unanswered == nil || !d.state.Fences {
		return 0
	}
	return answerTime(d.state.Schedule.Total())
}

// awaitAnswers waits until all orders to evictd-kube have a final answer or ctx ends. The orders of
// pods that the kubelet stops have been answered long before.
func (d *Driver) awaitAnswers(ctx context.Context) {
	for {
		n := d.o.Unanswered()
		if n == 0 {
			return
		}
		select {
		case <-ctx.Done():
			d.o.Log.Warn("ends of pods are not reported to the API server before the node shuts down; their kubelet runs them again after the boot", "pods", n)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
