package service_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/evictd/evictd/agent"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
	"github.com/evictd/evictd/tests/node"
	"github.com/evictd/evictd/tests/vm/protocol"
)

// TestPowerOff is a shutdown that takes place: pods of four priorities stop in order, and the machine is off after it.
// The last is for whoever runs the machine to see.
func TestPowerOff(t *testing.T) {
	m := install(t)
	if err := node.Check(""); err != nil {
		t.Fatalf("a node needs %v", err)
	}
	// What is to be looked at must be there until it has been.
	m.must("systemd-run", "--unit=evictd-test-last", "systemd-inhibit", "--mode=delay", "--what=shutdown", "--who=test",
		"sh", "-c", fmt.Sprintf("while kill -0 %d; do sleep 0.2; done", os.Getpid()))
	s := &shutdowns{machine: m, log: t.Output()}
	s.startNode(t)
	s.configure(s.settings())
	s.must("systemctl", "start", unitName)
	s.held()
	pods := make([]node.Pod, len(priorities))
	for _, i := range []int{2, 0, 3, 1} { // made in another order
		pods[i] = s.pod(t, fmt.Sprint("pod-", i), priorities[i], false)
	}
	s.must("systemctl", "poweroff")
	var gone []time.Time
	for _, p := range pods {
		gone = append(gone, s.record(p).LastGone)
	}
	if !slices.IsSortedFunc(gone, time.Time.Compare) || gone[0].IsZero() {
		t.Errorf("gone, by priority, at %v; want them in this order", gone)
	}
	s.eventually("evictd's lock given up", func() bool { return s.locks() == 0 })
}

// TestNodeShutdown is about shutdowns under the real logind. The machine stays
// up: in the place of what powers it off there is a unit that tells when it would
// have been. To logind that is a shutdown that has been carried out, and then did
// not take place.
func TestNodeShutdown(t *testing.T) {
	m := install(t)
	if err := node.Check(""); err != nil {
		t.Fatalf("a node needs %v", err)
	}
	s := &shutdowns{machine: m, log: t.Output()}
	s.standIn()
	s.startNode(t)
	s.configure(s.settings())
	s.must("systemctl", "start", unitName)
	for _, part := range []struct {
		name string
		run  func(*shutdowns, *testing.T)
	}{
		{"lock and limit", (*shutdowns).lockAndLimit},
		{"in order", (*shutdowns).inOrder},
		{"a second inhibitor", (*shutdowns).secondInhibitor},
		{"scheduled and called off", (*shutdowns).scheduled},
		{"called off in the middle", (*shutdowns).calledOff},
		{"evictd killed in the middle", (*shutdowns).killed},
		{"a runtime that hangs in the middle", (*shutdowns).hungRuntime},
		{"power key", (*shutdowns).powerKey},
		{"restarts of the bus and of logind", (*shutdowns).restarts},
		{"a restart of the bus in the middle", (*shutdowns).busInTheMiddle},
		{"overridden", (*shutdowns).overridden},
		{"stop", (*shutdowns).stop},
	} {
		t.Run(part.name, func(t *testing.T) {
			s.machine = &machine{t: t, hog: m.hog}
			part.run(s, t)
			s.sweep(t)
		})
	}
	s.machine = m
}

type shutdowns struct {
	*machine
	log  io.Writer
	node *node.Node
	pods []node.Pod
}

// marker is written when the machine would be powered off.
const marker = "/run/evictd-test-off"

// standIn puts a unit in the place of the one that powers the machine off, for as
// long as the test lasts.
func (s *shutdowns) standIn() {
	s.t.Helper()
	for name, text := range map[string]string{
		"poweroff.target":         "[Unit]\nDescription=Stands in for the end of the machine\nDefaultDependencies=no\nRequires=evictd-test-off.service\nAfter=evictd-test-off.service\nAllowIsolate=yes\n",
		"evictd-test-off.service": "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/usr/bin/touch " + marker + "\n",
	} {
		path := filepath.Join(unitDir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() {
			if err := os.Remove(path); err != nil {
				s.t.Error(err)
			}
			_, _ = (&machine{t: s.t}).run("systemctl", "daemon-reload")
		})
	}
	s.must("systemctl", "daemon-reload")
}

