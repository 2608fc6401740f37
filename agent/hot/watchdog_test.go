package hot

import (
	"context"
	"slices"
	"testing"
	"time"
)

func TestConditionDue(t *testing.T) {
	met := condition{sinceIteration: 2 * time.Second, sinceTick: 100 * time.Millisecond, below: true, sinceAct: -1, settleTimeout: time.Second}
	for _, tc := range []struct {
		name   string
		change func(c *condition)
		want   bool
	}{
		{"all conditions", func(*condition) {}, true},
		{"loop works", func(c *condition) { c.sinceIteration = 1900 * time.Millisecond }, false},
		{"process stopped, until SIGCONT", func(c *condition) { c.sinceTick = 300 * time.Millisecond }, false},
		{"above the threshold", func(c *condition) { c.below = false }, false},
		{"victim in flight", func(c *condition) { c.unsettled = true }, false},
		{"last alarm too recent", func(c *condition) { c.sinceAct = 900 * time.Millisecond }, false},
		{"last alarm long enough ago", func(c *condition) { c.sinceAct = time.Second }, true},
	} {
		c := met
		tc.change(&c)
		if got := c.due(); got != tc.want {
			t.Errorf("%s: due() = %t; want %t", tc.name, got, tc.want)
		}
	}
}

// newWatchdog makes a watchdog next to a thread, for a loop with its last iteration at lastIteration.
func (s *fixture) newWatchdog(th *Thread, lastIteration *time.Time) *Watchdog {
	s.t.Helper()
	w, err := NewWatchdog(th, Options{Arbiter: s.arbiter, Reader: s.reader, Killer: s.killer, DryRunKiller: s.dryRunKiller},
		func() time.Time { return *lastIteration }, func() time.Duration { return time.Second })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { w.Close() })
	return w
}

func TestWatchdog(t *testing.T) {
	for _, threadWorks := range []bool{false, true} {
		s := newFixture(t, 500, 300)
		s.reader.available = 900 * mi
		th := s.newThread()
		th.Publish(s.table(0, time.Now()))
		if threadWorks {
			runThread(t, th)
		}
		start := time.Now()
		w := s.newWatchdog(th, &start)
		w.Publish(s.table(0, time.Now()))
		killedAt := func(at time.Duration, want ...string) {
			t.Helper()
			w.tick(start.Add(at))
			if uids, _ := s.takeKills(); !slices.Equal(uids, want) {
				t.Errorf("thread works: %t: after %v killed %q; want %q", threadWorks, at, uids, want)
			}
		}
		killedAt(1800 * time.Millisecond)
		killedAt(1900 * time.Millisecond)
		killedAt(5 * time.Second) // the whole process was stopped
		killedAt(5100*time.Millisecond, "p0")
		killedAt(5200 * time.Millisecond)
		start = start.Add(5300 * time.Millisecond) // the loop works again
		killedAt(0)
		want := uint64(0)
		if threadWorks {
			want = 1
		}
		if got := th.Count(Killed); got != want {
			t.Errorf("thread works: %t: the thread killed %d times; want %d", threadWorks, got, want)
		}
	}
}

// A thread that was late once has an outdated table from the watchdog's kill on. The
// watchdog kills although that thread processes its alarms.
func TestWatchdogKillsAfterALateThread(t *testing.T) {
	s := newFixture(t, 500, 400, 300, 200)
	s.reader.available = 900 * mi
	th := s.newThread()
	th.Publish(s.table(0, time.Now()))
	lastIteration := time.Now().Add(-time.Minute)
	w := s.newWatchdog(th, &lastIteration)
	w.settleTimeout = func() time.Duration { return 50 * time.Millisecond }
	s.in.Policy.SettleTimeout = 300 * time.Millisecond
	w.Publish(s.table(0, time.Now()))
	for n := range 3 {
		if n == 1 {
			runThread(t, th)
		}
		for deadline := time.Now().Add(10 * time.Second); s.killer.n <= n; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("killed %q; want %d", s.killer.names(), n+1)
			}
			w.tick(time.Now())
		}
		s.pods[n].uses(0)
	}
	if want := []string{"p0", "p1", "p2"}; !slices.Equal(s.killer.names(), want) {
		t.Errorf("killed %q; want %q", s.killer.names(), want)
	}
}

// While the loop does not work, the watchdog kills as many pods as are needed. The handles
// of its victims show how much memory they still have. While a victim is expected to free
// enough, no other pod is killed.
func TestWatchdogKillsInSequence(t *testing.T) {
	for _, threadWorks := range []bool{false, true} {
		s := newFixture(t, 500, 400, 300, 200)
		s.reader.available = 900 * mi
		th := s.newThread()
		th.Publish(s.table(0, time.Now()))
		if threadWorks {
			runThread(t, th)
		}
		// The thread uses the real time, so the loop's last iteration is in the past.
		lastIteration := time.Now().Add(-time.Minute)
		w := s.newWatchdog(th, &lastIteration)
		w.settleTimeout = func() time.Duration { return 50 * time.Millisecond }
		s.in.Policy.SettleTimeout = 300 * time.Millisecond
		w.Publish(s.table(0, time.Now()))
		th.Publish(s.table(0, time.Now()))
		// until ticks until n pods have been killed.
		until := func(n int) {
			t.Helper()
			for deadline := time.Now().Add(10 * time.Second); s.killer.n < n; {
				if time.Now().After(deadline) {
					t.Fatalf("thread works: %t: killed %q; want %d", threadWorks, s.killer.names(), n)
				}
				w.tick(time.Now())
				time.Sleep(5 * time.Millisecond)
			}
		}
		until(1)
		for i := range 3 {
			s.pods[i].uses(0)
			until(i + 2)
		}
		if want := []string{"p0", "p1", "p2", "p3"}; !slices.Equal(s.killer.names(), want) {
			t.Errorf("thread works: %t: killed %q; want %q", threadWorks, s.killer.names(), want)
		}
	}
}

// The next pod is killed only after a victim has freed its memory.
func TestWatchdogWaitsForVictim(t *testing.T) {
	s := newFixture(t, 500, 400)
	s.reader.available = 900 * mi
	th := s.newThread()
	start := time.Now()
	w := s.newWatchdog(th, &start)
	w.Publish(s.table(0, time.Now()))
	for at := 1800 * time.Millisecond; at < 3*time.Second; at += tickInterval {
		w.tick(start.Add(at))
	}
	if got := s.killer.names(); !slices.Equal(got, []string{"p0"}) {
		t.Errorf("killed %q; want p0 alone", got)
	}
	s.pods[0].uses(50 * mi)
	w.tick(start.Add(3100 * time.Millisecond))
	if got := s.killer.names(); !slices.Equal(got, []string{"p0", "p1"}) {
		t.Errorf("after most of the memory is free, killed %q; want p0 and p1", got)
	}
}

func TestWatchdogRun(t *testing.T) {
	s := newFixture(t, 500)
	s.reader.available = 900 * mi
	th := s.newThread()
	runThread(t, th)
	th.Publish(s.table(0, time.Now()))
	lastIteration := time.Now().Add(-time.Minute)
	w := s.newWatchdog(th, &lastIteration)
	w.Publish(s.table(0, time.Now()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	if r := s.nextAlarm(); r.Lane != WatchdogLane {
		t.Errorf("alarm of %q; want the watchdog's", r.Lane)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v; want no error", err)
	}
}
