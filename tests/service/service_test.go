package service_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/tests/node"
)

const mebibyte = 1 << 20

// TestService runs the service from a start without a runtime to its stop. Each part starts in the state in which the
// previous one ended.
func TestService(t *testing.T) {
	m := install(t)
	if err := node.Check(""); err != nil {
		t.Fatalf("a node needs %v", err)
	}
	dir := "/var/lib/evictd-test-node"
	s := &lifecycle{machine: m, log: t.Output(), dir: dir, endpoint: "unix://" + dir + "/containerd.sock"}
	for _, part := range []struct {
		name string
		run  func(*lifecycle, *testing.T)
	}{
		{"unit", (*lifecycle).unit},
		{"without a runtime", (*lifecycle).withoutRuntime},
		{"with a runtime", (*lifecycle).withRuntime},
		{"protection", (*lifecycle).protection},
		{"reload", (*lifecycle).reload},
		{"reload of a mistake", (*lifecycle).reloadMistake},
		{"eviction", (*lifecycle).eviction},
		{"crash", (*lifecycle).crash},
		{"watchdog", (*lifecycle).watchdog},
		{"eviction without CAP_KILL", (*lifecycle).evictionWithoutKill},
		{"stop", (*lifecycle).stop},
		{"evictd-kube", (*lifecycle).kube},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			s.machine = &machine{t: t, hog: m.hog}
			part.run(s, t)
		}) {
			break // the next parts depend on this one
		}
	}
	if s.node != nil {
		if err := s.node.Close(); err != nil {
			t.Error(err)
		}
	}
}

// lifecycle is the state that the parts share.
type lifecycle struct {
	*machine
	log           io.Writer // of the whole test
	dir, endpoint string
	node          *node.Node
}

// settings returns evictd's settings with a threshold on allocatableMemory.available.
func (s *lifecycle) settings(threshold string) string {
	root := "/"
	if s.node != nil {
		root = s.node.CgroupRoot()
	}
	return fmt.Sprintf("runtimeEndpoint: %s\ncgroupRoot: %s\nevictionHard: {allocatableMemory.available: %s}", s.endpoint, root, threshold)
}

func (s *lifecycle) unit(t *testing.T) {
	if out := s.must("systemd-analyze", "verify", unitName); out != "" {
		t.Errorf("systemd-analyze verify: %s; want no output", out)
	}
	// The installed unit, with the defaults of this systemd.
	out, code := s.run("systemd-analyze", "security", "--no-pager", fmt.Sprintf("--threshold=%d", mostExposed), unitName)
	if code != 0 {
		t.Errorf("systemd-analyze security --threshold=%d: exit code %d: %s", mostExposed, code, out)
	}
	lines := strings.Split(out, "\n")
	t.Log(lines[len(lines)-1])
}

// withoutRuntime: the unit stays activating for longer than its start timeout, and evictd names what is missing.
func (s *lifecycle) withoutRuntime(t *testing.T) {
	s.configure(s.settings("100Mi"))
	s.dropIn("TimeoutStartSec=20s\n")
	s.must("systemctl", "start", "--no-block", unitName)
	s.waitStatus("run of 30 s", func(s *control.Status) bool { return s.At.Sub(s.Started) > 30*time.Second })
	if state, n := s.show("ActiveState"), s.restarts(); state != "activating" || n != 0 {
		t.Errorf("the service is %s after %d restarts; want activating after none", state, n)
	}
	if got := s.show("StatusText"); !strings.Contains(got, "not ready") || !strings.Contains(got, s.dir) {
		t.Errorf("status text is %q; want \"not ready\" and the runtime", got)
	}
	if code, text := s.ready(); code != http.StatusServiceUnavailable || !strings.Contains(text, "runtime") {
		t.Errorf("/readyz answers %d, %q; want %d, because of the runtime", code, text, http.StatusServiceUnavailable)
	}
	if out, code := s.run("evictctl", "status"); code != 1 || !strings.Contains(out, "ready:       no; ") || !strings.Contains(out, s.dir) {
		t.Errorf("evictctl status exits with %d; want 1 and the name of the missing runtime:\n%s", code, out)
	}
}

