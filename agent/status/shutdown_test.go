package status

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
	"github.com/evictd/evictd/agent/shutdown/logind"
)

// TestShutdownCounts checks the counts of a shutdown's pods. A pod that dry run did
// not stop does not count as stopped.
func TestShutdownCounts(t *testing.T) {
	delayLock := logind.NewDelayLock(logind.Options{})
	stops := driver.New(driver.Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), DelayLock: delayLock})
	b := New(Options{DelayLock: delayLock, Shutdown: stops, View: func() *loop.View { return &loop.View{Config: &config.Config{}} }})
	state := shutdown.State{Phase: shutdown.Ended, Schedule: shutdown.Schedule{{}}}
	for _, status := range []shutdown.Status{shutdown.Gone, shutdown.Gone, shutdown.Gone, shutdown.Killed, shutdown.Asked, shutdown.StoppedInDryRun} {
		state.Pods = append(state.Pods, shutdown.PodState{Status: status})
	}
	stops.Restore(state)
	if s := b.Shutdown(); s.Stopped != 3 || s.Running != 2 || s.WouldStop != 1 {
		t.Errorf("Shutdown() = %d stopped, %d running, %d that would be stopped; want 3, 2, 1", s.Stopped, s.Running, s.WouldStop)
	}
}

// TestGroupsPlanned checks the groups and grace periods of the pods if no pod stops
// early.
func TestGroupsPlanned(t *testing.T) {
	priority, own := int32(2_000_000_000), int64(7)
	v := &loop.View{Time: time.Unix(1000, 0), Snapshot: pods.Snapshot{Pods: []evict.Pod{
		evict.Pod{UID: "w", Namespace: "default", Name: "web"},
		evict.Pod{UID: "q", Namespace: "default", Name: "quick", TerminationGraceSeconds: &own},
		evict.Pod{UID: "l", Namespace: "default", Name: "log", DaemonSet: true},
		evict.Pod{UID: "d", Namespace: "kube-system", Name: "dns", Priority: &priority},
		evict.Pod{UID: "e", Namespace: "default", Name: "evictd", Essential: true},
	}}}
	schedule := shutdown.Schedule{{Time: 20 * time.Second}, {Priority: 2_000_000_000, Time: 10 * time.Second}}
	var got []string
	for _, g := range groupsPlanned(v, schedule) {
		for _, p := range g.Pods {
			got = append(got, strings.Join([]string{p.Pod, p.Status, time.Duration(p.GraceSeconds * float64(time.Second)).String()}, " "))
		}
	}
	want := []string{"default/quick planned 7s", "default/web planned 20s", "default/log planned 10s", "kube-system/dns planned 10s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("groupsPlanned() differs (-want +got):\n%s", diff)
	}
}
