package agent

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
)

// The kernel names each process that it takes: those of one pod in a row make one
// record.
func TestKernelKillsOfAPodAreOneRecord(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &records{}
	r.add(evict.Record{UID: "a", Result: evict.ResultKilled, Decided: start})
	for _, k := range []struct {
		uid string
		at  time.Duration
	}{{"a", 0}, {"a", time.Second}, {"b", 2 * time.Second}, {"a", 9 * time.Second}, {"a", oneKernelKill}, {"a", oneKernelKill + time.Second}} {
		r.kernelKilled(evict.Record{UID: k.uid, Result: evict.ResultKernel, Decided: start.Add(k.at), Processes: 1}, oneKernelKill)
	}
	type shown struct {
		uid, result string
		processes   int
	}
	want := []shown{{"a", evict.ResultKilled, 0}, {"a", evict.ResultKernel, 3}, {"b", evict.ResultKernel, 1}, {"a", evict.ResultKernel, 2}}
	got := r.snapshot()
	if len(got) != len(want) {
		t.Fatalf("%d records; want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		if g := (shown{got[i].UID, got[i].Result, got[i].Processes}); g != want[i] {
			t.Errorf("record %d = %+v; want %+v", i, g, want[i])
		}
	}
}

func TestPodOfCgroup(t *testing.T) {
	s := &pods.Snapshot{
		Pods: []evict.Pod{{UID: "a", Name: "a"}, {UID: "b", Name: "b"}},
		Handles: map[string]pods.Handle{
			"a": {Containers: []pods.ContainerHandle{{CgroupID: 5}, {Unproven: "in a VM"}}},
			"b": {Containers: []pods.ContainerHandle{{CgroupID: 7}}},
		},
	}
	for id, want := range map[uint64]string{5: "a", 7: "b", 6: "", 0: ""} {
		got := ""
		if pod := podOfCgroup(s, id); pod != nil {
			got = pod.UID
		}
		if got != want {
			t.Errorf("podOfCgroup(%d) = %q; want %q", id, got, want)
		}
	}
}