// ready requests /readyz.
func (s *lifecycle) ready() (code int, text string) {
	s.t.Helper()
	client := http.Client{Timeout: waitTimeout}
	answer, err := client.Get("http://" + agent.Defaults().WebAddress + "/readyz?verbose")
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// withRuntime: evictd connects to the runtime once that runs, and then the unit becomes active.
func (s *lifecycle) withRuntime(t *testing.T) {
	n, err := node.Start(t.Context(), node.Options{Dir: s.dir, Log: s.log, Hog: s.hog, MemoryLimit: 256 * mebibyte})
	if err != nil {
		t.Fatal(err)
	}
	s.node = n
	s.waitStatus("runtime", func(s *control.Status) bool { return s.Runtime.Connected })
	s.eventually("active unit", func() bool { return s.show("ActiveState") == "active" })
	s.dropIn("")
	s.eventually("status text of a ready evictd", func() bool { return strings.Contains(s.show("StatusText"), "no pressure") })
	s.configure(s.settings("100Mi"))
	s.must("systemctl", "restart", unitName)
	s.eventually("status text of a ready evictd after a restart", func() bool { return strings.Contains(s.show("StatusText"), "no pressure") })
	if code, text := s.ready(); code != http.StatusOK {
		t.Errorf("/readyz answers %d, %q; want %d", code, text, http.StatusOK)
	}
}

// protection checks the kernel's values of evictd's oom_score_adj, memory.min, capabilities and limits.
func (s *lifecycle) protection(t *testing.T) {
	pid := s.pid()
	proc := func(name string) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := strings.TrimSpace(proc("oom_score_adj")); got != "-999" {
		t.Errorf("oom_score_adj is %s; want -999", got)
	}
	at := strings.TrimSuffix(strings.TrimPrefix(proc("cgroup"), "0::"), "\n")
	if at != "/evictd.slice/evictd.service" {
		t.Errorf("evictd is in %s; want /evictd.slice/evictd.service", at)
	}
	for ; at != "/"; at = path.Dir(at) {
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", at, "memory.min"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(b)); got != strconv.Itoa(64*mebibyte) {
			t.Errorf("memory.min of %s is %s; want %d", at, got, 64*mebibyte)
		}
	}
	want := capabilityMask(t, readUnit(t, unitName).capabilities())
	for _, line := range []string{
		"CapEff:\t" + want, "CapPrm:\t" + want, "CapBnd:\t" + want, "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(proc("status"), line+"\n") {
			t.Errorf("/proc/%d/status has no line %q:\n%s", pid, line, proc("status"))
		}
	}
	limits := map[string][]string{} // soft and hard, by name
	for line := range strings.Lines(proc("limits")) {
		// Name and figures are in columns (fs/proc/base.c: proc_pid_limits).
		if f := strings.Fields(line[min(25, len(line)):]); len(f) >= 2 {
			limits[strings.TrimSpace(line[:25])] = f[:2]
		}
	}
	for name, want := range map[string][]string{
		"Max open files": {"65536", "65536"}, "Max locked memory": {"unlimited", "unlimited"}, "Max realtime priority": {"1", "1"},
	} {
		if got := limits[name]; !slices.Equal(got, want) {
			t.Errorf("%s: %q; want %q", name, got, want)
		}
	}
	// evictd may lower this limit itself.
	const realTime = "Max realtime timeout"
	if got := limits[realTime]; len(got) != 2 {
		t.Errorf("%s: %q; want two figures", realTime, got)
	} else if hard, err := strconv.Atoi(got[1]); err != nil || hard > 5_000_000 {
		t.Errorf("%s: %q; want at most 5000000", realTime, got)
	}
}