func (s *shutdowns) startNode(t *testing.T) {
	n, err := node.Start(t.Context(), node.Options{Dir: "/var/lib/evictd-test-node", Log: s.log, Hog: s.hog, MemoryLimit: 512 * mebibyte})
	if err != nil {
		t.Fatal(err)
	}
	s.node = n
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// groupTime is what each of the groups has, by priorities: 60 s in all.
const groupTime = 15

var priorities = []int{0, 100, 1000, 10_000}

// settings are evictd's.
func (s *shutdowns) settings() string {
	text := fmt.Sprintf("runtimeEndpoint: %s\ncgroupRoot: %s\nevictionHard: {}\nshutdownGracePeriodByPodPriority:\n", s.node.Endpoint(), s.node.CgroupRoot())
	for _, priority := range priorities {
		text += fmt.Sprintf("- {priority: %d, shutdownGracePeriodSeconds: %d}\n", priority, groupTime)
	}
	return text
}

// pod runs a pod of a priority, which stops when it is asked to unless it is deaf.
func (s *shutdowns) pod(t *testing.T, name string, priority int, deaf bool) node.Pod {
	t.Helper()
	args := []string{"hold", "-bytes", strconv.Itoa(mebibyte)}
	if deaf {
		args = append(args, "-ignore-term")
	}
	p, err := s.node.RunPod(t.Context(), node.PodSpec{
		Name: name, Annotations: map[string]string{"evictd.io/priority": strconv.Itoa(priority)}, TerminationGracePeriod: 5 * time.Minute,
		Containers: []node.ContainerSpec{{Args: args}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.pods = append(s.pods, p)
	s.until(name+" known to evictd", func(st *control.Status) bool { return st.Pods.Count >= s.running(t) })
	return p
}

// running counts the pods whose container runs.
func (s *shutdowns) running(t *testing.T) (n int) {
	t.Helper()
	for _, p := range s.pods {
		if s.lives(t, p) {
			n++
		}
	}
	return n
}

func (s *shutdowns) lives(t *testing.T, p node.Pod) bool {
	t.Helper()
	now, err := s.node.Pod(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(now.Containers, func(c node.Container) bool { return c.Running })
}

// sweep removes the pods of a part, and what else it left.
func (s *shutdowns) sweep(t *testing.T) {
	for _, p := range s.pods {
		if err := s.node.RemovePod(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	s.pods = nil
	if err := os.Remove(marker); err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
}

// held waits until evictd holds its lock, as logind sees it.
func (s *shutdowns) held() {
	s.t.Helper()
	s.until("a shutdown that is held up", func(st *control.Status) bool { return st.Shutdown.Held && st.Shutdown.Phase == "idle" })
	if n := s.locks(); n != 1 {
		s.t.Errorf("evictd holds %d locks; want 1:\n%s", n, s.must("systemd-inhibit", "--list"))
	}
}

// locks counts those of evictd.
func (s *shutdowns) locks() int {
	s.t.Helper()
	return strings.Count(s.must("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListInhibitors"), `"`+logind.Who+`"`)
}

// limit is logind's, in seconds.
func (s *shutdowns) limit() int {
	s.t.Helper()
	out := s.must("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "InhibitDelayMaxUSec")
	us, err := strconv.Atoi(strings.TrimPrefix(out, "t "))
	if err != nil {
		s.t.Fatalf("InhibitDelayMaxUSec = %q: %v", out, err)
	}
	return us / 1_000_000
}

// off waits until the machine would be powered off, and returns when.
func (s *shutdowns) off() (at time.Time) {
	s.t.Helper()
	s.eventually("end of the machine", func() bool {
		info, err := os.Stat(marker)
		if err == nil {
			at = info.ModTime()
		}
		return err == nil
	})
	return at
}

// record waits for the end of a pod's only record.
func (s *shutdowns) record(p node.Pod) (rec evict.Record) {
	s.t.Helper()
	s.until("end of the record of "+p.Name, func(st *control.Status) bool {
		for _, r := range st.Records {
			if r.UID == p.UID {
				rec = r
			}
		}
		// What an evictd began that was killed is unknown until the next goes on with it.
		return rec.UID != "" && rec.Result != evict.ResultPending && rec.Result != evict.ResultUnknown
	})
	if rec.Cause != evict.CauseShutdown || rec.Reason != shutdown.ReasonTerminated || rec.Message != shutdown.MessageTerminated {
		s.t.Errorf("record of %s: %s, %s, %q; want %s, Terminated, and its message", p.Name, rec.Cause, rec.Reason, rec.Message, evict.CauseShutdown)
	}
	return rec
}

// lockAndLimit: what logind itself allows is too little, and is raised.
func (s *shutdowns) lockAndLimit(t *testing.T) {
	s.held()
	if got := s.limit(); got != 62 {
		t.Errorf("logind allows %d s; want 62: the groups' 60, and the reserve", got)
	}
	out := s.must("evictctl", "shutdown", "plan")
	if !strings.Contains(out, "delayed until the pods are stopped") || !strings.Contains(out, "allows 1m2s") {
		t.Errorf("evictctl shutdown plan does not show that evictd delays the shutdown and that logind allows it:\n%s", out)
	}
}

// inOrder: the pods stop by priority, one that does not hear is killed at the end
// of its group, the machine goes down then and not before.
func (s *shutdowns) inOrder(t *testing.T) {
	low, deaf := s.pod(t, "low", priorities[0], false), s.pod(t, "deaf", priorities[1], true)
	high, highest := s.pod(t, "high", priorities[2], false), s.pod(t, "highest", priorities[3], false)
	began := time.Now()
	s.must("systemctl", "poweroff")
	off := s.off().Sub(began)
	var gone []time.Time
	for _, p := range []node.Pod{low, deaf, high, highest} {
		rec := s.record(p)
		if rec.LastGone.IsZero() {
			t.Errorf("record of %s: %s, %q; want its end known", p.Name, rec.Result, rec.Error)
		}
		gone = append(gone, rec.LastGone)
		if s.lives(t, p) {
			t.Errorf("%s lives when the machine goes down", p.Name)
		}
	}
	if !slices.IsSortedFunc(gone, time.Time.Compare) {
		t.Errorf("gone: low, deaf, high, highest at %v; want them in this order", gone)
	}
	// The deaf pod has its group's time, and what the low one left over.
	if at := gone[1].Sub(began); at < 29*time.Second || at > 40*time.Second {
		t.Errorf("the deaf pod was gone after %v; want 30s", at)
	}
	if off < 30*time.Second || off > 62*time.Second {
		t.Errorf("the machine would be off after %v; want more than 30s, and at most the 62s that logind allows", off)
	}
	// The end of the last pod is told when the runtime has answered, for which
	// nobody waits long; that of the one before it was seen.
	if late := s.off().Sub(gone[1]); late < 0 || late > 20*time.Second {
		t.Errorf("the machine would be off %v after the deaf pod; want soon after it", late)
	}
	// It did not take place after all.
	s.held()
}

// secondInhibitor: logind waits for the other one, evictd does not.
func (s *shutdowns) secondInhibitor(t *testing.T) {
	low := s.pod(t, "low", 0, false)
	s.must("systemd-run", "--unit=evictd-test-other", "systemd-inhibit", "--mode=delay", "--what=shutdown", "--who=other", "sleep", "30")
	t.Cleanup(func() { s.run("systemctl", "stop", "evictd-test-other") })
	s.eventually("the other's lock", func() bool { return strings.Contains(s.must("systemd-inhibit", "--list"), "other") })
	s.must("systemctl", "poweroff")
	s.record(low)
	s.eventually("evictd's lock given up", func() bool { return s.locks() == 0 })
	if _, err := os.Stat(marker); err == nil {
		t.Error("the machine goes down although somebody else holds it up")
	}
	s.off()
	s.held()
}

// scheduled: a shutdown that is only planned stops nobody.
func (s *shutdowns) scheduled(t *testing.T) {
	low := s.pod(t, "low", 0, false)
	s.must("shutdown", "-P", "+1")
	s.must("shutdown", "-c")
	s.must("busctl", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PreparingForShutdown")
	s.held()
	if !s.lives(t, low) {
		t.Error("a shutdown that was planned and called off has stopped a pod")
	}
}

// calledOff: logind forgets a shutdown that it holds up when it is started again.
func (s *shutdowns) calledOff(t *testing.T) {
	deaf, high := s.pod(t, "deaf", 0, true), s.pod(t, "high", 1000, false)
	s.must("systemctl", "poweroff")
	s.until("a pod that is asked to stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == deaf.UID })
	})
	s.must("systemctl", "restart", "systemd-logind")
	s.until("end of the shutdown", func(st *control.Status) bool { return st.Shutdown.Phase == "idle" && st.Shutdown.CalledOff })
	s.held()
	if !s.lives(t, high) {
		t.Error("a pod whose turn had not come was stopped")
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the machine goes down although that was called off")
	}
}

// killed: systemd keeps the lock of an evictd that dies, so that the next one goes
// on where it was, and the machine waits for that.
func (s *shutdowns) killed(t *testing.T) {
	deaf, high := s.pod(t, "deaf", 0, true), s.pod(t, "high", 1000, false)
	pid := s.pid()
	began := time.Now()
	s.must("systemctl", "poweroff")
	s.until("a pod that is asked to stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == deaf.UID })
	})
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unitName)
	s.active(pid)
	for _, p := range []node.Pod{deaf, high} {
		s.record(p)
		if s.lives(t, p) {
			t.Errorf("%s lives; want it stopped by the next evictd", p.Name)
		}
	}
	if off := s.off().Sub(began); off < groupTime*time.Second || off > 62*time.Second {
		t.Errorf("the machine would be off after %v; want more than the %ds that the deaf pod has, and at most 62s", off, groupTime)
	}
	s.held()
}

// hungRuntime: the node goes down in time although nobody stops its pods.
func (s *shutdowns) hungRuntime(t *testing.T) {
	deaf, high := s.pod(t, "deaf", priorities[0], true), s.pod(t, "high", priorities[2], false)
	began := time.Now()
	s.must("systemctl", "poweroff")
	s.until("a pod that is asked to stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == deaf.UID })
	})
	hung := s.node.PID()
	if err := unix.Kill(hung, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := sync.OnceFunc(func() {
		if err := unix.Kill(hung, unix.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(goOn)
	if off := s.off().Sub(began); off > 64*time.Second {
		t.Errorf("the machine would be off after %v; want at most the 62s that logind allows", off)
	}
	goOn()
	for _, p := range []node.Pod{deaf, high} {
		s.until("record of "+p.Name, func(st *control.Status) bool {
			return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == p.UID })
		})
	}
	s.held()
}

// powerKey: who presses the machine's power key shuts it down like anybody else.
func (s *shutdowns) powerKey(t *testing.T) {
	low := s.pod(t, "low", priorities[0], false)
	fmt.Println(protocol.PressPowerKey)
	s.record(low)
	s.off()
	s.held()
}

// restarts: whatever is started again, a lock is held afterwards, and one only.
func (s *shutdowns) restarts(t *testing.T) {
	for _, name := range []string{"systemd-logind", "dbus", "systemd-logind"} {
		s.must("systemctl", "restart", name)
		// Logind may take its time to come back to the bus.
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
	s.until("connection to logind", func(st *control.Status) bool { return st.Shutdown.Held && st.Shutdown.LimitSeconds != nil })
	s.must("systemctl", "poweroff")
	s.record(low)
	s.off()
	s.held()
}

// busInTheMiddle: whether logind, which loses its bus, remembers the shutdown or not, evictd goes by what it says then:
// all pods have stopped, or none is stopped any more whose turn had not come.
func (s *shutdowns) busInTheMiddle(t *testing.T) {
	deaf, high := s.pod(t, "deaf", priorities[0], true), s.pod(t, "high", priorities[2], false)
	s.must("systemctl", "poweroff")
	s.until("a pod that is asked to stop", func(st *control.Status) bool {
		return slices.ContainsFunc(st.Records, func(r evict.Record) bool { return r.UID == deaf.UID })
	})
	s.must("systemctl", "restart", "dbus")
	s.eventually("logind back", func() bool {
		_, code := s.run("busctl", "call", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "ListInhibitors")
		return code == 0
	})
	s.held()
	_, err := os.Stat(marker)
	off := err == nil
	t.Logf("the machine would be off: %v", off)
	if lives := s.lives(t, high); lives == off {
		t.Errorf("the pod of the third group lives: %v; want it to, unless the machine would be off", lives)
	}
}

// overridden: a drop-in that comes later has the say, and is named.
func (s *shutdowns) overridden(t *testing.T) {
	const late = "/etc/systemd/logind.conf.d/zzzz-late.conf"
	if err := os.MkdirAll(filepath.Dir(late), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(late, []byte("[Login]\nInhibitDelayMaxSec=30\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(late)) }) // where the test ends before
	s.must("systemctl", "restart", unitName)
	s.until("limit of the later drop-in", func(st *control.Status) bool {
		return st.Shutdown.Held && st.Shutdown.LimitSeconds != nil && *st.Shutdown.LimitSeconds == 30 && strings.Contains(st.Shutdown.LogindError, late)
	})
	deaf := s.pod(t, "deaf", 0, true)
	began := time.Now()
	s.must("systemctl", "poweroff")
	// Its share of the 28 s: 7 s.
	if at := s.record(deaf).LastGone.Sub(began); at < 6900*time.Millisecond || at > 18*time.Second {
		t.Errorf("the deaf pod was gone after %v; want its share of what is allowed, 7s", at)
	}
	if off := s.off().Sub(began); off > 30*time.Second {
		t.Errorf("the machine would be off after %v; want at most the 30s that are allowed", off)
	}
	s.held()
	if err := os.Remove(late); err != nil {
		t.Fatal(err)
	}
	s.must("systemctl", "restart", unitName)
	s.until("the whole limit again", func(st *control.Status) bool {
		return st.Shutdown.LimitSeconds != nil && *st.Shutdown.LimitSeconds == 62
	})
}

// stop: nothing of a lock and of the limit is left.
func (s *shutdowns) stop(t *testing.T) {
	s.must("systemctl", "stop", unitName)
	if n := s.locks(); n != 0 {
		t.Errorf("evictd holds %d locks after its end; want none", n)
	}
	s.eventually("logind's own limit", func() bool { return s.limit() == 5 })
	if left, _ := filepath.Glob(filepath.Join(logind.DropInDir, "*evictd*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(filepath.Join(agent.Defaults().StateDir, "state.json")); err != nil {
		t.Errorf("state after the stop: %v; want it there", err)
	}
}
