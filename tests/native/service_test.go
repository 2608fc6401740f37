package native_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/tests/node"
)

// TestDryRun: no process is killed, and a dry-run victim is recorded once per episode.
func TestDryRun(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(64 * mebibyte))}).waitUsage(64 * mebibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(560 * mebibyte))})
	before := processes(t, n.Kubepods())
	d := startDaemon(t, n, hardThreshold("512Mi")+"\ndryRun: true", other, hog)
	hog.grow()
	rec := d.waitRecord(hog)
	checkRecord(t, &rec, hog)
	checkRanksFirst(t, &rec, hog)
	if !rec.DryRun || rec.Result != evict.ResultDryRun || rec.Processes != 1 || rec.Freed != 0 || rec.Error != "" {
		t.Errorf("record of the hog: dry run %t, result %s, %d processes, freed %d, error %q; want true, dry-run, 1, 0, none",
			rec.DryRun, rec.Result, rec.Processes, rec.Freed, rec.Error)
	}
	hog.waitUsage(560 * mebibyte)
	s := d.waitReadings(4)
	if why := strings.Join(s.Mode.Why, "; "); !s.Mode.DryRun || !strings.Contains(why, "dryRun: true") {
		t.Errorf("mode = dry run %t, because %q; want true, \"dryRun: true\"", s.Mode.DryRun, why)
	}
	memory := s.Signals[signal.AllocatableMemoryAvailable]
	if low := *memory.Thresholds[0].Quantity; *memory.Available >= low || *memory.Available+memory.DryRunAdds < low {
		t.Errorf("status: %d available and %d of dry-run victims; want the first below %d and the sum not", *memory.Available, memory.DryRunAdds, low)
	}
	if w := s.DryRunVictims; len(w) != 1 || w[0].UID != hog.UID {
		t.Errorf("dry-run victims = %+v; want the hog", w)
	}
	d.checkVictims(hog)
	mustLive(t, other, hog)
	if diff := cmp.Diff(before, processes(t, n.Kubepods())); diff != "" {
		t.Errorf("processes of the pods (-before +after):\n%s", diff)
	}
}

// TestReload: SIGHUP loads a valid configuration; an invalid one changes nothing and is reported.
func TestReload(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(holdArgs(300 * mebibyte))}).waitUsage(300 * mebibyte)
	d := startDaemon(t, n, hardThreshold("100Mi"), hog)
	threshold := func(s *control.Status) string {
		return s.Signals[signal.AllocatableMemoryAvailable].Thresholds[0].Value
	}

	d.configure("evictionHard: {memory.avialable: 100Mi}")
	s := d.reload()
	for _, want := range []string{d.file() + ":5:", "memory.avialable"} {
		if !strings.Contains(s.Config.LastReloadError, want) {
			t.Errorf("reload error = %q; want it to name %s", s.Config.LastReloadError, want)
		}
	}
	d.waitLog("avialable", "ERROR")
	if got := threshold(&s); got != "100Mi" {
		t.Errorf("threshold after a refused reload = %s; want 100Mi", got)
	}
	mustLive(t, hog)

	d.configure(hardThreshold("900Mi"))
	s = d.reload()
	if s.Config.LastReloadError != "" {
		t.Errorf("reload error = %q; want none", s.Config.LastReloadError)
	}
	d.waitStatus("new threshold", func(s *control.Status) bool { return threshold(s) == "900Mi" })
	hog.mustDie()
	d.checkVictims(hog)
}

// TestSIGTERM: on SIGTERM evictd exits with code 0, keeps its state file and removes its control socket.
func TestSIGTERM(t *testing.T) {
	n := startNode(t, gibibyte)
	pod := runPod(t, n, node.PodSpec{Name: "pod", Containers: oneContainer(holdArgs(32 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("100Mi"), pod)
	began := time.Now()
	d.kill(syscall.SIGTERM)
	if d.code != 0 {
		t.Errorf("exit code after SIGTERM = %d; want 0", d.code)
	}
	if took := time.Since(began); took > promptLimit {
		t.Errorf("evictd exited %v after SIGTERM; want less than %v", took, promptLimit)
	}
	if _, err := os.Stat(filepath.Join(d.stateDir(), "state.json")); err != nil {
		t.Errorf("state after SIGTERM: %v; want it there", err)
	}
	if _, err := os.Stat(d.socket()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("control socket after SIGTERM: %v; want none", err)
	}
	mustLive(t, pod)
}

// TestSIGTERMWhileEvicting: evictd exits without waiting for the grace period of a victim.
func TestSIGTERMWhileEvicting(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(560*mebibyte, "-ignore-term"))})
	d := startDaemon(t, n, softSettings("1s", "evictionMaxPodGracePeriod: 60"), hog)
	hog.grow()
	d.waitStatus("soft victim", func(s *control.Status) bool { return len(s.Victims) == 1 })
	began := time.Now()
	d.kill(syscall.SIGTERM)
	if took := time.Since(began); d.code != 0 || took > promptLimit {
		t.Errorf("evictd exited %v after SIGTERM with code %d; want 0, within %v", took, d.code, promptLimit)
	}
	mustLive(t, hog)
}