func threshold(s *control.Status) string {
	if len(s.Signals) == 0 || len(s.Signals[signal.AllocatableMemoryAvailable].Thresholds) == 0 {
		return ""
	}
	return s.Signals[signal.AllocatableMemoryAvailable].Thresholds[0].Value
}

func (s *lifecycle) reload(t *testing.T) {
	pid := s.pid()
	s.configure(s.settings("101Mi"))
	s.must("systemctl", "reload", unitName)
	s.waitStatus("new threshold", func(s *control.Status) bool { return threshold(s) == "101Mi" })
	s.waitLog("configuration reloaded")
	s.eventually("end of the reload", func() bool { return s.show("ActiveState") == "active" })
	if got := s.pid(); got != pid {
		t.Errorf("process after a reload = %d; want %d, as before", got, pid)
	}
}

// reloadMistake: an invalid configuration is reported by systemctl reload and after SIGHUP, and changes nothing.
func (s *lifecycle) reloadMistake(t *testing.T) {
	pid := s.pid()
	s.configure(s.settings("102Mi") + "\nevictionHrad: {}")
	if out, code := s.run("systemctl", "reload", unitName); code == 0 {
		t.Errorf("systemctl reload with a mistake: exit code 0: %s; want another", out)
	}
	s.waitLog("evictctl: evictd refused the request: "+agent.Defaults().ConfigPath+":6", "evictionHrad")
	s.waitLog("configuration not reloaded", "evictionHrad")
	// The same after SIGHUP.
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=HUP", unitName)
	s.eventually("end of the reload", func() bool { return s.show("ActiveState") == "active" })
	if got := s.show("StatusText"); got != "configuration not reloaded" {
		t.Errorf("status text is %q; want \"configuration not reloaded\"", got)
	}
	if got := s.pid(); got != pid {
		t.Errorf("process after a mistake = %d; want %d, as before", got, pid)
	}
	s.waitStatus("status with the old threshold and the error", func(s *control.Status) bool {
		return threshold(s) == "101Mi" && strings.Contains(s.Config.LastReloadError, "evictionHrad")
	})
}

