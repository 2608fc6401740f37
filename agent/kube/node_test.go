package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// nodeUnderTest is a Node with a session.
type nodeUnderTest struct {
	*Node
	log buffer
	box *outbox
}

func newNode(uptime time.Duration) *nodeUnderTest {
	u := &nodeUnderTest{box: newOutbox()}
	u.Node = NewNode(NodeOptions{Uptime: uptime, Log: slog.New(slog.NewTextHandler(&u.log, nil))})
	u.attach(u.box)
	return u
}

// sent sends what waits in the session. It returns the last state, and how many there were.
func (u *nodeUnderTest) sent() (state *NodeState, n int) {
	for {
		next, _ := u.box.take()
		if len(next) == 0 {
			return state, n
		}
		for _, m := range next {
			if m.key == nodeKey {
				state, n = u.take(), n+1
			}
		}
	}
}

// text returns the conditions of a state: + for true and - for false, without Evictd and Pressure.
func (s *NodeState) text() string {
	if s == nil {
		return "nothing"
	}
	var list []string
	for _, c := range s.Conditions {
		name := strings.TrimSuffix(strings.TrimPrefix(c.Type, "Evictd"), "Pressure")
		list = append(list, map[bool]string{true: "+", false: "-"}[c.Status]+name)
	}
	if s.Stopped {
		list = append(list, "stopped")
	}
	return strings.Join(list, " ")
}

const noPressure = "-Memory -Disk -PID -NodeShutdown"