// TestSecondDaemonOnStateDir: a second evictd on the same state directory exits with an error and does not disturb the
// first.
func TestSecondDaemonOnStateDir(t *testing.T) {
	n := startNode(t, gibibyte)
	pod := runPod(t, n, node.PodSpec{Name: "pod", Containers: oneContainer(holdArgs(32 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("100Mi"), pod)
	out, err := d.command(filepath.Join(d.dir, "second.sock")).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "in use by another evictd") {
		t.Errorf("a second evictd = %v: %s; want exit code 1 and the reason", err, out)
	}
	d.waitReadings(2)
	d.waitPods(1)
}

// TestReadiness: evictd sends READY=1 to the service manager only after it has listed the pods. Until then STATUS and
// evictctl name what is missing.
func TestReadiness(t *testing.T) {
	n := startNode(t, gibibyte)
	pod := runPod(t, n, node.PodSpec{Name: "pod", Containers: oneContainer(holdArgs(32 * mebibyte))})
	n.KillRuntime()
	d := newDaemon(t, n, hardThreshold("100Mi"))
	m := listen(t)
	d.env = append(d.env, "NOTIFY_SOCKET="+m.path)
	d.start()
	d.waitReadings(3)
	if s, _ := d.status(); s.Runtime.Connected || s.Ready {
		t.Errorf("ready %t, runtime connected %t; want false, false without a runtime", s.Ready, s.Runtime.Connected)
	}
	eventually(t, "status that names the runtime", func() bool {
		return strings.Contains(m.received(), "STATUS=not ready: ") && strings.Contains(m.received(), n.Socket())
	})
	if out, code := d.evictctl("status"); code != 1 || !strings.Contains(out, "ready:       no; ") || !strings.Contains(out, n.Socket()) {
		t.Errorf("evictctl status exits with %d; want 1 and the name of the runtime:\n%s", code, out)
	}
	d.reload()
	d.waitReadings(2)
	if got := m.received(); strings.Contains(got, "READY=1") || !strings.Contains(got, "EXTEND_TIMEOUT_USEC=") {
		t.Errorf("notifications without a runtime = %q; want EXTEND_TIMEOUT_USEC and no READY", got)
	}
	if err := n.RestartRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "READY", func() bool { return strings.Contains(m.received(), "READY=1\nSTATUS=enforcing") })
	if s, ok := d.status(); !ok || !s.Runtime.Connected || s.Pods.Count != 1 {
		t.Errorf("status when ready: runtime %+v, %d pods; want it connected, 1", s.Runtime, s.Pods.Count)
	}
	d.waitStatus("ready", func(s *control.Status) bool { return s.Ready })
	if out, code := d.evictctl("status"); code != 0 || !strings.Contains(out, "ready:       yes") {
		t.Errorf("evictctl status exits with %d when evictd is ready; want 0:\n%s", code, out)
	}
	d.kill(syscall.SIGTERM)
	eventually(t, "STOPPING", func() bool { return strings.Contains(m.received(), "STOPPING=1") })
	mustLive(t, pod)
}

// evictctl runs evictctl against the daemon and returns its output and exit code.
func (d *daemon) evictctl(args ...string) (out string, code int) {
	d.t.Helper()
	e, err := programs()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(e.evictctl, append(args, "--control-socket", d.socket())...)
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// manager is the service manager's socket of sd_notify.
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn
	text strings.Builder
}

func listen(t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: filepath.Join(t.TempDir(), "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	m.conn = conn
	return m
}

// received returns all notifications until now.
func (m *manager) received() string {
	m.t.Helper()
	buf := make([]byte, 4096)
	for {
		if err := m.conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			m.t.Fatal(err)
		}
		size, err := m.conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return m.text.String()
		}
		if err != nil {
			m.t.Fatal(err)
		}
		m.text.Write(buf[:size])
		m.text.WriteByte('\n')
	}
}

// TestStatusCommand: evictctl status shows the record as JSON and as text.
func TestStatusCommand(t *testing.T) {
	n := startNode(t, gibibyte)
	hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: oneContainer(growArgs(560 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("512Mi"), hog)
	hog.grow()
	want := d.waitRecord(hog)
	e, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(e.evictctl, "status", "--control-socket", d.socket(), "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var s control.Status
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Records) != 1 {
		t.Fatalf("evictctl status -o json: %d records; want 1", len(s.Records))
	}
	if diff := cmp.Diff(want, s.Records[0], cmpopts.IgnoreUnexported(evict.Ranked{})); diff != "" {
		t.Errorf("the record by evictctl (-want +got):\n%s", diff)
	}
	text, err := exec.Command(e.evictctl, "status", "--control-socket", d.socket()).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"default/hog", "allocatableMemory.available", "killed"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("evictctl status does not show %q:\n%s", want, text)
		}
	}
}
