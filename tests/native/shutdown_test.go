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

// groups are those of a shutdown: from each priority on so many seconds.
func groups(pairs ...[2]int) string {
	text := "evictionHard: {}\nshutdownGracePeriodByPodPriority:\n"
	for _, p := range pairs {
		text += fmt.Sprintf("- {priority: %d, shutdownGracePeriodSeconds: %d}\n", p[0], p[1])
	}
	return text
}

// ofPriority is a pod of a priority. It stops when it is asked to, unless args say otherwise.
func ofPriority(name string, priority int, args ...string) node.PodSpec {
	return node.PodSpec{
		Name: name, Annotations: map[string]string{"evictd.io/priority": fmt.Sprint(priority)}, TerminationGracePeriod: time.Minute,
		Containers: one(holding(mebibyte, args...)),
	}
}

// underLogind starts an evictd whose host has a bus and a logind of its own.
func underLogind(t *testing.T, n *node.Node, settings string, pods ...*pod) (*daemon, *logindtest.Bus) {
	t.Helper()
	root := t.TempDir()
	bus := logindtest.New(t, root)
	d := newDaemon(t, n, settings)
	d.args = []string{"--path.rootfs", root}
	d.start()
	d.knows(len(pods))
	return d, bus
}

// heldUp waits until evictd holds its lock.
func (d *daemon) heldUp(bus *logindtest.Bus) {
	d.t.Helper()
	d.until("a shutdown that is held up", func(s *control.Status) bool { return s.Shutdown.Held })
	if locks := bus.Locks(); len(locks) != 1 || locks[0].Who != logind.Who {
		d.t.Fatalf("locks = %+v; want evictd's alone", locks)
	}
}

// released waits until it has given it up, and returns how it stands then.
func (d *daemon) released(bus *logindtest.Bus) control.Shutdown {
	d.t.Helper()
	eventually(d.t, "lock that is given up", func() bool { return len(bus.Locks()) == 0 })
	s := d.until("end of the shutdown", func(s *control.Status) bool { return s.Shutdown.Phase == "ended" })
	return s.Shutdown
}

// gone returns when a pod's last process had gone, by its record.
func (d *daemon) gone(p *pod) time.Time {
	d.t.Helper()
	rec := d.ended(p)
	if rec.LastGone.IsZero() || rec.Cause != evict.CauseShutdown {
		d.t.Errorf("record of %s: cause %s, last gone %v, error %q; want %s, and gone", p.Name, rec.Cause, rec.LastGone, rec.Error, evict.CauseShutdown)
	}
	return rec.LastGone
}

// TestShutdown: pods stop group by group, one that does not hear is killed at the end of its group, and then the
// node may go down.
//
// Complexity: one shutdown on a real node is expensive, so that all is checked of one.
//
//gocyclo:ignore
func TestShutdown(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, ofPriority("low", 0))
	deaf := runPod(t, n, ofPriority("deaf", 100, "-ignore-term"))
	daemonSet := ofPriority("daemonset", 100)
	daemonSet.Labels = map[string]string{"pod-template-generation": "1"}
	log := runPod(t, n, daemonSet)
	high := runPod(t, n, ofPriority("high", 1000))
	// What an emulated processor does besides takes seconds.
	pace := min(node.Slow(1), 3)
	first, second, third := int(4*pace), int(4*pace), int(2*pace)
	d, bus := underLogind(t, n, groups([2]int{0, first}, [2]int{100, second}, [2]int{1000, third}), low, deaf, log, high)
	d.heldUp(bus)
	if s, _ := d.status(); s.Shutdown.LimitSeconds == nil || int(*s.Shutdown.LimitSeconds) != first+second+third+2 {
		t.Errorf("logind allows %v seconds; want the groups' %d, and the reserve of 2", s.Shutdown.LimitSeconds, first+second+third)
	}
	deafUntil := time.Duration(first+second) * time.Second

	began := time.Now()
	bus.Prepare(true)
	s := d.released(bus)
	took := time.Since(began)
	for _, p := range []*pod{low, deaf, log, high} {
		p.mustDie()
	}
	if took < deafUntil || took > deafUntil+time.Duration(third)*time.Second+soon {
		t.Errorf("the shutdown took %v; want the %v that the deaf pod's group ends after, and a little", took, deafUntil)
	}
	gone := []time.Time{d.gone(low), d.gone(log), d.gone(deaf), d.gone(high)}
	if !slices.IsSortedFunc(gone, time.Time.Compare) {
		t.Errorf("gone: low, daemonset, deaf, high at %v; want them in this order", gone)
	}
	// The low pod left time over; the deaf one has it.
	if at := gone[2].Sub(began); at < deafUntil-time.Second || at > deafUntil+soon {
		t.Errorf("the deaf pod was gone after %v; want %v", at, deafUntil)
	}
	for _, p := range []*pod{low, deaf, log, high} {
		rec, result := d.ended(p), evict.ResultStopped
		if p == deaf || p == log && rec.Result == evict.ResultKilled {
			// The DaemonSet's hog is stopped so late that it may not have heard yet.
			result = evict.ResultKilled
		}
		if rec.Reason != shutdown.ReasonTerminated || rec.Message != shutdown.MessageTerminated || rec.Result != result || !flawless(&rec) {
			t.Errorf("record of %s: %s, %q, %s, %q; want Terminated, its message, %s, no error", p.Name, rec.Reason, rec.Message, rec.Result, rec.Error, result)
		}
	}
	if s.Over.IsZero() || s.CalledOff || s.Manual {
		t.Errorf("shutdown = %+v; want it over, not called off, logind's", s)
	}
	status, _ := d.status()
	if len(status.Conditions) != 1 || status.Conditions[0] != "NodeShutdown" {
		t.Errorf("conditions = %v; want NodeShutdown", status.Conditions)
	}
}

