package agent

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/pods"
	"github.com/evictd/evictd/cri"
)

// No pod is evicted for a disk before a list that was requested since the disk was low.
func TestUnmeasuredWithoutAList(t *testing.T) {
	d := buildHere(t)
	since := time.Now()
	unmeasured := d.unmeasured()
	if got := unmeasured(since); got != "" {
		t.Errorf("without a runtime %q is missing; want nothing", got)
	}
	runtime, err := cri.Connect("unix://" + filepath.Join(t.TempDir(), "absent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close() })
	d.runtime = runtime
	if got := unmeasured(since); got != "a list of the pods" {
		t.Errorf("before any list %q is missing; want a list", got)
	}
	s := pods.Snapshot{LastAttempt: since.Add(-1)}
	d.diskUsage.Apply(&s, nil, since, d.reclaimer.ExclusiveImageBytes)
	if got := unmeasured(since); got != "a list of the pods" {
		t.Errorf("with an older list %q is missing; want a list", got)
	}
	s.LastAttempt = since
	d.diskUsage.Apply(&s, nil, since, d.reclaimer.ExclusiveImageBytes)
	if got := unmeasured(since); got != "" {
		t.Errorf("with a newer list %q is missing; want nothing", got)
	}
}