// A state is sent when the conditions change, and only then. Two changes that evictd-kube has not
// read yet are one.
func TestNodeStates(t *testing.T) {
	memory := []signal.Condition{signal.MemoryPressure}
	all := []signal.Condition{signal.DiskPressure, signal.KubepodsMemoryContentionPressure, signal.MemoryPressure, signal.PIDPressure}
	u := newNode(time.Second)
	number := uint64(time.Second / time.Microsecond)
	for _, tt := range []struct {
		name string
		do   func(now time.Time)
		want string
	}{
		{"shutdown, before the first decision", func(now time.Time) { u.SetShutdown(true, now); u.SetShutdown(false, now) }, "nothing"},
		{"first decision", func(now time.Time) { u.Set(memory, false, now) }, "+Memory -Disk -PID -NodeShutdown"},
		{"no change", func(now time.Time) { u.Set(memory, false, now) }, "nothing"},
		{"a contention", func(now time.Time) { u.Set(append(memory, signal.SystemMemoryContentionPressure), false, now) }, "nothing"},
		{"all", func(now time.Time) { u.Set(all, false, now) }, "+Memory +Disk +PID -NodeShutdown"},
		{"two changes", func(now time.Time) { u.Set(memory, false, now); u.Set(nil, false, now) }, noPressure},
		{"shutdown", func(now time.Time) { u.SetShutdown(true, now) }, "-Memory -Disk -PID +NodeShutdown"},
		{"dry run", func(now time.Time) { u.Set(all, true, now) }, ""},
		{"dry run, canceled", func(now time.Time) { u.SetShutdown(false, now) }, "nothing"},
		{"dry run, other conditions", func(now time.Time) { u.Set(nil, true, now) }, "nothing"},
		{"enforcing", func(now time.Time) { u.Set(nil, false, now) }, noPressure},
	} {
		before := number
		tt.do(time.Now())
		s, n := u.sent()
		if s.text() != tt.want || n > 1 {
			t.Errorf("%s: sent %d times, last %q; want %q", tt.name, n, s.text(), tt.want)
		}
		if s == nil {
			continue
		}
		if number = s.Number; number <= before {
			t.Errorf("%s: number %d after %d", tt.name, number, before)
		}
		if err := s.check(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// Since is when a status has changed, whatever else did.
func TestNodeSince(t *testing.T) {
	u := newNode(0)
	start := time.Now()
	at := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	u.Set(nil, false, at(1))
	u.Set([]signal.Condition{signal.MemoryPressure}, false, at(2))
	u.Set([]signal.Condition{signal.MemoryPressure, signal.DiskPressure}, false, at(3))
	s, _ := u.sent()
	want := map[string]int{"EvictdMemoryPressure": 2, "EvictdDiskPressure": 3, "EvictdPIDPressure": 1, "EvictdNodeShutdown": 1}
	for _, c := range s.Conditions {
		if !c.Since.Equal(at(want[c.Type])) || c.Since.Location() != time.UTC {
			t.Errorf("%s since %v; want %v", c.Type, c.Since, at(want[c.Type]).UTC())
		}
	}
}

// An evictd that starts later in the same boot has higher numbers, whatever the wall clock says.
func TestNodeNumbers(t *testing.T) {
	first := newNode(time.Minute)
	for i := range 1000 {
		first.Set([]signal.Condition{signal.MemoryPressure}[:i%2], false, time.Now())
	}
	last, _ := first.sent()
	second := newNode(time.Minute + time.Second)
	second.Set(nil, false, time.Now().Add(-time.Hour))
	if s, _ := second.sent(); s.Number <= last.Number {
		t.Errorf("number %d after a restart; want more than %d", s.Number, last.Number)
	}
}

// A step without a change costs the decision loop no allocation.
func TestNodeSetAllocatesNothing(t *testing.T) {
	u := newNode(0)
	conditions, now := []signal.Condition{signal.MemoryPressure, signal.PIDPressure}, time.Now()
	u.Set(conditions, false, now)
	if n := testing.AllocsPerRun(100, func() { u.Set(conditions, false, now) }); n != 0 {
		t.Errorf("%v allocations; want 0", n)
	}
}

// The status follows the reports about states that were sent.
func TestNodeReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newNode(time.Second)
		began := time.Now()
		set := func(conditions ...signal.Condition) uint64 {
			u.Set(conditions, false, time.Now())
			s, _ := u.sent()
			return s.Number
		}
		want := func(when, written string, unwritten time.Time, why string, unknown uint64) {
			t.Helper()
			s := u.Status()
			got := (&NodeState{Conditions: s.Written}).text()
			if got != written || s.Reported != (written != "") || !s.Unwritten.Equal(unwritten) || s.Why != why || s.Unknown != unknown {
				t.Errorf("%s: written %q, unwritten since %v, %q, %d unknown; want %q, %v, %q, %d", when, got, s.Unwritten, s.Why, s.Unknown, written, unwritten, why, unknown)
			}
		}
		if s := u.Status(); s.Decided {
			t.Errorf("status before the first decision: %+v", s)
		}
		first := set()
		want("sent", "", began, "", 0)
		u.report(&NodeReport{Number: first + 1}, time.Now())
		u.report(&NodeReport{Number: first - 1}, time.Now())
		want("reports about states that were not sent", "", began, "", 2)
		u.report(&NodeReport{Why: "no right"}, time.Now())
		want("not written", "", began, "no right", 2)
		u.report(&NodeReport{Why: "no right"}, time.Now())
		time.Sleep(time.Second)
		u.report(&NodeReport{Number: first}, time.Now())
		want("written", noPressure, time.Time{}, "", 2)
		if log := u.log.String(); strings.Count(log, "are not written") != 1 || strings.Count(log, "are written\" after_ms=1000") != 1 {
			t.Errorf("log:\n%s\nwant one line each", log)
		}

		changed := time.Now()
		second := set(signal.MemoryPressure)
		want("changed", noPressure, changed, "", 2)
		time.Sleep(time.Second)
		changed = time.Now()
		third := set(signal.DiskPressure)
		u.report(&NodeReport{Number: second, Why: "slow"}, time.Now())
		want("an older one", "+Memory -Disk -PID -NodeShutdown", changed, "slow", 2)
		u.report(&NodeReport{Number: third}, time.Now())
		u.report(&NodeReport{Number: third, Why: "heartbeat"}, time.Now())
		want("the newest, and a heartbeat fails", "-Memory +Disk -PID -NodeShutdown", time.Now(), "heartbeat", 2)
		failing := time.Now()
		time.Sleep(time.Second)
		u.report(&NodeReport{Why: "taint"}, time.Now())
		u.report(&NodeReport{Number: second}, time.Now())
		want("one before it", "-Memory +Disk -PID -NodeShutdown", failing, "taint", 3)
		u.report(&NodeReport{Number: third}, time.Now())
		want("written again", "-Memory +Disk -PID -NodeShutdown", time.Time{}, "", 3)
		for i := range 10 * maxSent {
			set([]signal.Condition{signal.MemoryPressure}[:i%2]...)
		}
		if len(u.Node.sent) != maxSent {
			t.Errorf("%d states are remembered; want %d", len(u.Node.sent), maxSent)
		}
		u.report(&NodeReport{Number: third + 1, Why: "far behind"}, time.Now())
		if s := u.Status(); s.Why != "far behind" || s.Unknown != 3 {
			t.Errorf("why %q, %d unknown after a report about a state that is not remembered; want its reason", s.Why, s.Unknown)
		}
	})
}