// TestShutdownNewcomer: a pod that comes in the middle is stopped, and recorded as refused.
func TestShutdownNewcomer(t *testing.T) {
	n := startNode(t, gibibyte)
	deaf := runPod(t, n, ofPriority("deaf", 0, "-ignore-term"))
	d, bus := underLogind(t, n, groups([2]int{0, int(node.Slow(10*time.Second) / time.Second)}), deaf)
	d.heldUp(bus)
	bus.Prepare(true)
	d.until("pod that is asked to stop", func(s *control.Status) bool { return len(of(s, deaf)) == 1 })
	late := runPod(t, n, ofPriority("late", 0))
	rec := d.ended(late)
	if rec.Reason != shutdown.ReasonRefused || rec.Message != shutdown.MessageRefused {
		t.Errorf("record of the newcomer: %s, %q; want %s, %q", rec.Reason, rec.Message, shutdown.ReasonRefused, shutdown.MessageRefused)
	}
	late.mustDie()
	d.released(bus)
	deaf.mustDie()
}

// TestShutdownCalledOff: nobody else is stopped, another lock is taken, and what comes then is welcome.
func TestShutdownCalledOff(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, ofPriority("low", 0, "-ignore-term"))
	high := runPod(t, n, ofPriority("high", 1000))
	d, bus := underLogind(t, n, groups([2]int{0, 60}, [2]int{1000, 60}), low, high)
	d.heldUp(bus)
	bus.Prepare(true)
	d.until("pod that is asked to stop", func(s *control.Status) bool { return len(of(s, low)) == 1 })
	bus.Prepare(false)
	d.until("end of the shutdown", func(s *control.Status) bool { return s.Shutdown.Phase == "idle" && s.Shutdown.CalledOff })
	d.heldUp(bus)
	late := runPod(t, n, ofPriority("late", 0))
	s := d.knows(3)
	if len(of(&s, late))+len(of(&s, high)) > 0 {
		t.Errorf("records = %+v; want the low pod's alone", s.Records)
	}
	d.looks(2)
	mustLive(t, high, late)
	// Which was asked, and has its grace.
	low.remove()
}

// TestShutdownWithoutRuntime: the runtime is away when the node goes down, which it does in time all the same.
func TestShutdownWithoutRuntime(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, ofPriority("low", 0))
	high := runPod(t, n, ofPriority("high", 1000))
	d, bus := underLogind(t, n, groups([2]int{0, 3}, [2]int{1000, 2}), low, high)
	d.heldUp(bus)
	n.Kill()
	d.until("lost runtime", func(s *control.Status) bool { return !s.Runtime.Connected })
	began := time.Now()
	bus.Prepare(true)
	d.released(bus)
	if took := time.Since(began); took < 3*time.Second || took > 5*time.Second+soon {
		t.Errorf("the shutdown took %v; want 5s at most, and a little", took)
	}
	low.containersMustDie()
	high.containersMustDie()
	if err := n.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestShutdownRestart: evictd dies in the middle. Its successor goes on where it was, though the runtime has
// forgotten the grace that it was told.
func TestShutdownRestart(t *testing.T) {
	n := startNode(t, gibibyte)
	deaf := runPod(t, n, ofPriority("deaf", 0, "-ignore-term"))
	high := runPod(t, n, ofPriority("high", 1000))
	d, bus := underLogind(t, n, groups([2]int{0, 6}, [2]int{1000, 4}), deaf, high)
	d.heldUp(bus)
	began := time.Now()
	bus.Prepare(true)
	d.until("pod that is asked to stop", func(s *control.Status) bool { return len(of(s, deaf)) == 1 })
	d.saved(`"phase":"stopping"`)
	d.kill(syscall.SIGKILL)
	mustLive(t, deaf, high)
	d.start()
	s := d.until("end of the shutdown", func(s *control.Status) bool { return s.Shutdown.Phase == "ended" })
	deaf.mustDie()
	high.mustDie()
	if at := d.gone(deaf).Sub(began); at < 5*time.Second || at > 6*time.Second+soon {
		t.Errorf("the deaf pod was gone after %v; want the 6s of its group, which the restart does not change", at)
	}
	if at := s.Shutdown.Began.Sub(began).Abs(); at > time.Second {
		t.Errorf("the shutdown began %v after it did; want the same time as before the restart", at)
	}
	for _, p := range []*pod{deaf, high} {
		if rec := d.ended(p); rec.Reason != shutdown.ReasonTerminated {
			t.Errorf("record of %s: %s; want Terminated, also after a restart", p.Name, rec.Reason)
		}
	}
}

