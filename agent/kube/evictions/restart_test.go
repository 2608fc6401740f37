package evictions

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/podfence"
	"github.com/evictd/evictd/agent/pods"
)

// TestRestart has the rows of the table in the package comment: what evictd had done before it
// was killed, what the next one finds, and what becomes of it.
//
// Complexity: the rows of one table.
//
//gocyclo:ignore
func TestRestart(t *testing.T) {
	killed := func(n *node) { // the order is saved, and the fence set
		n.fence()
		n.save()
	}
	unfenced := func(n *node) { // the order is saved before the mark is written
		n.saves = n.save
		n.fence()
		n.saves = nil
		n.LiftAll(n.t)
	}
	answered := func(n *node) {
		n.fence()
		n.report(act.LastGone)
		n.connect(kube.AnswerReported, 0)
		n.until("the answer", func() bool { return n.order().Answer == kube.AnswerReported })
		n.save()
	}
	refused := func(n *node) {
		n.refusePod()
		n.save()
	}
	paused := func(then func(*node)) func(*node) { return func(n *node) { n.pause(); then(n) } }
	newer := func(n *node) { n.running.LastStart = time.Now().UnixNano() }
	decide := func(n *node) { n.decided = true; n.checkNow() }
	for _, tt := range []struct {
		name   string
		change func(*node) // nil for none
		before func(*node) // until evictd is killed
		down   func(*node) // while no evictd runs
		after  func(*node) // after the first check of the next evictd
		stage  kube.Stage  // "" for no order
		fenced bool
		killed bool // the pod is killed again by Resume
		log    string
	}{
		{name: "1 before the order", before: func(*node) {}, down: newer},
		{name: "2 before the order is saved, dead", before: paused((*node).fence), down: (*node).exited, stage: kube.StageEnded, fenced: true, log: "the mark of the pod's fence has it"},
		{name: "2 before the order is saved, dead and exclusive", change: exclusive, before: paused((*node).fence), down: (*node).exited, stage: kube.StageEnded, fenced: true},
		{name: "3 before the order is saved, left", before: (*node).fence, after: decide, stage: kube.StageKilled, fenced: true, killed: true},
		{name: "3 before the order is saved, started again", before: (*node).fence, down: newer, log: "its kubelet has started it again while evictd did not run"},
		{name: "3 before the order is saved, after a refusal that is", before: func(n *node) { refused(n); time.Sleep(2 * time.Millisecond); n.evict(false); n.fence() }, after: decide, stage: kube.StageKilled, fenced: true, killed: true},
		{name: "3 before the kill is saved, after a grace period", before: func(n *node) { n.stopping(); n.fence() }, after: decide, stage: kube.StageKilled, fenced: true, killed: true},
		{name: "3 before the order is saved, in a shutdown in which it ends", before: func(n *node) { n.fence(); n.shuttingDown = true; n.Lift(testUID, ""); n.shuttingDown = false }, log: "lifting the fence of an earlier run"},
		{name: "3 before the order is saved, and it is withdrawn", before: func(n *node) { n.fence(); n.shuttingDown = true; n.connected = false; n.Stop(); n.shuttingDown = false }, log: "lifting the fence of an earlier run"},
		{name: "4 before the mark, the loop knows the victim", before: unfenced, after: func(n *node) {
			n.report(act.Signalled)
			n.fence()
			n.decided = true
		}, stage: kube.StageKilled, fenced: true},
		{name: "4 before the mark, the loop does not know the victim", before: unfenced, after: decide, stage: kube.StageKilled, killed: true},
		{name: "4 before the mark, the loop's list has no container", before: unfenced, after: func(n *node) {
			n.unlisted = true
			decide(n)
			n.unlisted = false
			n.checkNow()
		}, stage: kube.StageKilled, killed: true},
		{name: "4 before the mark, the loop has not decided", before: unfenced, stage: kube.StageKilled},
		{name: "4 before the mark, in dry run", before: unfenced, after: func(n *node) { n.dryRun = true; decide(n) }, log: "dry run"},
		{name: "5 before the mark, started again", before: unfenced, down: newer, log: "its kubelet has started it again while evictd did not run"},
		{name: "6 before the mark, dead", before: unfenced, down: (*node).exited, stage: kube.StageEnded},
		{name: "6 before the mark, dead for long", before: unfenced, down: func(n *node) {
			n.exited()
			n.saved[0].EachTime(func(t *time.Time) { *t = t.Add(-lateReport) })
		}, log: "may have started it again while evictd did not run"},
		{name: "6 before the mark, dead and exclusive", change: exclusive, before: unfenced, down: (*node).exited, log: "two instances of it must not run"},
		{name: "7 while processes exit, the loop knows the victim", before: killed, after: func(n *node) {
			n.report(act.Signalled)
			decide(n)
		}, stage: kube.StageKilled, fenced: true},
		{name: "7 while processes exit, the loop does not know the victim", before: killed, after: decide, stage: kube.StageKilled, fenced: true, killed: true},
		{name: "7 while processes exit, the clock is set back", before: killed, down: func(n *node) {
			n.running.LastStart = time.Now().Add(-10 * time.Minute).UnixNano()
			n.saved[0].EachTime(func(t *time.Time) { *t = t.Add(-30 * time.Minute) }) // as agent/state does
		}, after: decide, stage: kube.StageKilled, fenced: true, killed: true},
		{name: "7 while processes exit, in dry run", before: killed, after: func(n *node) { n.dryRun = true; decide(n) }, log: "dry run"},
		{name: "8 while processes exit, not listed", change: exclusive, before: func(n *node) { n.pause(); killed(n); n.process(n.container()) }, down: (*node).exited, after: decide, stage: kube.StageKilled, fenced: true},
		{name: "9 after the last process", change: exclusive, before: func(n *node) { n.pause(); killed(n) }, down: (*node).exited, stage: kube.StageEnded, fenced: true},
		{name: "10 before the answer", change: exclusive, before: func(n *node) {
			n.pause()
			n.fence()
			n.report(act.LastGone)
			n.save()
		}, down: (*node).exited, stage: kube.StageEnded, fenced: true},
		{name: "11 before the cgroup is removed", before: answered, down: (*node).exited, stage: kube.StageEnded, fenced: true},
		{name: "11 before the cgroup is removed, which follows", before: answered, down: (*node).exited, after: func(n *node) { n.removePod(); n.checkNow() }},
		{name: "12 after the cgroup was removed", before: answered, down: (*node).removePod, after: (*node).checkTwice},
		{name: "12 after the cgroup was removed, not answered", before: killed, down: (*node).removePod, after: (*node).checkTwice, stage: kube.StageEnded},
		{name: "13 in a grace period, the loop knows the victim", before: (*node).stopping, after: func(n *node) {
			n.reportStopping()
			decide(n)
		}, stage: kube.StageStopping},
		{name: "13 in a grace period, the loop does not know the victim", before: (*node).stopping, down: newer, after: decide, log: "grace period"},
		{name: "14 in a clean stop", before: func(n *node) { killed(n); n.connected = false; n.Stop() }, down: newer, log: "started it again"},
		{name: "14 in a clean stop, answered", before: func(n *node) { answered(n); n.connected = false; n.Stop() }, down: newer, stage: kube.StageEnded},
		{name: "15 after a clean stop", before: func(n *node) { killed(n); n.connected = false; n.Stop(); n.save() }, down: newer},
		{name: "16 after a refusal", before: refused, down: (*node).exited, stage: kube.StageEnded},
		{name: "16 after a refusal, without a sandbox", before: refused, down: (*node).removePod, after: (*node).checkTwice, stage: kube.StageEnded},
		{name: "17 after a refusal, started", before: refused, down: newer, after: decide, log: "no container of it had run"},
		{name: "the runtime is not listed", before: killed, down: func(n *node) { n.running = pods.Running{} }, stage: kube.StageKilled, fenced: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			if tt.change != nil {
				tt.change(n)
			}
			tt.before(n)
			if tt.down != nil {
				tt.down(n)
			}
			begun := len(n.log.String())
			n.restart(false)
			n.checkNow()
			if tt.after != nil {
				tt.after(n)
			}
			n.wantStage(tt.stage)
			if _, err := os.Stat(n.limits.Path(n.path)); err == nil {
				n.wantFenced(tt.fenced)
			}
			if (len(n.resumed) > 0) != tt.killed {
				t.Errorf("killed again: %+v; want %t", n.resumed, tt.killed)
			}
			for _, o := range n.resumed {
				if o.UID != testUID || o.Pod != testPod || !o.Hard {
					t.Errorf("order of the kill = %+v; want a hard one for %s", o, testPod)
				}
			}
			if got := n.log.String()[begun:]; !strings.Contains(got, tt.log) {
				t.Errorf("log = %s; want %q", got, tt.log)
			}
		})
	}
}

