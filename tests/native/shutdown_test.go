package native_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/agent/shutdown/logind/logindtest"
	"github.com/evictd/evictd/tests/node"
)

// gracePeriods returns settings with shutdownGracePeriodByPodPriority from pairs of a priority and seconds.
func gracePeriods(pairs ...[2]int) string {
	text := "evictionHard: {}\nshutdownGracePeriodByPodPriority:\n"
	for _, p := range pairs {
		text += fmt.Sprintf("- {priority: %d, shutdownGracePeriodSeconds: %d}\n", p[0], p[1])
	}
	return text
}

// podOfPriority returns a pod with a priority. It exits on SIGTERM unless args change that.
func podOfPriority(name string, priority int, args ...string) node.PodSpec {
	return node.PodSpec{
		Name: name, Annotations: map[string]string{"evictd.io/priority": fmt.Sprint(priority)}, TerminationGracePeriod: time.Minute,
		Containers: oneContainer(holdArgs(mebibyte, args...)),
	}
}

// startWithLogind starts an evictd with a private D-Bus and a fake logind.
func startWithLogind(t *testing.T, n *node.Node, settings string, pods ...*pod) (*daemon, *logindtest.Bus) {
	t.Helper()
	root := t.TempDir()
	bus := logindtest.New(t, root)
	d := newDaemon(t, n, settings)
	d.args = []string{"--path.rootfs", root}
	d.start()
	d.waitPods(len(pods))
	return d, bus
}

// waitInhibited waits until evictd has its inhibitor lock.
func (d *daemon) waitInhibited(bus *logindtest.Bus) {
	d.t.Helper()
	d.waitStatus("inhibitor lock", func(s *control.Status) bool { return s.Shutdown.Inhibited })
	if locks := bus.Locks(); len(locks) != 1 || locks[0].Who != logind.Who {
		d.t.Fatalf("locks = %+v; want only evictd's", locks)
	}
}

// waitReleased waits until evictd has released its lock, and returns the status of the shutdown.
func (d *daemon) waitReleased(bus *logindtest.Bus) control.Shutdown {
	d.t.Helper()
	eventually(d.t, "release of the inhibitor lock", func() bool { return len(bus.Locks()) == 0 })
	s := d.waitStatus("end of the shutdown", func(s *control.Status) bool { return s.Shutdown.Phase == "ended" })
	return s.Shutdown
}

// goneAt returns when a pod's last process exited, by its record.
func (d *daemon) goneAt(p *pod) time.Time {
	d.t.Helper()
	rec := d.waitRecord(p)
	if rec.LastGone.IsZero() || rec.Cause != evict.CauseShutdown {
		d.t.Errorf("record of %s: cause %s, last gone %v, error %q; want %s and a last exit", p.Name, rec.Cause, rec.LastGone, rec.Error, evict.CauseShutdown)
	}
	return rec.LastGone
}