// TestShutdownByHand: without logind the operator's command does the same, and waits.
func TestShutdownByHand(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, ofPriority("low", 0))
	high := runPod(t, n, ofPriority("high", 1000))
	d := startDaemon(t, n, groups([2]int{0, 10}, [2]int{1000, 10}), low, high)
	if out, err := d.ctl("shutdown", "cancel"); err == nil || !strings.Contains(out, "no shutdown in progress") {
		t.Errorf("shutdown cancel = %v, %s; want it refused, as none goes on", err, out)
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
	if before, after := d.gone(low), d.gone(high); after.Before(before) {
		t.Errorf("gone: low %v, high %v; want them in this order", before, after)
	}
	if out, err := d.ctl("shutdown", "cancel"); err != nil {
		t.Errorf("shutdown cancel = %v, %s", err, out)
	}
	low.mustDie()
	high.mustDie()
	runPod(t, n, ofPriority("next", 0))
	s := d.knows(1)
	if len(s.Records) != 2 {
		t.Errorf("%d records; want 2: what comes after the cancellation is welcome", len(s.Records))
	}
}

// TestShutdownByHandDryRun: the command says that no pod is stopped, and fails.
func TestShutdownByHandDryRun(t *testing.T) {
	n := startNode(t, gibibyte)
	low := runPod(t, n, ofPriority("low", 0))
	high := runPod(t, n, ofPriority("high", 1000))
	d := startDaemon(t, n, groups([2]int{0, 10}, [2]int{1000, 10})+"dryRun: true", low, high)
	out, err := d.ctl("shutdown", "begin")
	if err == nil || strings.Contains(out, "pods are stopped") || !strings.Contains(out, "dry run: no pod is stopped, 2 pods would be") {
		t.Errorf("shutdown begin in dry run = %v, %s; want it to fail and to say that no pod is stopped", err, out)
	}
	if s := d.looks(2).Shutdown; s.WouldStop != 2 || s.Stopped != 0 || s.Running != 0 {
		t.Errorf("shutdown: %d stopped, %d running, %d that would be stopped; want 0, 0, 2", s.Stopped, s.Running, s.WouldStop)
	}
	mustLive(t, low, high)
	d.logged("would stop pod", "default/low")
	d.logged("dry run: no pod was stopped")
}

// ctl runs evictctl against the daemon.
func (d *daemon) ctl(args ...string) (string, error) {
	d.t.Helper()
	e, err := programs()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := exec.CommandContext(d.t.Context(), e.evictctl, append(args, "--control-socket", d.socket())...).CombinedOutput()
	return string(out), err
}

// TestShutdownBesideKubelet: the kubelet's shutdown is the kubelet's, unless the configuration says otherwise.
func TestShutdownBesideKubelet(t *testing.T) {
	n := startNode(t, gibibyte)
	kubelets := ofPriority("kubelets", 0)
	kubelets.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
	pod := runPod(t, n, kubelets)
	d, bus := underLogind(t, n, groups([2]int{0, 10}), pod)
	s := d.until("reason to leave a shutdown alone", func(s *control.Status) bool {
		return slices.ContainsFunc(s.Shutdown.Why, func(why string) bool { return strings.Contains(why, "a kubelet owns pods") })
	})
	if s.Shutdown.Held || len(bus.Locks()) > 0 {
		t.Errorf("locks = %+v; want none beside a kubelet", bus.Locks())
	}
	bus.Prepare(true)
	d.logged("evictd stops no pods", "a kubelet owns pods")
	mustLive(t, pod)
	bus.Prepare(false)

	d.configure(groups([2]int{0, 10}) + "shutdown: {besideKubelet: own}")
	d.reload()
	d.heldUp(bus)
	bus.Prepare(true)
	d.released(bus)
	pod.containersMustDie()
	if !pod.sandboxLives() {
		t.Error("the sandbox of a kubelet's pod was stopped; want it left to the kubelet")
	}
}

// TestShutdownDryRun: it is told what would be done, and nothing is.
func TestShutdownDryRun(t *testing.T) {
	n := startNode(t, gibibyte)
	pod := runPod(t, n, ofPriority("pod", 0))
	d, bus := underLogind(t, n, groups([2]int{0, 10})+"dryRun: true", pod)
	d.until("connection to logind", func(s *control.Status) bool { return s.Shutdown.LimitSeconds != nil })
	d.looks(2)
	if locks := bus.Locks(); len(locks) > 0 {
		t.Errorf("locks = %+v; want none in dry run", locks)
	}
	bus.Prepare(true)
	rec := d.ended(pod)
	if !rec.DryRun || rec.Result != evict.ResultDryRun || rec.Reason != shutdown.ReasonTerminated {
		t.Errorf("record: dry run %t, %s, %s; want true, dry-run, Terminated", rec.DryRun, rec.Result, rec.Reason)
	}
	d.looks(2)
	mustLive(t, pod)
}
