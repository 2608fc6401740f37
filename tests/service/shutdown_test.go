package service_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/tests/node"
	"github.com/evictd/evictd/tests/vm/protocol"
)

// TestPowerOff is a real shutdown: pods of four priorities are stopped in order, and then the machine powers off. The
// process that runs the machine checks the latter.
func TestPowerOff(t *testing.T) {
	m := install(t)
	if err := node.Check(""); err != nil {
		t.Fatalf("a node needs %v", err)
	}
	// Delay the shutdown until this test has ended.
	m.must("systemd-run", "--unit=evictd-test-last", "systemd-inhibit", "--mode=delay", "--what=shutdown", "--who=test",
		"sh", "-c", fmt.Sprintf("while kill -0 %d; do sleep 0.2; done", os.Getpid()))
	s := &shutdownTest{machine: m, log: t.Output()}
	s.startNode(t)
	s.configure(s.settings())
	s.must("systemctl", "start", unitName)
	s.waitInhibited()
	pods := make([]node.Pod, len(priorities))
	for _, i := range []int{2, 0, 3, 1} { // created in another order
		pods[i] = s.pod(t, fmt.Sprint("pod-", i), priorities[i], false)
	}
	s.must("systemctl", "poweroff")
	var gone []time.Time
	for _, p := range pods {
		gone = append(gone, s.record(p).LastGone)
	}
	if !slices.IsSortedFunc(gone, time.Time.Compare) || gone[0].IsZero() {
		t.Errorf("last exits by priority = %v; want them in order", gone)
	}
	s.eventually("release of evictd's lock", func() bool { return s.locks() == 0 })
}

// TestNodeShutdown tests shutdowns with the real logind. The machine stays up: a unit replaces poweroff.target and
// records the time of the power-off. For logind, the shutdown was executed but had no effect.
func TestNodeShutdown(t *testing.T) {
	m := install(t)
	if err := node.Check(""); err != nil {
		t.Fatalf("a node needs %v", err)
	}
	s := &shutdownTest{machine: m, log: t.Output()}
	s.fakePowerOff()
	s.startNode(t)
	s.configure(s.settings())
	s.must("systemctl", "start", unitName)
	for _, part := range []struct {
		name string
		run  func(*shutdownTest, *testing.T)
	}{
		{"lock and limit", (*shutdownTest).lockAndLimit},
		{"in order", (*shutdownTest).inOrder},
		{"a second inhibitor", (*shutdownTest).secondInhibitor},
		{"scheduled and cancelled", (*shutdownTest).scheduled},
		{"cancelled during the shutdown", (*shutdownTest).cancelled},
		{"evictd killed during the shutdown", (*shutdownTest).killed},
		{"a runtime that hangs during the shutdown", (*shutdownTest).hungRuntime},
		{"power key", (*shutdownTest).powerKey},
		{"restarts of the bus and of logind", (*shutdownTest).restarts},
		{"a restart of the bus during the shutdown", (*shutdownTest).busRestart},
		{"overridden", (*shutdownTest).overridden},
		{"stop", (*shutdownTest).stop},
	} {
		t.Run(part.name, func(t *testing.T) {
			s.machine = &machine{t: t, hog: m.hog}
			part.run(s, t)
			s.cleanUp(t)
		})
	}
	s.machine = m
}

// lockAndLimit: evictd raises logind's limit, whose default is too low.
func (s *shutdownTest) lockAndLimit(t *testing.T) {
	s.waitInhibited()
	if got := s.limit(); got != 62 {
		t.Errorf("InhibitDelayMaxSec of logind = %d; want the groups' 60 plus the reserve of 2", got)
	}
	out := s.must("evictctl", "shutdown", "plan")
	if !strings.Contains(out, "delayed until the pods are stopped") || !strings.Contains(out, "allows 1m2s") {
		t.Errorf("evictctl shutdown plan does not show that evictd delays the shutdown and that logind allows it:\n%s", out)
	}
}

