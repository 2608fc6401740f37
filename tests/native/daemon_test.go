package native_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/tests/node"
)

func isGone(err error) bool { return errors.Is(err, cgroup.ErrGone) }

// daemon is an evictd process that a test runs on a node.
type daemon struct {
	t    *testing.T
	n    *node.Node
	dir  string // of its configuration, state and control socket
	env  []string
	args []string // in addition to those of command
	// profile is the AppArmor profile that it is started in; "" for none.
	profile string
	client  *control.Client

	cmd  *exec.Cmd
	log  *logBuffer
	out  io.Writer     // replaces log as standard error, unless nil
	done chan struct{} // closed when it has exited and code is set
	code int
}

type logBuffer = kerneltest.Buffer

// newDaemon returns an evictd that is not started yet. settings are fields of an AgentConfiguration.
func newDaemon(t *testing.T, n *node.Node, settings string) *daemon {
	t.Helper()
	d := &daemon{t: t, n: n, dir: t.TempDir(), log: &logBuffer{}}
	d.client = control.NewClient(d.socket())
	d.configure(settings)
	t.Cleanup(func() {
		d.kill(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("evictd logged:\n%s", d.log)
		}
	})
	return d
}

// startDaemon starts an evictd and returns when it has listed the pods and read the usage of each: without a usage,
// the ranking would not be the one that the test expects.
func startDaemon(t *testing.T, n *node.Node, settings string, pods ...*pod) *daemon {
	t.Helper()
	d := newDaemon(t, n, settings)
	d.start()
	d.waitPods(len(pods))
	eventually(t, "usage of every pod", func() bool {
		return !slices.ContainsFunc(d.explain().Ranking, func(c control.Candidate) bool { return c.NoStats })
	})
	return d
}

func (d *daemon) socket() string   { return filepath.Join(d.dir, "evictd.sock") }
func (d *daemon) stateDir() string { return filepath.Join(d.dir, "state") }
func (d *daemon) file() string     { return filepath.Join(d.dir, "evictd.yaml") }

