package driver

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/logind"
)

// In a shutdown by logind, pods stop in the order of their groups, a pod that does
// not stop is killed when its time is up, and the node shuts down when the state is
// saved.
func TestShutdownByLogind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web(), critical())
		n.ignoresStop["dns"] = true
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(500 * time.Millisecond)
		n.expectCalls("at the beginning", "phase stopping", "stop web 20s")
		if s := n.State(); s.Phase != shutdown.Stopping || s.Manual {
			t.Errorf("state = %+v; want a shutdown by logind in progress", s)
		}
		time.Sleep(4 * time.Second)
		n.expectCalls("when web has stopped", "stop dns 29s")
		time.Sleep(30 * time.Second)
		n.expectCalls("when dns does not stop", "kill dns", "save", "done", "phase ended")
		if diff := cmp.Diff(map[string]string{"web": "logind: stopped", "dns": "logind: killed"}, n.results()); diff != "" {
			t.Errorf("records differ (-want +got):\n%s", diff)
		}
		n.events <- logind.Event{}
	})
}

// An operator can cancel an operator's shutdown, but not logind's.
func TestCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.ignoresStop["web"] = true
		stop := n.start()
		if err := n.Command(t.Context(), shutdown.Cancel); !errors.Is(err, errNothing) {
			t.Errorf("Command(Cancel) = %v; want %v", err, errNothing)
		}
		if err := n.Command(t.Context(), shutdown.Begin); err != nil {
			t.Fatalf("Command(Begin) = %v; want nil", err)
		}
		n.expectCalls("at the beginning", "phase stopping", "stop web 20s")
		if err := n.Command(t.Context(), shutdown.Cancel); err != nil {
			t.Errorf("Command(Cancel) = %v; want nil", err)
		}
		n.expectCalls("when it is canceled", "phase ")
		n.endPod("web")
		stop()
		if err := n.Command(t.Context(), shutdown.Begin); err == nil {
			t.Error("Command() of a driver that has ended = nil; want an error")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		synctest.Wait()
		if err := n.Command(t.Context(), shutdown.Cancel); !errors.Is(err, errLogind) {
			t.Errorf("Command(Cancel) = %v; want %v", err, errLogind)
		}
	})
}

// In dry run no pod is stopped, and the node shuts down.
func TestShutdownInDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.view.Mode = loop.Mode{DryRun: true, ReasonsExceptKubelet: []string{"--dry-run was given"}}
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(30 * time.Second)
		n.expectCalls("in dry run", "dry run: stop web", "save", "done", "phase ended")
	})
}

// A shutdown of an earlier run continues: a pod that the earlier run has asked to
// stop is asked again and keeps its record.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		earlier, orders := shutdown.Step(shutdown.State{}, shutdown.Inputs{Event: shutdown.Begin, Schedule: n.view.Config.ShutdownSchedule(), Pods: n.view.Snapshot.Pods}, time.Now())
		if len(orders.Stop) != 1 {
			t.Fatalf("orders of the earlier run = %+v; want web stopped", orders)
		}
		n.o.Execute.Records().Restore([]evict.Record{{UID: "web", Cause: evict.CauseShutdown, Lane: "logind", Result: evict.ResultPending}})
		n.Restore(earlier)
		defer n.start()()
		if err := n.Command(t.Context(), shutdown.Begin); !errors.Is(err, ErrNotYet) {
			t.Errorf("Command() before the shutdown is resumed = %v; want %v", err, ErrNotYet)
		}
		time.Sleep(30 * time.Second)
		n.expectCalls("when logind says nothing", "stop web 17s", "save", "done", "phase ended")
		if diff := cmp.Diff(map[string]string{"web": "logind: stopped"}, n.results()); diff != "" {
			t.Errorf("records differ (-want +got):\n%s", diff)
		}
	})
}

// The DelayLock is asked for the delay that the schedule needs, and for none in dry
// run.
func TestWantedDelay(t *testing.T) {
	for _, tt := range []struct {
		mode loop.Mode
		want time.Duration
	}{
		{loop.Mode{}, shutdown.Reserve + 30*time.Second},
		{loop.Mode{DryRun: true, ReasonsExceptKubelet: []string{"--dry-run was given"}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, configured, web())
			n.view.Mode = tt.mode
			defer n.start()()
			if len(n.wanted) != 1 || n.wanted[0] != tt.want {
				t.Errorf("%+v: delays wanted = %v; want %v", tt.mode, n.wanted, tt.want)
			}
		})
	}
}

// The state is saved when the records of gone pods are complete, also if a list
// shows the end before the actuator reports it.
func TestSavedWithLastRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.reportedLate["web"] = true
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(10 * time.Second)
		n.expectCalls("in all", "phase stopping", "stop web 20s", "end of web", "save", "done", "phase ended")
		if n.lists < 2 || n.requests != 3 {
			t.Errorf("%d lists and %d saves requested; want lists while the pod stops, and 3 saves: at the beginning, for the pod's order and for its end", n.lists, n.requests)
		}
	})
}

// A pod that is essential to the node is not stopped.
func TestEssentialPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, evict.Pod{UID: "self", Namespace: "default", Name: "self", HasStats: true, Essential: true})
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(time.Minute)
		n.expectCalls("in all", "save", "done", "phase ended")
	})
}

// The containers of a pod stop in the reverse order of their start.
func TestContainersInStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.view.Snapshot.Handles = map[string]pods.Handle{"web": {Containers: []evict.RunningContainer{{ID: "a", InitStart: 1}, {ID: "b", InitStart: 2}}}}
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		n.expectCalls("at the beginning", "phase stopping", "stop web 20s")
		if want := []act.StopStage{{IDs: []string{"b"}}, {IDs: []string{"a"}, StartBy: 10 * time.Second}}; !cmp.Equal(n.stages, want) {
			t.Errorf("stages = %+v; want %+v", n.stages, want)
		}
	})
}

// If dry run begins during a shutdown, no pod is killed.
func TestKillAfterReloadToDryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		n.ignoresStop["web"] = true
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		synctest.Wait()
		n.expectCalls("at the beginning", "phase stopping", "stop web 20s")
		n.mu.Lock()
		v := *n.view
		v.Mode = loop.Mode{DryRun: true, ReasonsExceptKubelet: []string{"the configuration says dryRun: true"}}
		n.view = &v
		n.mu.Unlock()
		time.Sleep(25 * time.Second)
		n.expectCalls("when its time is up", "dry run: kill web")
	})
}

// A resumed shutdown handles events that logind has sent since at once: an
// operator's shutdown becomes logind's.
func TestResumeTakenOverByLogind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured, web())
		earlier, _ := shutdown.Step(shutdown.State{}, shutdown.Inputs{Event: shutdown.Begin, Manual: true, Schedule: n.view.Config.ShutdownSchedule(), Pods: n.view.Snapshot.Pods}, time.Now())
		n.Restore(earlier)
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		defer n.start()()
		if n.State().Manual {
			t.Error("Manual = true; want false after logind's event")
		}
	})
}

// A disk that hangs delays the node's shutdown for a bounded time.
func TestSavingHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, configured)
		n.saveTime = time.Minute
		defer n.start()()
		n.events <- logind.Event{Preparing: true, Inhibited: true, Until: time.Now().Add(time.Minute)}
		time.Sleep(2 * time.Second)
		n.expectCalls("while the state is saved", "done", "phase ended")
		time.Sleep(time.Minute)
	})
}