// TestShutdown: pods are stopped group by group, a pod that ignores SIGTERM is killed at the end of its group's
// period, and evictd then releases its inhibitor lock.
//
// Complexity: a shutdown on a real node is expensive, so the test checks everything on one.
//
//gocyclo:ignore
func TestShutdown(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, podOfPriority("low", 0))
	unresponsive := runPod(t, n, podOfPriority("unresponsive", 100, "-ignore-term"))
	daemonSet := podOfPriority("daemonset", 100)
	daemonSet.Labels = map[string]string{"pod-template-generation": "1"}
	log := runPod(t, n, daemonSet)
	high := runPod(t, n, podOfPriority("high", 1000))
	// On an emulated processor the stops themselves take seconds.
	factor := min(node.ScaleTimeout(1), 3)
	first, second, third := int(4*factor), int(4*factor), int(2*factor)
	d, bus := startWithLogind(t, n, gracePeriods([2]int{0, first}, [2]int{100, second}, [2]int{1000, third}), low, unresponsive, log, high)
	d.waitInhibited(bus)
	if s, _ := d.status(); s.Shutdown.LimitSeconds == nil || int(*s.Shutdown.LimitSeconds) != first+second+third+2 {
		t.Errorf("InhibitDelayMaxSec of logind = %v; want the groups' %d plus the reserve of 2", s.Shutdown.LimitSeconds, first+second+third)
	}
	killAfter := time.Duration(first+second) * time.Second

	began := time.Now()
	bus.SetPreparing(true)
	s := d.waitReleased(bus)
	took := time.Since(began)
	for _, p := range []*pod{low, unresponsive, log, high} {
		p.mustDie()
	}
	if took < killAfter || took > killAfter+time.Duration(third)*time.Second+promptLimit {
		t.Errorf("the shutdown took %v; want little more than %v, the end of the second group", took, killAfter)
	}
	gone := []time.Time{d.goneAt(low), d.goneAt(log), d.goneAt(unresponsive), d.goneAt(high)}
	if !slices.IsSortedFunc(gone, time.Time.Compare) {
		t.Errorf("last exits of low, daemonset, unresponsive, high = %v; want them in this order", gone)
	}
	if rec := d.waitRecord(high); rec.Decided.Sub(began) < killAfter-time.Second {
		t.Errorf("the stop of the high pod was decided after %v; want %v, the end of the second group", rec.Decided.Sub(began), killAfter)
	}
	// The second group gets the time that the low pod did not need.
	if at := gone[2].Sub(began); at < killAfter-time.Second || at > killAfter+promptLimit {
		t.Errorf("the unresponsive pod exited after %v; want %v", at, killAfter)
	}
	for _, p := range []*pod{low, unresponsive, log, high} {
		rec, result := d.waitRecord(p), evict.ResultStopped
		if p == unresponsive || p == log && rec.Result == evict.ResultKilled {
			// The DaemonSet's pod is stopped so late that the kill may overtake the SIGTERM.
			result = evict.ResultKilled
		}
		if rec.Reason != shutdown.ReasonTerminated || rec.Message != shutdown.MessageTerminated || rec.Result != result || !noErrors(&rec) {
			t.Errorf("record of %s: %s, %q, %s, %q; want Terminated, its message, %s, no error", p.Name, rec.Reason, rec.Message, rec.Result, rec.Error, result)
		}
	}
	if s.Ended.IsZero() || s.Canceled || s.Manual {
		t.Errorf("shutdown = %+v; want it ended, not canceled, not manual", s)
	}
	status, _ := d.status()
	if len(status.Conditions) != 1 || status.Conditions[0] != "NodeShutdown" {
		t.Errorf("conditions = %v; want NodeShutdown", status.Conditions)
	}
}

// TestShutdownNewPod: a pod that is created during a shutdown is stopped and recorded as refused.
func TestShutdownNewPod(t *testing.T) {
	n := startNode(t, gibibyte)
	unresponsive := runPod(t, n, podOfPriority("unresponsive", 0, "-ignore-term"))
	d, bus := startWithLogind(t, n, gracePeriods([2]int{0, int(node.ScaleTimeout(10*time.Second) / time.Second)}), unresponsive)
	d.waitInhibited(bus)
	bus.SetPreparing(true)
	d.waitStatus("start of a pod's stop", func(s *control.Status) bool { return len(recordsOf(s, unresponsive)) == 1 })
	late := runPod(t, n, podOfPriority("late", 0))
	rec := d.waitRecord(late)
	if rec.Reason != shutdown.ReasonRefused || rec.Message != shutdown.MessageRefused {
		t.Errorf("record of the new pod: %s, %q; want %s, %q", rec.Reason, rec.Message, shutdown.ReasonRefused, shutdown.MessageRefused)
	}
	late.mustDie()
	d.waitReleased(bus)
	unresponsive.mustDie()
}

// TestShutdownCancelled: no further pod is stopped, evictd takes a new lock, and new pods are not refused.
func TestShutdownCancelled(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, podOfPriority("low", 0, "-ignore-term"))
	high := runPod(t, n, podOfPriority("high", 1000))
	d, bus := startWithLogind(t, n, gracePeriods([2]int{0, 60}, [2]int{1000, 60}), low, high)
	d.waitInhibited(bus)
	bus.SetPreparing(true)
	d.waitStatus("start of a pod's stop", func(s *control.Status) bool { return len(recordsOf(s, low)) == 1 })
	bus.SetPreparing(false)
	d.waitStatus("end of the shutdown", func(s *control.Status) bool { return s.Shutdown.Phase == "idle" && s.Shutdown.Canceled })
	d.waitInhibited(bus)
	late := runPod(t, n, podOfPriority("late", 0))
	s := d.waitPods(3)
	if len(recordsOf(&s, late))+len(recordsOf(&s, high)) > 0 {
		t.Errorf("records = %+v; want only the low pod's", s.Records)
	}
	d.waitReadings(2)
	mustLive(t, high, late)
	low.remove() // its grace period would outlast the test
}