// Before the first session of a run in dry run there is nothing to write, unless evictd-kube has found
// what an earlier run has left.
func TestNodeInDryRun(t *testing.T) {
	u := newNode(0)
	u.Set([]signal.Condition{signal.MemoryPressure}, true, time.Now())
	if s, _ := u.sent(); s == nil || len(s.Conditions) != 0 {
		t.Errorf("sent %+v; want a state without conditions", s)
	}
	if s := u.Status(); !s.Unwritten.IsZero() || u.log.String() != "" {
		t.Errorf("unwritten since %v, log %q; want neither", s.Unwritten, u.log.String())
	}
	at := time.Now()
	u.report(&NodeReport{Why: "no right"}, at)
	if s := u.Status(); !s.Unwritten.Equal(at) || !strings.Contains(u.log.String(), "no right") {
		t.Errorf("unwritten since %v, log %q; want %v and the reason", s.Unwritten, u.log.String(), at)
	}
	u.report(&NodeReport{Number: u.Status().Number}, time.Now())
	if s := u.Status(); !s.Unwritten.IsZero() {
		t.Errorf("unwritten since %v after it was written", s.Unwritten)
	}
}

// The state is sent again every minute while evictd measures.
func TestNodeStateIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newNode(0)
		go u.repeatUntil(t.Context(), u.box)
		time.Sleep(2 * repeatInterval)
		if s, _ := u.sent(); s != nil {
			t.Errorf("sent %q before the first decision", s.text())
		}
		u.Set(nil, false, time.Now())
		first, _ := u.sent()
		for range 30 {
			time.Sleep(10 * time.Second)
			u.Set(nil, false, time.Now())
			if s, n := u.sent(); n > 0 && s.Number != first.Number {
				t.Errorf("sent %d times, state %d; want that of number %d", n, s.Number, first.Number)
			}
		}
		time.Sleep(repeatInterval + time.Second)
		u.Set(nil, false, time.Now())
		u.sent()
		time.Sleep(measuredLimit - time.Second)
		if _, n := u.sent(); n > 1 {
			t.Errorf("sent %d times; want once a minute", n)
		}
		time.Sleep(time.Hour) // the loop hangs
		if _, n := u.sent(); n > 1 {
			t.Errorf("sent %d times by an evictd that does not measure", n)
		}
	})
}

// A clean stop sends a state without conditions, and waits until it is written, but not forever,
// and not if nothing was ever maintained.
func TestNodeStop(t *testing.T) {
	const timeout = 5 * time.Second
	set := func(u *nodeUnderTest) {
		u.Set([]signal.Condition{signal.MemoryPressure}, false, time.Now())
		s, _ := u.sent()
		u.report(&NodeReport{Number: s.Number}, time.Now())
	}
	for _, tt := range []struct {
		name   string
		before func(*nodeUnderTest)
		answer time.Duration // 0 for none
		want   string
		took   time.Duration
	}{
		{"written", set, time.Second, "stopped", time.Second},
		{"no answer", set, 0, "stopped", timeout},
		{"dry run", func(u *nodeUnderTest) { u.Set(nil, true, time.Now()); u.sent() }, 0, "nothing", 0},
		{"before the first decision", func(*nodeUnderTest) {}, 0, "stopped", 0},
		{"refused", func(u *nodeUnderTest) {
			set(u)
			go func() {
				time.Sleep(time.Second)
				u.report(&NodeReport{Why: "no right", Refused: true}, time.Now())
			}()
		}, 0, "stopped", time.Second},
		{"the node shuts down", func(u *nodeUnderTest) { set(u); u.SetShutdown(true, time.Now()) }, time.Second, "+NodeShutdown stopped", time.Second},
		{"not sent", func(u *nodeUnderTest) {
			u.detach(u.box)
			u.Set([]signal.Condition{signal.MemoryPressure}, false, time.Now())
			u.attach(u.box)
			u.box.take()
		}, 0, "stopped", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := newNode(0)
				tt.before(u)
				began, done := time.Now(), make(chan time.Duration)
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), timeout)
					defer cancel()
					u.Stop(ctx)
					done <- time.Since(began)
				}()
				synctest.Wait()
				for next, _ := u.box.take(); len(next) > 0; next, _ = u.box.take() {
					got := "nothing"
					for _, m := range next {
						if m.key == nodeKey {
							got = u.take().text()
						}
						if m.written != nil {
							close(m.written)
						}
					}
					if got != tt.want {
						t.Errorf("sent %q; want %q", got, tt.want)
					}
				}
				u.Set([]signal.Condition{signal.DiskPressure}, false, time.Now()) // a last step
				if s, _ := u.sent(); s != nil {
					t.Errorf("sent %q after the stop; want nothing", s.text())
				}
				if tt.answer > 0 {
					time.Sleep(tt.answer)
					u.report(&NodeReport{Number: u.Status().Number}, time.Now())
				}
				go func() { // the session writes on
					for {
						next, _ := u.box.take()
						for _, m := range next {
							if m.written != nil {
								close(m.written)
							}
						}
						if sleep(t.Context(), time.Millisecond); t.Context().Err() != nil {
							return
						}
					}
				}()
				if took := (<-done).Truncate(10 * time.Millisecond); took != tt.took {
					t.Errorf("took %v; want %v", took, tt.took)
				}
			})
		})
	}
}