// LiftAll lifts all fences without the orders, as if none had been set.
func (n *node) LiftAll(t *testing.T) {
	t.Helper()
	if _, err := n.table.LiftAll(); err != nil {
		t.Fatal(err)
	}
}

// checkTwice checks again: the first check of an evictd only looks at what is left.
func (n *node) checkTwice() { n.checkNow() }

// stopping begins an eviction with a grace period.
func (n *node) stopping() {
	n.evict(false)
	n.reportStopping()
	n.save()
}

// In dry run by configuration nothing is done to a pod: no fence stays.
func TestRestartInDryRun(t *testing.T) {
	n := newNode(t)
	n.fence()
	n.save()
	n.restart(true)
	n.wantFenced(false)
	n.wantStage("")
	if n.checkNow() {
		t.Error("evictions remain")
	}
}

// A fence that can't be found, because its file is broken, is reported.
func TestOpenBroken(t *testing.T) {
	n := newNode(t)
	n.fence()
	n.Evictions.Close()
	f, err := os.OpenFile(n.marks(), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt([]byte("broken"), 1024+60)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	err = New(n.o).Open(podfence.Options{File: n.marks(), BootID: testBoot, Hierarchy: n.hierarchy})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("Open = %v; want the broken record named", err)
	}
}

// Without the file of marks evictd runs, and reports the pods that it kills without a fence.
func TestOpenFails(t *testing.T) {
	n := newNode(t)
	n.connected = false
	e := New(n.o)
	if err := e.Open(podfence.Options{File: n.dir, BootID: testBoot, Hierarchy: n.hierarchy}); err == nil {
		t.Fatal("a directory was opened")
	}
	if err := e.Fence(n.job()); !errors.Is(err, errNoTable) {
		t.Errorf("Fence = %v; want %v", err, errNoTable)
	}
	n.wantFenced(false)
	n.wantStage(kube.StageEnded)
	e.Stop()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestRelease(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.Evictions.Close()
	var out bytes.Buffer
	if err := Release(&out, "/sys/fs/cgroup", "/proc", n.dir+"/none"); err != nil || out.String() != "no fences\n" {
		t.Errorf("without a file: %q, %v", out.String(), err)
	}
	if err := os.Remove(n.marks()); err != nil {
		t.Fatal(err)
	}
	o := podfence.Options{File: n.marks(), BootID: strings.TrimSpace(string(boot)), Hierarchy: n.hierarchy}
	n.Evictions = New(n.o)
	if err := n.Open(o); err != nil {
		t.Fatal(err)
	}
	n.fence()
	err = Release(&out, "/sys/fs/cgroup", "/proc", n.marks())
	if !errors.Is(err, podfence.ErrLocked) || !strings.Contains(err.Error(), "systemctl stop evictd") {
		t.Errorf("beside an evictd: %v; want that to be stopped", err)
	}
	n.wantFenced(true)
	n.Evictions.Close()
	out.Reset()
	err = Release(&out, "/sys/fs/cgroup", "/proc", n.marks())
	if want := "pod " + testUID + ": fence lifted (cgroup " + n.path + ")\n"; err != nil || out.String() != want {
		t.Errorf("Release prints %q, %v; want %q", out.String(), err, want)
	}
	n.wantFenced(false)
}