// inOrder: pods are stopped by priority, one that ignores SIGTERM is killed at the end of its group's period, and the
// machine powers off after that.
func (s *shutdownTest) inOrder(t *testing.T) {
	low, unresponsive := s.pod(t, "low", priorities[0], false), s.pod(t, "unresponsive", priorities[1], true)
	high, highest := s.pod(t, "high", priorities[2], false), s.pod(t, "highest", priorities[3], false)
	began := time.Now()
	s.must("systemctl", "poweroff")
	off := s.waitPowerOff().Sub(began)
	var gone []time.Time
	for _, p := range []node.Pod{low, unresponsive, high, highest} {
		rec := s.record(p)
		if rec.LastGone.IsZero() {
			t.Errorf("record of %s: %s, %q; want its last exit", p.Name, rec.Result, rec.Error)
		}
		gone = append(gone, rec.LastGone)
		if s.alive(t, p) {
			t.Errorf("%s is alive when the machine powers off", p.Name)
		}
	}
	if !slices.IsSortedFunc(gone, time.Time.Compare) {
		t.Errorf("last exits of low, unresponsive, high, highest = %v; want them in this order", gone)
	}
	// The second group gets the time that the low pod did not need.
	if at := gone[1].Sub(began); at < 29*time.Second || at > 40*time.Second {
		t.Errorf("the unresponsive pod exited after %v; want 30s", at)
	}
	if off < 30*time.Second || off > 62*time.Second {
		t.Errorf("the machine would be off after %v; want more than 30s, and at most the 62s that logind allows", off)
	}
	// The last pod's exit is recorded only when the runtime has answered, so the one before it is compared.
	if late := s.waitPowerOff().Sub(gone[1]); late < 0 || late > 20*time.Second {
		t.Errorf("the machine would be off %v after the unresponsive pod; want at most 20s", late)
	}
	s.waitInhibited() // for logind, the shutdown had no effect
}

// secondInhibitor: logind waits for the other inhibitor, evictd does not.
func (s *shutdownTest) secondInhibitor(t *testing.T) {
	low := s.pod(t, "low", 0, false)
	s.must("systemd-run", "--unit=evictd-test-other", "systemd-inhibit", "--mode=delay", "--what=shutdown", "--who=other", "sleep", "30")
	t.Cleanup(func() { s.run("systemctl", "stop", "evictd-test-other") })
	s.eventually("the other's lock", func() bool { return strings.Contains(s.must("systemd-inhibit", "--list"), "other") })
	s.must("systemctl", "poweroff")
	s.record(low)
	s.eventually("release of evictd's lock", func() bool { return s.locks() == 0 })
	if _, err := os.Stat(marker); err == nil {
		t.Error("the machine powers off although another inhibitor has a lock")
	}
	s.waitPowerOff()
	s.waitInhibited()
}

// scheduled: a shutdown that is only scheduled stops no pod.
func (s *shutdownTest) scheduled(t *testing.T) {
	low := s.pod(t, "low", 0, false)
	s.must("shutdown", "-P", "+1")
	s.must("shutdown", "-c")
	s.must("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PreparingForShutdown")
	s.waitInhibited()
	if !s.alive(t, low) {
		t.Error("a shutdown that was scheduled and cancelled has stopped a pod")
	}
}

// cancelled: a restart of logind cancels a delayed shutdown.
func (s *shutdownTest) cancelled(t *testing.T) {
	unresponsive, high := s.pod(t, "unresponsive", 0, true), s.pod(t, "high", 1000, false)
	s.must("systemctl", "poweroff")
	s.waitStatus("start of a pod's stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == unresponsive.UID })
	})
	s.must("systemctl", "restart", "systemd-logind")
	s.waitStatus("end of the shutdown", func(st *control.Status) bool { return st.Shutdown.Phase == "idle" && st.Shutdown.Canceled })
	s.waitInhibited()
	if !s.alive(t, high) {
		t.Error("a pod of a later group was stopped")
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the machine powers off although the shutdown was cancelled")
	}
}

// killed: systemd stores the lock of an evictd that is killed, so that the machine waits and the next evictd continues
// the shutdown.
func (s *shutdownTest) killed(t *testing.T) {
	unresponsive, high := s.pod(t, "unresponsive", 0, true), s.pod(t, "high", 1000, false)
	pid := s.pid()
	began := time.Now()
	s.must("systemctl", "poweroff")
	s.waitStatus("start of a pod's stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == unresponsive.UID })
	})
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unitName)
	s.waitActive(pid)
	for _, p := range []node.Pod{unresponsive, high} {
		s.record(p)
		if s.alive(t, p) {
			t.Errorf("%s is alive; want it stopped by the next evictd", p.Name)
		}
	}
	if off := s.waitPowerOff().Sub(began); off < groupTime*time.Second || off > 62*time.Second {
		t.Errorf("the machine would be off after %v; want more than the %ds that the unresponsive pod has, and at most 62s", off, groupTime)
	}
	s.waitInhibited()
}

