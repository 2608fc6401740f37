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

// TestService is one life of the service, from before there is a runtime to its
// end. Each part goes on from where the one before left it.
func TestService(t *testing.T) {
	m := install(t)
	if err := node.Check(""); err != nil {
		t.Fatalf("a node needs %v", err)
	}
	dir := "/var/lib/evictd-test-node"
	s := &life{machine: m, log: t.Output(), dir: dir, endpoint: "unix://" + dir + "/containerd.sock"}
	for _, part := range []struct {
		name string
		run  func(*life, *testing.T)
	}{
		{"unit", (*life).unit},
		{"without a runtime", (*life).withoutRuntime},
		{"with a runtime", (*life).withRuntime},
		{"protection", (*life).protection},
		{"reload", (*life).reload},
		{"reload of a mistake", (*life).reloadMistake},
		{"eviction", (*life).eviction},
		{"crash", (*life).crash},
		{"watchdog", (*life).watchdog},
		{"eviction without CAP_KILL", (*life).evictionWithoutKill},
		{"stop", (*life).stop},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			s.machine = &machine{t: t, hog: m.hog}
			part.run(s, t)
		}) {
			break // the next would say nothing
		}
	}
	if s.node != nil {
		if err := s.node.Close(); err != nil {
			t.Error(err)
		}
	}
}

// life is what the parts share.
type life struct {
	*machine
	log           io.Writer // of the whole test
	dir, endpoint string
	node          *node.Node
}

// settings are evictd's, with a threshold on what the pods may take together.
func (s *life) settings(threshold string) string {
	root := "/"
	if s.node != nil {
		root = s.node.CgroupRoot()
	}
	return fmt.Sprintf("runtimeEndpoint: %s\ncgroupRoot: %s\nevictionHard: {allocatableMemory.available: %s}", s.endpoint, root, threshold)
}

func (s *life) unit(t *testing.T) {
	if out := s.must("systemd-analyze", "verify", unitName); out != "" {
		t.Errorf("systemd-analyze verify: %s; want nothing to say", out)
	}
	// As it is installed, with what this systemd adds by itself.
	out, code := s.run("systemd-analyze", "security", "--no-pager", fmt.Sprintf("--threshold=%d", mostExposed), unitName)
	if code != 0 {
		t.Errorf("systemd-analyze security --threshold=%d: exit code %d: %s", mostExposed, code, out)
	}
	lines := strings.Split(out, "\n")
	t.Log(lines[len(lines)-1])
}

// withoutRuntime: the start does not end, evictd runs for longer than systemd gives a
// start and says what is missing.
func (s *life) withoutRuntime(t *testing.T) {
	s.configure(s.settings("100Mi"))
	s.dropIn("TimeoutStartSec=20s\n")
	s.must("systemctl", "start", "--no-block", unitName)
	s.until("run of 30 s", func(s *control.Status) bool { return s.At.Sub(s.Started) > 30*time.Second })
	if state, n := s.show("ActiveState"), s.restarts(); state != "activating" || n != 0 {
		t.Errorf("the service is %s after %d restarts; want activating after none", state, n)
	}
	if got := s.show("StatusText"); !strings.Contains(got, "not ready") || !strings.Contains(got, s.dir) {
		t.Errorf("status text is %q; want it to say that it is not ready, and the name of the runtime", got)
	}
	if code, text := s.ready(); code != http.StatusServiceUnavailable || !strings.Contains(text, "runtime") {
		t.Errorf("/readyz answers %d, %q; want %d, because of the runtime", code, text, http.StatusServiceUnavailable)
	}
	if out, code := s.run("evictctl", "status"); code != 1 || !strings.Contains(out, "ready:       no; ") || !strings.Contains(out, s.dir) {
		t.Errorf("evictctl status exits %d and does not name the runtime that is missing; want 1 and its name:\n%s", code, out)
	}
}

