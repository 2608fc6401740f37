package agent

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/selffence"
	"github.com/evictd/evictd/agent/shutdown"
)

// A shutdown of the node is marked on the Node object until it is canceled, but not in dry run. Without a watchdog the
// advert is a withdrawal.
func TestPlannedShutdownIsMarked(t *testing.T) {
	d := buildHere(t)
	enforcing := *d.config
	enforcing.DryRun = false
	d.config = &enforcing
	d.buildSelfFencing()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { d.selfFencing.Run(ctx) })
	defer running.Wait()
	defer cancel()
	p := connectNode(t, d)
	expect := func(when string, until time.Time) {
		t.Helper()
		want := ""
		if !until.IsZero() {
			want = selffence.FormatPlannedShutdown(until)
		}
		for deadline := time.After(20 * time.Second); ; {
			select {
			case m := <-p.marks:
				if !strings.Contains(m.Watchdog, `"armed":false`) {
					t.Errorf("%s: advert %s without a watchdog", when, m.Watchdog)
				}
				if m.PlannedShutdown == want {
					return
				}
			case <-deadline:
				t.Fatalf("%s: no mark %q within 20 s", when, want)
			}
		}
	}
	expect("start", time.Time{})
	began := time.Now()
	active := shutdown.State{Phase: shutdown.Stopping, Began: began, Schedule: shutdown.ByPeriods(time.Minute, 0)}
	d.shutdown.Restore(active)
	d.noteShutdown()
	expect("shutdown", began.Add(time.Minute+plannedMargin))
	v := &loop.View{}
	v.Mode.DryRun = true
	d.lastView.Store(v)
	d.noteShutdown()
	expect("dry run", time.Time{})
	d.lastView.Store(nil)
	active.Schedule = shutdown.ByPeriods(100*time.Hour, 0)
	d.shutdown.Restore(active)
	now := time.Now()
	d.planShutdown(now)
	expect("long shutdown", now.Add(selffence.MaxPlannedShutdown))
	d.shutdown.Restore(shutdown.State{})
	d.noteShutdown()
	expect("canceled", time.Time{})
}
