package status

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/lanes"
	"github.com/evictd/evictd/agent/pods"
)

// TestKernelOOMKillsAreSummarized kills a hundred processes of a container per second.
// That must cause one log line and one record, one list per second, and one more
// log line for each summaryInterval.
func TestKernelOOMKillsAreSummarized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kills, every = 530, 10 * time.Millisecond
		var lines bytes.Buffer
		lists, saves, counted := 0, 0, 0
		victims := make(chan lanes.OOMVictim)
		k := &KernelOOMKills{
			Victims: victims, Records: &execute.Records{}, Warn: slog.New(slog.NewTextHandler(&lines, nil)).Warn,
			Snapshot: func() *pods.Snapshot {
				return &pods.Snapshot{
					Pods:    []evict.Pod{{UID: "a", Namespace: "default", Name: "a"}},
					Handles: map[string]pods.Handle{"a": {Containers: []evict.RunningContainer{{Name: "main", CgroupID: 5}}}},
				}
			},
			Count: func(bool) { counted++ }, Save: func() { saves++ }, List: func() { lists++ },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.Run(ctx)
		}()
		for i := range kills {
			victims <- lanes.OOMVictim{TGID: 1000 + i, Comm: "hog", Cgroup: 5}
			victims <- lanes.OOMVictim{TGID: 5000 + i, Comm: "other", Cgroup: uint64(100 + i)} // outside the containers
			if i == 0 {
				synctest.Wait()
				if n := strings.Count(lines.String(), "killed a process"); n != 2 || lists != 1 {
					t.Errorf("%d log lines and %d lists after the first kills; want 2 and 1", n, lists)
				}
			}
			time.Sleep(every)
		}
		took := kills * every
		time.Sleep(3 * summaryInterval)
		cancel()
		<-done
		if limit := int(took/pods.ListInterval) + 2; lists > limit {
			t.Errorf("%d lists were requested in %v; want at most %d", lists, took, limit)
		}
		out := lines.String()
		if n := strings.Count(out, "\n"); n != 4 || strings.Count(out, "processes=529") != 2 {
			t.Errorf("the log has %d lines; want the first kills and their summaries:\n%s", n, out)
		}
		if saves != 4 || counted != 2*kills {
			t.Errorf("saved %d times, counted %d; want 4 and %d", saves, counted, 2*kills)
		}
		if got := k.Records.List(); len(got) != 1 || got[0].Processes != kills || got[0].Pod != "default/a" {
			t.Errorf("records = %+v; want one of %d processes", got, kills)
		}
		if len(k.recent) != 0 {
			t.Errorf("%d containers are recent after the last report; want none", len(k.recent))
		}
	})
}

func TestPodOfCgroup(t *testing.T) {
	s := &pods.Snapshot{
		Pods: []evict.Pod{{UID: "a", Name: "a"}, {UID: "b", Name: "b"}},
		Handles: map[string]pods.Handle{
			"a": {Containers: []evict.RunningContainer{{CgroupID: 5}, {Unproven: "in a VM"}}},
			"b": {Containers: []evict.RunningContainer{{CgroupID: 7}}},
		},
	}
	for id, want := range map[uint64]string{5: "a", 7: "b", 6: "", 0: ""} {
		got := ""
		if pod, _ := podOfCgroup(s, id); pod != nil {
			got = pod.UID
		}
		if got != want {
			t.Errorf("podOfCgroup(%d) = %q; want %q", id, got, want)
		}
	}
}