// An evictd that stops in a shutdown before it knows whether it is in dry run leaves the Node as it is.
func TestNodeStopInShutdownBeforeDecision(t *testing.T) {
	u := newNode(0)
	u.SetShutdown(true, time.Now())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	u.detach(u.box)
	u.Stop(ended)
	u.attach(u.box)
	if s, _ := u.sent(); s != nil {
		t.Errorf("sent %q; want nothing", s.text())
	}
}

func TestTaintFor(t *testing.T) {
	for cause, want := range map[string]string{
		"memory.available": "evictd.io/memory-pressure", "allocatableMemory.available": "evictd.io/memory-pressure",
		"nodefs.available": "evictd.io/disk-pressure", "imagefs.inodesFree": "evictd.io/disk-pressure", "containerfs.available": "evictd.io/disk-pressure",
		"pid.available": "evictd.io/pid-pressure", evict.CauseShutdown: "evictd.io/node-shutdown",
		evict.CauseEmptyDirLimit: "", evict.CausePodLimit: "", evict.CauseContainerLimit: "", evict.CauseKernelOOM: "", "": "",
		string(signal.KubepodsMemoryContentionPressure): "",
	} {
		if got := TaintFor(cause); got != want {
			t.Errorf("TaintFor(%q) = %q; want %q", cause, got, want)
		}
	}
	for _, s := range signal.All() {
		if TaintFor(s.String()) == "" {
			t.Errorf("no taint for %s", s)
		}
	}
	var types []string
	for _, m := range Maintained {
		types = append(types, m.Type)
	}
	if slices.Sort(types); !slices.Equal(types, slices.Sorted(maps.Keys(NodeConditions))) {
		t.Errorf("conditions %q; want those of NodeConditions", types)
	}
}

// Only a taint of evictd's is in an order.
func TestOrderTaint(t *testing.T) {
	for taint, ok := range map[string]bool{"": true, "evictd.io/disk-pressure": true, "node.kubernetes.io/memory-pressure": false, "x": false} {
		e := eviction("u", "")
		e.Taint = taint
		order, err := e.order(testTime)
		if (err == nil) != ok || ok && order.Taint != taint {
			t.Errorf("order with the taint %q = %+v, %v; want ok = %v", taint, order, err, ok)
		}
	}
}

func TestNodeStateCheck(t *testing.T) {
	condition := func(name string) NodeCondition { return NodeCondition{Type: name} }
	for _, tt := range []struct {
		s  NodeState
		ok bool
	}{
		{NodeState{Number: 1}, true},
		{NodeState{Number: 1, Conditions: []NodeCondition{condition("EvictdPIDPressure"), condition("EvictdNodeShutdown")}}, true},
		{NodeState{}, false},
		{NodeState{Number: 1, Conditions: []NodeCondition{condition("EvictdPIDPressure"), condition("EvictdPIDPressure")}}, false},
		{NodeState{Number: 1, Conditions: []NodeCondition{condition("MemoryPressure")}}, false},
	} {
		if err := tt.s.check(); (err == nil) != tt.ok {
			t.Errorf("check() of %s = %v; want ok = %v", fmt.Sprint(tt.s), err, tt.ok)
		}
	}
}
