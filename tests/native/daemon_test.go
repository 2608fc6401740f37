package native_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/kernel/cgroup"
	"github.com/evictd/evictd/tests/node"
)

func isGone(err error) bool { return errors.Is(err, cgroup.ErrGone) }

// daemon is an evictd that a test runs on a node.
type daemon struct {
	t      *testing.T
	n      *node.Node
	dir    string // with its configuration and its state
	env    []string
	args   []string // more of them
	client *control.Client

	cmd  *exec.Cmd
	log  *journal
	out  io.Writer     // what it logs to, if not the journal
	done chan struct{} // closed when it has ended, with code
	code int
}

// journal keeps what evictd logs. It is safe for concurrent use.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// newDaemon makes an evictd that is not started yet. settings are those of an AgentConfiguration.
func newDaemon(t *testing.T, n *node.Node, settings string) *daemon {
	t.Helper()
	d := &daemon{t: t, n: n, dir: t.TempDir(), log: &journal{}}
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

// startDaemon starts an evictd, and returns when it knows the pods and what each of them uses: of one that a slow runtime
// has not told all of yet, it would not be known that it comes first.
func startDaemon(t *testing.T, n *node.Node, settings string, pods ...*pod) *daemon {
	t.Helper()
	d := newDaemon(t, n, settings)
	d.start()
	d.knows(len(pods))
	eventually(t, "usage of every pod", func() bool {
		return !slices.ContainsFunc(d.explain().Ranking, func(c control.Candidate) bool { return c.NoStats })
	})
	return d
}

func (d *daemon) socket() string   { return filepath.Join(d.dir, "evictd.sock") }
func (d *daemon) stateDir() string { return filepath.Join(d.dir, "state") }
func (d *daemon) file() string     { return filepath.Join(d.dir, "evictd.yaml") }

// configure writes the configuration. Victims are given as much more time as the machine is slower: who asks a runtime to
// stop a pod waits for both.
func (d *daemon) configure(settings string) {
	d.t.Helper()
	settings += fmt.Sprintf("\nsettleTimeout: %v", node.Slow(time.Second))
	text := fmt.Sprintf("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nruntimeEndpoint: %s\ncgroupRoot: %s\n%s\n",
		d.n.Endpoint(), d.n.CgroupRoot(), settings)
	if err := os.WriteFile(d.file(), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// command is an evictd with the daemon's configuration and state.
func (d *daemon) command(socket string) *exec.Cmd {
	d.t.Helper()
	e, err := programs()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(e.evictd, append([]string{"--config", d.file(), "--state-dir", d.stateDir(), "--control-socket", socket,
		"--web.listen-address", "", "--log.level", "debug"}, d.args...)...)
	// It does not outlive a test that is killed.
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
		_ = cmd.Wait() // the code tells
		d.code = cmd.ProcessState.ExitCode()
		close(done)
	}(d.cmd, d.done)
}

// kill sends a signal that is to end evictd, and waits for that.
func (d *daemon) kill(s syscall.Signal) {
	d.t.Helper()
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(s) // ended already, at worst
	select {
	case <-d.done:
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		<-d.done
		d.t.Errorf("evictd did not end within %v of %v", patience, s)
	}
}

// running reports whether evictd has not ended.
func (d *daemon) running() bool {
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// status asks evictd; ok is false where it does not answer.
func (d *daemon) status() (s control.Status, ok bool) {
	d.t.Helper()
	if !d.running() {
		d.t.Fatalf("evictd has ended with code %d", d.code)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := d.client.Status(ctx)
	if err != nil && !errors.Is(err, control.ErrNotRunning) && !late(err) {
		d.t.Fatal(err)
	}
	return s, err == nil
}

// late tells an answer that did not come in the client's time, on a machine that is slower than that is made for.
func late(err error) bool { return node.Slow(1) > 1 && errors.Is(err, control.ErrNoAnswer) }

// until waits for a status that meets a condition, and returns it.
func (d *daemon) until(what string, meets func(*control.Status) bool) control.Status {
	d.t.Helper()
	var s control.Status
	eventually(d.t, what, func() bool {
		var ok bool
		s, ok = d.status()
		return ok && len(s.Signals) > 0 && meets(&s) // it answers before it has looked
	})
	return s
}

// knows waits until evictd is connected and knows that many pods.
func (d *daemon) knows(pods int) control.Status {
	d.t.Helper()
	return d.until(fmt.Sprintf("%d pods known to evictd", pods), func(s *control.Status) bool {
		return s.Runtime.Connected && s.Pods.Count == pods
	})
}

// looks waits until evictd has looked at memory that many times from now on.
func (d *daemon) looks(times int) control.Status {
	d.t.Helper()
	var last time.Time
	return d.until(fmt.Sprintf("%d further looks at memory", times), func(s *control.Status) bool {
		o := s.Signals[signal.MemoryAvailable]
		if o.AgeSeconds == nil {
			return false
		}
		// Two computations of one reading's time differ by the rounding of its age.
		at := s.At.Add(-time.Duration(*o.AgeSeconds * float64(time.Second)))
		if at.Sub(last) > time.Millisecond {
			last = at
			times--
		}
		return times < 0
	})
}

// of returns the records of a pod, the oldest first.
func of(s *control.Status, p *pod) []evict.Record {
	return slices.DeleteFunc(slices.Clone([]evict.Record(s.Records)), func(r evict.Record) bool { return r.UID != p.UID })
}

// ended waits for the pod's only record to have come to its end.
func (d *daemon) ended(p *pod) evict.Record {
	d.t.Helper()
	s := d.until("end of the eviction of "+p.Name, func(s *control.Status) bool {
		records := of(s, p)
		return len(records) > 0 && records[0].Result != evict.ResultPending
	})
	records := of(&s, p)
	if len(records) > 1 {
		d.t.Errorf("pod %s has %d records; want 1", p.Name, len(records))
	}
	return records[0]
}

// victims waits until every eviction has ended, and fails unless those evicted are exactly the pods.
func (d *daemon) victims(pods ...*pod) {
	d.t.Helper()
	for _, p := range pods {
		d.ended(p)
	}
	s := d.looks(2)
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

// logged waits for a line of the log with all of the words.
func (d *daemon) logged(words ...string) {
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

// explain asks why the pods stand where they stand for allocatableMemory.available.
func (d *daemon) explain() control.Explanation {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		e, err := d.client.Explain(ctx, signal.AllocatableMemoryAvailable)
		if err == nil {
			return e
		}
		if !late(err) {
			d.t.Fatal(err)
		}
	}
}

// reload has evictd read its configuration again, and returns when it has.
func (d *daemon) reload() control.Status {
	d.t.Helper()
	before, ok := d.status()
	if !ok {
		d.t.Fatal("evictd does not answer")
	}
	if err := d.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		d.t.Fatal(err)
	}
	return d.until("answer to SIGHUP", func(s *control.Status) bool {
		return s.Config.LoadedAt.After(before.Config.LoadedAt) || s.Config.LastReloadError != before.Config.LastReloadError
	})
}

// saved waits until the state on the disk has a word.
func (d *daemon) saved(word string) {
	d.t.Helper()
	eventually(d.t, "state with "+word, func() bool {
		b, err := os.ReadFile(filepath.Join(d.stateDir(), "state.json"))
		return err == nil && strings.Contains(string(b), word)
	})
}