// ready asks whether evictd is.
func (s *life) ready() (code int, text string) {
	s.t.Helper()
	client := http.Client{Timeout: patience}
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

// withRuntime: evictd finds the runtime when it comes, and a start ends when it
// has answered.
func (s *life) withRuntime(t *testing.T) {
	n, err := node.Start(t.Context(), node.Options{Dir: s.dir, Log: s.log, Hog: s.hog, MemoryLimit: 256 * mebibyte})
	if err != nil {
		t.Fatal(err)
	}
	s.node = n
	s.until("runtime", func(s *control.Status) bool { return s.Runtime.Connected })
	s.eventually("end of the start", func() bool { return s.show("ActiveState") == "active" })
	s.dropIn("")
	s.eventually("status text of evictd that is ready", func() bool { return strings.Contains(s.show("StatusText"), "no pressure") })
	s.configure(s.settings("100Mi"))
	s.must("systemctl", "restart", unitName)
	s.eventually("the same after a restart", func() bool { return strings.Contains(s.show("StatusText"), "no pressure") })
	if code, text := s.ready(); code != http.StatusOK {
		t.Errorf("/readyz answers %d, %q; want %d", code, text, http.StatusOK)
	}
}

// protection: what is to keep evictd running is in force, in the kernel's words.
func (s *life) protection(t *testing.T) {
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
	// evictd may bound this further.
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

func (s *life) reload(t *testing.T) {
	pid := s.pid()
	s.configure(s.settings("101Mi"))
	s.must("systemctl", "reload", unitName)
	s.until("new threshold", func(s *control.Status) bool { return threshold(s) == "101Mi" })
	s.logged("configuration reloaded")
	s.eventually("end of the reload", func() bool { return s.show("ActiveState") == "active" })
	if got := s.pid(); got != pid {
		t.Errorf("process after a reload is %d; want %d, the one before", got, pid)
	}
}

// reloadMistake: a mistake is told, and changes nothing, whoever finds it.
func (s *life) reloadMistake(t *testing.T) {
	pid := s.pid()
	s.configure(s.settings("102Mi") + "\nevictionHrad: {}")
	if out, code := s.run("systemctl", "reload", unitName); code == 0 {
		t.Errorf("systemctl reload with a mistake: exit code 0: %s; want another", out)
	}
	s.logged("evictctl: evictd refused the request: "+agent.Defaults().ConfigPath+":6", "evictionHrad")
	s.logged("configuration not reloaded", "evictionHrad")
	// So it is on SIGHUP.
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=HUP", unitName)
	s.eventually("end of the reload", func() bool { return s.show("ActiveState") == "active" })
	if got := s.show("StatusText"); got != "configuration not reloaded" {
		t.Errorf("status text is %q; want that the configuration was not reloaded", got)
	}
	if got := s.pid(); got != pid {
		t.Errorf("process after a mistake is %d; want %d, the one before", got, pid)
	}
	s.until("status with the old threshold and the error", func(s *control.Status) bool {
		return threshold(s) == "101Mi" && strings.Contains(s.Config.LastReloadError, "evictionHrad")
	})
}

// evict has evictd evict a pod of another user, and returns the record.
func (s *life) evict(t *testing.T, name string) evict.Record {
	s.configure(s.settings("128Mi"))
	s.must("systemctl", "reload-or-restart", unitName)
	s.until("new threshold", func(s *control.Status) bool { return threshold(s) == "128Mi" && !s.Mode.DryRun })
	hog, err := s.node.RunPod(t.Context(), node.PodSpec{Name: name, Containers: []node.ContainerSpec{{
		Args: []string{"hold", "-bytes", strconv.Itoa(160 * mebibyte)}, RunAsUser: nobody,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var record evict.Record
	s.until("record of "+name, func(s *control.Status) bool {
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
	t.Logf("record: result %s, %d processes, signal after %v, last gone after %v, error %q", record.Result, record.Processes,
		record.SignalSent.Sub(record.CrossingSeen), record.LastGone.Sub(record.CrossingSeen), record.Error)
	return record
}

// eviction: in its unit evictd kills, and tells of it.
func (s *life) eviction(t *testing.T) {
	r := s.evict(t, "hog")
	if r.Result != evict.ResultKilled || r.Processes != 1 || r.DryRun {
		t.Errorf("record: result %s, %d processes, dry run %t; want killed, 1, false", r.Result, r.Processes, r.DryRun)
	}
	// Where the machine is emulated, a runtime may need longer than evictd waits
	// for it to tidy up.
	for line := range strings.Lines(r.Error) {
		if !strings.Contains(line, cri.ErrTimeout.Error()) {
			t.Errorf("record: error %q; want none", line)
		}
	}
	if out := s.must("evictctl", "status"); !strings.Contains(out, "default/hog") {
		t.Errorf("evictctl status does not show the victim:\n%s", out)
	}
}

// crash: systemd starts evictd again, and evictd remembers.
func (s *life) crash(t *testing.T) {
	pid, restarts := s.pid(), s.restarts()
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unitName)
	s.active(pid)
	if got := s.restarts(); got != restarts+1 {
		t.Errorf("restarts = %d; want %d", got, restarts+1)
	}
	s.until("record of before the crash", func(s *control.Status) bool {
		return s.PID != pid && len(s.Records) == 1 && s.Records[0].Pod == "default/hog"
	})
}

// watchdog: a process that does nothing any more is ended and started again.
func (s *life) watchdog(t *testing.T) {
	s.dropIn("WatchdogSec=10s\nTimeoutAbortSec=2s\n")
	s.must("systemctl", "restart", unitName)
	pid, restarts := s.pid(), s.restarts()
	first := s.beat()
	s.eventually("beats for twice the watchdog's", func() bool { return s.beat()-first >= 20*time.Second })
	if got := s.pid(); got != pid {
		t.Fatalf("process after 20 s is %d; want %d, which beats", got, pid)
	}
	s.must("systemctl", "kill", "--kill-whom=main", "--signal=STOP", unitName)
	s.active(pid)
	if got := s.restarts(); got != restarts+1 {
		t.Errorf("restarts = %d; want %d", got, restarts+1)
	}
	s.logged("Watchdog timeout")
	s.dropIn("")
}

// beat is when evictd last told that it lives, since the boot.
func (s *life) beat() time.Duration {
	s.t.Helper()
	us, err := strconv.ParseInt(s.show("WatchdogTimestampMonotonic"), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

// evictionWithoutKill: where no process can be signalled by itself, the kernel ends the whole cgroup. Whether the record
// counts whom that took is not promised.
func (s *life) evictionWithoutKill(t *testing.T) {
	others := slices.DeleteFunc(readUnit(t, unitName).capabilities(), func(c string) bool { return c == "CAP_KILL" })
	s.dropIn(onlyCapabilities(others))
	s.must("systemctl", "restart", unitName)
	if r := s.evict(t, "other-hog"); r.Result != evict.ResultKilled || r.LastGone.IsZero() {
		t.Errorf("record without CAP_KILL: result %s, last gone %v; want killed, and known", r.Result, r.LastGone)
	}
	s.dropIn("")
}

// stop: it ends at once and without fault, and leaves its state alone.
func (s *life) stop(t *testing.T) {
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
