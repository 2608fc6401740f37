package pods

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri"
	"github.com/evictd/evictd/cri/critest"
)

// A pod whose containers have exited is listed until the kubelet stops its sandbox.
func TestRunning(t *testing.T) {
	n := newNode(t, true)
	newest := time.Unix(1_700_000_100, 5)
	add := func(uid string, pid int, state cri.State) string {
		p := n.addPod(critest.Pod{
			Name: "web-" + uid, UID: uid, Namespace: "default", Annotations: map[string]string{evict.ConfigSourceAnnotation: "api"}, CgroupParent: "/kubepods/besteffort/pod" + uid,
			Containers: []critest.Container{
				{Name: "main", PID: pid, State: state, Created: newest},
				{Name: "first", PID: pid + 1, State: state, Created: newest.Add(-time.Hour)},
			},
		})
		return p.ID
	}
	runs, exited := add("runs", 100, cri.StateRunning), add("exited", 102, cri.StateExited)
	unlisted := n.inventory()
	if got := unlisted.Running("runs"); got.Known || got.Sandboxes != nil || got.Containers != 0 {
		t.Errorf("before the list: %+v; want nothing known", got)
	}
	i := n.synced()
	for _, tt := range []struct {
		uid  string
		want Running
	}{
		{"runs", Running{Known: true, Sandboxes: []string{runs}, Containers: 2, LastStart: newest.UnixNano()}},
		{"exited", Running{Known: true, Sandboxes: []string{exited}}},
		{"other", Running{Known: true}},
	} {
		got := i.Running(tt.uid)
		if got.Known != tt.want.Known || !slices.Equal(got.Sandboxes, tt.want.Sandboxes) || got.Containers != tt.want.Containers || got.LastStart != tt.want.LastStart {
			t.Errorf("Running(%s) = %+v; want %+v", tt.uid, got, tt.want)
		}
	}
}