// evict runs a pod of another user that evictd must evict, and returns the record.
func (s *lifecycle) evict(t *testing.T, name string) evict.Record {
	s.configure(s.settings("128Mi"))
	s.must("systemctl", "reload-or-restart", unitName)
	s.waitStatus("new threshold", func(s *control.Status) bool { return threshold(s) == "128Mi" && !s.Mode.DryRun })
	hog, err := s.node.RunPod(t.Context(), node.PodSpec{Name: name, Containers: []node.ContainerSpec{{
		Args: []string{"hold", "-bytes", strconv.Itoa(160 * mebibyte)}, RunAsUser: nobody,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var record evict.Record
	s.waitStatus("record of "+name, func(s *control.Status) bool {
		for _, r := range s.Records {
			if r.UID == hog.UID && r.Result != evict.ResultPending {
				record = r
			}
		}
		return record.UID != ""
	})
	s.eventually("end of the container", func() bool {
		now, err := s.node.Pod(t.Context(), hog.ID)
		if err != nil {
			t.Fatal(err)
		}
		return len(now.Containers) == 1 && !now.Containers[0].Running
	})
	if err := s.node.RemovePod(t.Context(), hog); err != nil {
		t.Error(err)
	}
	t.Logf("record: result %s, %d processes, signal after %v, last exit after %v, error %q", record.Result, record.Processes,
		record.SignalSent.Sub(record.CrossingSeen), record.LastGone.Sub(record.CrossingSeen), record.Error)
	return record
}

// eviction: in its unit evictd kills a hog and records that.
func (s *lifecycle) eviction(t *testing.T) {
	r := s.evict(t, "hog")
	if r.Result != evict.ResultKilled || r.Processes != 1 || r.DryRun {
		t.Errorf("record: result %s, %d processes, dry run %t; want killed, 1, false", r.Result, r.Processes, r.DryRun)
	}
	// On an emulated machine, the runtime may need longer for the stop than evictd waits.
	for line := range strings.Lines(r.Error) {
		if !strings.Contains(line, cri.ErrTimeout.Error()) {
			t.Errorf("record: error %q; want none", line)
		}
	}
	if out := s.must("evictctl", "status"); !strings.Contains(out, "default/hog") {
		t.Errorf("evictctl status does not show the victim:\n%s", out)
	}
}

// crash: after SIGKILL systemd restarts evictd, and evictd restores its records.
func (s *lifecycle) crash(t *testing.T) {
	pid, restarts := s.pid(), s.restarts()
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unitName)
	s.waitActive(pid)
	if got := s.restarts(); got != restarts+1 {
		t.Errorf("restarts = %d; want %d", got, restarts+1)
	}
	s.waitStatus("record of before the crash", func(s *control.Status) bool {
		return s.PID != pid && len(s.Records) == 1 && s.Records[0].Pod == "default/hog"
	})
}

// watchdog: systemd kills and restarts a stopped evictd.
func (s *lifecycle) watchdog(t *testing.T) {
	s.dropIn("WatchdogSec=10s\nTimeoutAbortSec=2s\n")
	s.must("systemctl", "restart", unitName)
	pid, restarts := s.pid(), s.restarts()
	first := s.lastKeepAlive()
	s.eventually("keep-alives for twice the watchdog's interval", func() bool { return s.lastKeepAlive()-first >= 20*time.Second })
	if got := s.pid(); got != pid {
		t.Fatalf("process after 20 s is %d; want %d, which sends keep-alives", got, pid)
	}
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=STOP", unitName)
	s.waitActive(pid)
	if got := s.restarts(); got != restarts+1 {
		t.Errorf("restarts = %d; want %d", got, restarts+1)
	}
	s.waitLog("Watchdog timeout")
	s.dropIn("")
}

// lastKeepAlive returns the time of evictd's last WATCHDOG=1, since the boot.
func (s *lifecycle) lastKeepAlive() time.Duration {
	s.t.Helper()
	us, err := strconv.ParseInt(s.show("WatchdogTimestampMonotonic"), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

// evictionWithoutKill: without CAP_KILL evictd can't signal single processes, but cgroup.kill works. The record need not
// count the killed processes.
func (s *lifecycle) evictionWithoutKill(t *testing.T) {
	others := slices.DeleteFunc(readUnit(t, unitName).capabilities(), func(c string) bool { return c == "CAP_KILL" })
	s.dropIn(onlyCapabilities(others))
	s.must("systemctl", "restart", unitName)
	if r := s.evict(t, "other-hog"); r.Result != evict.ResultKilled || r.LastGone.IsZero() {
		t.Errorf("record without CAP_KILL: result %s, last gone %v; want killed, a time", r.Result, r.LastGone)
	}
	s.dropIn("")
}

// stop: evictd exits promptly with code 0 and keeps its state.
func (s *lifecycle) stop(t *testing.T) {
	s.must("systemctl", "restart", unitName)
	began := time.Now()
	s.must("systemctl", "stop", unitName)
	took := time.Since(began)
	t.Logf("systemctl stop took %v", took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("systemctl stop took %v; want less than the 10 s after which evictd is killed", took)
	}
	if result, code, state := s.show("Result"), s.show("ExecMainStatus"), s.show("ActiveState"); result != "success" || code != "0" || state != "inactive" {
		t.Errorf("the service is %s with result %s and exit code %s; want inactive, success, 0", state, result, code)
	}
	if _, err := os.Stat(filepath.Join(agent.Defaults().StateDir, "state.json")); err != nil {
		t.Errorf("state after the stop: %v; want it there", err)
	}
	if _, err := os.Stat(agent.Defaults().ControlSocket); !os.IsNotExist(err) {
		t.Errorf("control socket after the stop: %v; want none", err)
	}
}