// TestShutdownWithoutRuntime: a shutdown ends in time although the runtime does not run.
func TestShutdownWithoutRuntime(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, podOfPriority("low", 0))
	high := runPod(t, n, podOfPriority("high", 1000))
	d, bus := startWithLogind(t, n, gracePeriods([2]int{0, 3}, [2]int{1000, 2}), low, high)
	d.waitInhibited(bus)
	n.KillRuntime()
	d.waitStatus("lost runtime", func(s *control.Status) bool { return !s.Runtime.Connected })
	began := time.Now()
	bus.SetPreparing(true)
	d.waitReleased(bus)
	if took := time.Since(began); took < 3*time.Second || took > 5*time.Second+promptLimit {
		t.Errorf("the shutdown took %v; want 3s to 5s, and at most %v more", took, promptLimit)
	}
	low.containersMustDie()
	high.containersMustDie()
	if err := n.RestartRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestShutdownRestart: evictd is killed during a shutdown. The next one continues it with the same deadlines, although
// the runtime has dropped the stop request.
func TestShutdownRestart(t *testing.T) {
	n := startNode(t, gibibyte)
	unresponsive := runPod(t, n, podOfPriority("unresponsive", 0, "-ignore-term"))
	high := runPod(t, n, podOfPriority("high", 1000))
	d, bus := startWithLogind(t, n, gracePeriods([2]int{0, 20}, [2]int{1000, 4}), unresponsive, high)
	d.waitInhibited(bus)
	began := time.Now()
	bus.SetPreparing(true)
	before := d.waitStatus("start of a pod's stop", func(s *control.Status) bool { return len(recordsOf(s, unresponsive)) == 1 })
	d.waitState(`"phase":"stopping"`)
	d.kill(syscall.SIGKILL)
	mustLive(t, unresponsive, high)
	d.start()
	s := d.waitStatus("end of the shutdown", func(s *control.Status) bool { return s.Shutdown.Phase == "ended" })
	unresponsive.mustDie()
	high.mustDie()
	if at := d.goneAt(unresponsive).Sub(began); at < 19*time.Second || at > 20*time.Second+promptLimit {
		t.Errorf("the unresponsive pod exited after %v; want the 20s of its group despite the restart", at)
	}
	if moved := s.Shutdown.Began.Sub(before.Shutdown.Began).Abs(); moved > time.Second {
		t.Errorf("the shutdown's beginning moved by %v in the restart; want no change", moved)
	}
	for _, p := range []*pod{unresponsive, high} {
		if rec := d.waitRecord(p); rec.Reason != shutdown.ReasonTerminated {
			t.Errorf("record of %s: %s; want Terminated", p.Name, rec.Reason)
		}
	}
}

// TestShutdownByCommand: without logind, evictctl shutdown begin stops the pods and waits for that.
func TestShutdownByCommand(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, podOfPriority("low", 0))
	high := runPod(t, n, podOfPriority("high", 1000))
	d := startDaemon(t, n, gracePeriods([2]int{0, 10}, [2]int{1000, 10}), low, high)
	if out, err := d.ctl("shutdown", "cancel"); err == nil || !strings.Contains(out, "no shutdown in progress") {
		t.Errorf("shutdown cancel = %v, %s; want an error without a shutdown", err, out)
	}
	out, err := d.ctl("shutdown", "plan")
	if err != nil || !strings.Contains(out, "default/low") || !strings.Contains(out, "planned") {
		t.Errorf("shutdown plan = %v, %s; want the pods", err, out)
	}
	if out, err := d.ctl("shutdown", "begin"); err != nil || !strings.Contains(out, "the pods are stopped, an operator's") {
		t.Fatalf("shutdown begin = %v, %s; want the pods stopped", err, out)
	}
	for _, p := range []*pod{low, high} {
		if p.containersLive() {
			t.Errorf("%s lives after shutdown begin", p.Name)
		}
	}
	if before, after := d.goneAt(low), d.goneAt(high); after.Before(before) {
		t.Errorf("last exits: low %v, high %v; want them in this order", before, after)
	}
	if out, err := d.ctl("shutdown", "cancel"); err != nil {
		t.Errorf("shutdown cancel = %v, %s", err, out)
	}
	low.mustDie()
	high.mustDie()
	runPod(t, n, podOfPriority("next", 0))
	s := d.waitPods(1)
	if len(s.Records) != 2 {
		t.Errorf("%d records; want 2: a pod created after the cancellation is not stopped", len(s.Records))
	}
}