// configure writes the configuration. settleTimeout is scaled to the speed of the machine, because a stop waits for
// the runtime and for the victim's processes.
func (d *daemon) configure(settings string) {
	d.t.Helper()
	settings += fmt.Sprintf("\nsettleTimeout: %v", node.ScaleTimeout(time.Second))
	text := fmt.Sprintf("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: %s\ncgroupRoot: %s\n%s\n",
		d.n.Endpoint(), d.n.CgroupRoot(), settings)
	if err := os.WriteFile(d.file(), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// command returns the command of an evictd with the daemon's configuration and state.
func (d *daemon) command(socket string) *exec.Cmd {
	d.t.Helper()
	e, err := programs()
	if err != nil {
		d.t.Fatal(err)
	}
	argv := []string{e.evictd}
	if d.profile != "" {
		argv = []string{"aa-exec", "-p", d.profile, "--", e.evictd}
	}
	argv = append(argv, "--config", d.file(), "--state-dir", d.stateDir(), "--control-socket", socket,
		"--fence-file", filepath.Join(d.dir, "fences"), "--web.listen-address", "", "--log.level", "debug")
	argv = append(argv, d.args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	// SIGKILL evictd if the test process is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd
}

func (d *daemon) start() {
	d.t.Helper()
	d.cmd, d.done = d.command(d.socket()), make(chan struct{})
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if d.out != nil {
		d.cmd.Stderr = d.out
	}
	d.cmd.Env = append(os.Environ(), d.env...)
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait() // the exit code has the result
		d.code = cmd.ProcessState.ExitCode()
		close(done)
	}(d.cmd, d.done)
}

// kill sends a signal and waits until evictd has exited.
func (d *daemon) kill(s syscall.Signal) {
	d.t.Helper()
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(s) // fails only if it has already exited
	select {
	case <-d.done:
	case <-time.After(waitTimeout):
		_ = d.cmd.Process.Kill()
		<-d.done
		d.t.Errorf("evictd did not exit within %v after %v", waitTimeout, s)
	}
}

// running reports whether evictd has not exited.
func (d *daemon) running() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// status reads the status from the control socket; ok is false if evictd does not answer.
func (d *daemon) status() (s control.Status, ok bool) {
	d.t.Helper()
	if !d.running() {
		d.t.Fatalf("evictd exited with code %d", d.code)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	s, err := d.client.Status(ctx)
	if err != nil && !errors.Is(err, control.ErrNotRunning) && !isTimeout(err) {
		d.t.Fatal(err)
	}
	return s, err == nil
}

// isTimeout reports whether the client's own timeout expired on a slow machine, for which it is too short.
func isTimeout(err error) bool {
	return node.ScaleTimeout(1) > 1 && errors.Is(err, control.ErrNoResponse)
}

// waitStatus waits for a status that meets a condition, and returns it.
func (d *daemon) waitStatus(what string, meets func(*control.Status) bool) control.Status {
	d.t.Helper()
	var s control.Status
	eventually(d.t, what, func() bool {
		var ok bool
		s, ok = d.status()
		return ok && len(s.Signals) > 0 && meets(&s) // evictd answers before its first reading
	})
	return s
}

// waitPods waits until evictd is connected to the runtime and lists so many pods.
func (d *daemon) waitPods(pods int) control.Status {
	d.t.Helper()
	return d.waitStatus(fmt.Sprintf("%d pods listed by evictd", pods), func(s *control.Status) bool {
		return s.Runtime.Connected && s.Pods.Count == pods
	})
}

// waitReadings waits for so many further readings of memory by evictd.
func (d *daemon) waitReadings(times int) control.Status {
	d.t.Helper()
	var last time.Time
	return d.waitStatus(fmt.Sprintf("%d further readings of memory", times), func(s *control.Status) bool {
		o := s.Signals[signal.MemoryAvailable]
		if o.AgeSeconds == nil {
			return false
		}
		// The time of one reading, computed twice, differs by the rounding of its age.
		at := s.At.Add(-time.Duration(*o.AgeSeconds * float64(time.Second)))
		if at.Sub(last) > time.Millisecond {
			last = at
			times--
		}
		return times < 0
	})
}

// recordsOf returns the records of a pod, the oldest first.
func recordsOf(s *control.Status, p *pod) []evict.Record {
	return slices.DeleteFunc(slices.Clone([]evict.Record(s.Records)), func(r evict.Record) bool { return r.UID != p.UID })
}

// waitRecord waits until the pod's eviction has finished and returns its only record.
func (d *daemon) waitRecord(p *pod) evict.Record {
	d.t.Helper()
	s := d.waitStatus("end of the eviction of "+p.Name, func(s *control.Status) bool {
		records := recordsOf(s, p)
		return len(records) > 0 && records[0].Result != evict.ResultPending
	})
	records := recordsOf(&s, p)
	if len(records) > 1 {
		d.t.Errorf("pod %s has %d records; want 1", p.Name, len(records))
	}
	return records[0]
}

// checkVictims waits until all evictions have finished, and fails the test unless exactly these pods were evicted.
func (d *daemon) checkVictims(pods ...*pod) {
	d.t.Helper()
	for _, p := range pods {
		d.waitRecord(p)
	}
	s := d.waitReadings(2)
	var got, want []string
	for _, r := range s.Records {
		got = append(got, r.Pod)
	}
	for _, p := range pods {
		want = append(want, p.key())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		d.t.Errorf("evicted pods = %q; want %q", got, want)
	}
}

// waitLog waits for a log line with all of the words.
func (d *daemon) waitLog(words ...string) {
	d.t.Helper()
	eventually(d.t, "log line with "+strings.Join(words, ", "), func() bool {
		for line := range strings.Lines(d.log.String()) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return true
			}
		}
		return false
	})
}

// explain returns evictd's explanation of the ranking for allocatableMemory.available.
func (d *daemon) explain() control.Explanation {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	for {
		e, err := d.client.Explain(ctx, signal.AllocatableMemoryAvailable)
		if err == nil {
			return e
		}
		if !isTimeout(err) {
			d.t.Fatal(err)
		}
	}
}

// reload sends SIGHUP and returns when evictd has loaded or refused the configuration.
func (d *daemon) reload() control.Status {
	d.t.Helper()
	before, ok := d.status()
	if !ok {
		d.t.Fatal("evictd does not answer")
	}
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		d.t.Fatal(err)
	}
	return d.waitStatus("reload after SIGHUP", func(s *control.Status) bool {
		return s.Config.LoadedAt.After(before.Config.LoadedAt) || s.Config.LastReloadError != before.Config.LastReloadError
	})
}

// waitState waits until the state file contains a word.
func (d *daemon) waitState(word string) {
	d.t.Helper()
	eventually(d.t, "state with "+word, func() bool {
		b, err := os.ReadFile(filepath.Join(d.stateDir(), "state.json"))
		return err == nil && strings.Contains(string(b), word)
	})
}