// hungRuntime: the machine powers off in time although the runtime stops no pods.
func (s *shutdownTest) hungRuntime(t *testing.T) {
	unresponsive, high := s.pod(t, "unresponsive", priorities[0], true), s.pod(t, "high", priorities[2], false)
	began := time.Now()
	s.must("systemctl", "poweroff")
	s.waitStatus("start of a pod's stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == unresponsive.UID })
	})
	hung := s.node.RuntimePID()
	if err := unix.Kill(hung, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceFunc(func() {
		if err := unix.Kill(hung, unix.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(resume)
	if off := s.waitPowerOff().Sub(began); off > 64*time.Second {
		t.Errorf("the machine would be off after %v; want at most the 62s that logind allows", off)
	}
	resume()
	for _, p := range []node.Pod{unresponsive, high} {
		s.waitStatus("record of "+p.Name, func(st *control.Status) bool {
			return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == p.UID })
		})
	}
	s.waitInhibited()
}

// powerKey: the machine's power key starts the same shutdown.
func (s *shutdownTest) powerKey(t *testing.T) {
	low := s.pod(t, "low", priorities[0], false)
	fmt.Println(protocol.PressPowerKey)
	s.record(low)
	s.waitPowerOff()
	s.waitInhibited()
}

// restarts: after a restart of logind or D-Bus, evictd has exactly one lock.
func (s *shutdownTest) restarts(t *testing.T) {
	for _, name := range []string{"systemd-logind", "dbus", "systemd-logind"} {
		s.must("systemctl", "restart", name)
		// logind reconnects to the bus with a delay.
		s.eventually("logind back after the restart of "+name, func() bool {
			_, code := s.run("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListInhibitors")
			return code == 0
		})
		s.eventually("one lock after the restart of "+name, func() bool {
			out, code := s.run("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListInhibitors")
			return code == 0 && strings.Count(out, `"`+logind.Who+`"`) == 1
		})
	}
	low := s.pod(t, "low", 0, false)
	s.waitStatus("connection to logind", func(st *control.Status) bool { return st.Shutdown.Inhibited && st.Shutdown.LimitSeconds != nil })
	s.must("systemctl", "poweroff")
	s.record(low)
	s.waitPowerOff()
	s.waitInhibited()
}

// busRestart: after a restart of D-Bus, logind may have dropped the shutdown or not. evictd follows logind: either all
// pods are stopped, or no further group is.
func (s *shutdownTest) busRestart(t *testing.T) {
	unresponsive, high := s.pod(t, "unresponsive", priorities[0], true), s.pod(t, "high", priorities[2], false)
	s.must("systemctl", "poweroff")
	s.waitStatus("start of a pod's stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == unresponsive.UID })
	})
	s.must("systemctl", "restart", "dbus")
	s.eventually("logind back", func() bool {
		_, code := s.run("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListInhibitors")
		return code == 0
	})
	s.waitInhibited()
	_, err := os.Stat(marker)
	off := err == nil
	t.Logf("the machine would be off: %v", off)
	if lives := s.alive(t, high); lives == off {
		t.Errorf("the pod of the third group is alive: %v; want true unless the machine would be off", lives)
	}
}

// overridden: a later drop-in overrides evictd's limit, and evictd names it.
func (s *shutdownTest) overridden(t *testing.T) {
	const late = "/etc/systemd/logind.conf.d/zzzz-late.conf"
	if err := os.MkdirAll(filepath.Dir(late), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(late, []byte("[Login]\nInhibitDelayMaxSec=30\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(late)) }) // if the test fails before it removes the file
	s.must("systemctl", "restart", unitName)
	s.waitStatus("limit of the later drop-in", func(st *control.Status) bool {
		return st.Shutdown.Inhibited && st.Shutdown.LimitSeconds != nil && *st.Shutdown.LimitSeconds == 30 && strings.Contains(st.Shutdown.LogindError, late)
	})
	unresponsive := s.pod(t, "unresponsive", 0, true)
	began := time.Now()
	s.must("systemctl", "poweroff")
	// Its share of the 28 s: 7 s.
	if at := s.record(unresponsive).LastGone.Sub(began); at < 6900*time.Millisecond || at > 18*time.Second {
		t.Errorf("the unresponsive pod exited after %v; want its share of the limit, 7s", at)
	}
	if off := s.waitPowerOff().Sub(began); off > 30*time.Second {
		t.Errorf("the machine would be off after %v; want at most the 30s that are allowed", off)
	}
	s.waitInhibited()
	if err := os.Remove(late); err != nil {
		t.Fatal(err)
	}
	s.must("systemctl", "restart", unitName)
	s.waitStatus("the whole limit again", func(st *control.Status) bool {
		return st.Shutdown.LimitSeconds != nil && *st.Shutdown.LimitSeconds == 62
	})
}

// stop: evictd releases its lock and removes its limit.
func (s *shutdownTest) stop(t *testing.T) {
	s.must("systemctl", "stop", unitName)
	if n := s.locks(); n != 0 {
		t.Errorf("evictd has %d locks after its stop; want none", n)
	}
	s.eventually("logind's own limit", func() bool { return s.limit() == 5 })
	if left, _ := filepath.Glob(filepath.Join(logind.DropInDir, "*evictd*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(filepath.Join(agent.Defaults().StateDir, "state.json")); err != nil {
		t.Errorf("state after the stop: %v; want it there", err)
	}
}