// TestShutdownByCommandDryRun: in dry run the command reports that no pod is stopped, and fails.
func TestShutdownByCommandDryRun(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, podOfPriority("low", 0))
	high := runPod(t, n, podOfPriority("high", 1000))
	d := startDaemon(t, n, gracePeriods([2]int{0, 10}, [2]int{1000, 10})+"dryRun: true", low, high)
	out, err := d.ctl("shutdown", "begin")
	if err == nil || strings.Contains(out, "pods are stopped") || !strings.Contains(out, "dry run: no pod is stopped, 2 pods would be") {
		t.Errorf("shutdown begin in dry run = %v, %s; want it to fail and to say that no pod is stopped", err, out)
	}
	if s := d.waitReadings(2).Shutdown; s.WouldStop != 2 || s.Stopped != 0 || s.Running != 0 {
		t.Errorf("shutdown: %d stopped, %d running, %d that would be stopped; want 0, 0, 2", s.Stopped, s.Running, s.WouldStop)
	}
	mustLive(t, low, high)
	d.waitLog("would stop pod", "default/low")
	d.waitLog("dry run: no pod was stopped")
}

// ctl runs evictctl against the daemon and returns its output.
func (d *daemon) ctl(args ...string) (string, error) {
	d.t.Helper()
	e, err := programs()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := exec.CommandContext(d.t.Context(), e.evictctl, append(args, "--control-socket", d.socket())...).CombinedOutput()
	return string(out), err
}

// TestShutdownBesideKubelet: evictd leaves a shutdown to the kubelet unless shutdown.besideKubelet is own.
func TestShutdownBesideKubelet(t *testing.T) {
	n := startNode(t, gibibyte)
	kubelets := podOfPriority("kubelets", 0)
	kubelets.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
	pod := runPod(t, n, kubelets)
	d, bus := startWithLogind(t, n, gracePeriods([2]int{0, 10}), pod)
	s := d.waitStatus("reason to leave a shutdown to the kubelet", func(s *control.Status) bool {
		return slices.ContainsFunc(s.Shutdown.Why, func(why string) bool { return strings.Contains(why, "a kubelet owns pods") })
	})
	if s.Shutdown.Inhibited || len(bus.Locks()) > 0 {
		t.Errorf("locks = %+v; want none on a kubelet's node", bus.Locks())
	}
	bus.SetPreparing(true)
	d.waitLog("evictd stops no pods", "a kubelet owns pods")
	mustLive(t, pod)
	bus.SetPreparing(false)

	d.configure(gracePeriods([2]int{0, 10}) + "shutdown: {besideKubelet: own}")
	d.reload()
	d.waitInhibited(bus)
	bus.SetPreparing(true)
	d.waitReleased(bus)
	pod.containersMustDie()
	if !pod.sandboxLives() {
		t.Error("the sandbox of a kubelet's pod was stopped; want it left to the kubelet")
	}
}

// TestShutdownDryRun: the record says what would have been done; no pod is stopped and no lock is taken.
func TestShutdownDryRun(t *testing.T) {
	n := startNode(t, gibibyte)
	pod := runPod(t, n, podOfPriority("pod", 0))
	d, bus := startWithLogind(t, n, gracePeriods([2]int{0, 10})+"dryRun: true", pod)
	d.waitStatus("connection to logind", func(s *control.Status) bool { return s.Shutdown.LimitSeconds != nil })
	d.waitReadings(2)
	if locks := bus.Locks(); len(locks) > 0 {
		t.Errorf("locks = %+v; want none in dry run", locks)
	}
	bus.SetPreparing(true)
	rec := d.waitRecord(pod)
	if !rec.DryRun || rec.Result != evict.ResultDryRun || rec.Reason != shutdown.ReasonTerminated {
		t.Errorf("record: dry run %t, %s, %s; want true, dry-run, Terminated", rec.DryRun, rec.Result, rec.Reason)
	}
	d.waitReadings(2)
	mustLive(t, pod)
}
