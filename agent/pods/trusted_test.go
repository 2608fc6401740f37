package pods

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/cri/critest"
	"github.com/evictd/evictd/kernel/kerneltest"
	"github.com/evictd/evictd/kernel/process"
)

// setAge sets how long ago a process was started.
func (n *node) setAge(pid int, age time.Duration) {
	n.t.Helper()
	uptime, err := process.Uptime()
	if err != nil {
		n.t.Fatal(err)
	}
	kerneltest.Write(n.t, n.proc, map[string]string{
		fmt.Sprintf("%d/stat", pid): fmt.Sprintf("%d (kubelet) S 1 1 1 0 -1 4194560 1 0 0 0 1 1 0 0 20 0 1 0 %d 1 1 18446744073709551615\n", pid, (uptime-age)/clockTick),
	})
}

// A kubelet that was moved into a pod's cgroup stays guarded until it ends, also after a
// restart of evictd.
func TestMovedKubeletStaysGuarded(t *testing.T) {
	const old = guardScanMaxAge + time.Second
	for _, tt := range []struct {
		name  string
		age   time.Duration
		moved bool // before evictd starts for the first time
		want  bool
	}{
		{"found", old, false, true},
		{"found soon after its start", time.Second, false, false},
		{"never found", old, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, false)
			p := n.addPod(critest.Pod{Containers: []critest.Container{{PID: 100}}})
			n.process(70, 1, "kubelet")
			n.setAge(70, tt.age)
			move := func() { n.setCgroup(70, n.path(p, p.Containers[0])) }
			guarded := func(i *Inventory, want bool) {
				t.Helper()
				if what := i.Guard().Protected[70]; strings.Contains(what, "kubelet") != want {
					t.Errorf("Protected[70] = %q; want a kubelet: %t", what, want)
				}
			}
			if tt.moved {
				move()
			}
			i := n.synced()
			guarded(i, !tt.moved)
			move()
			sync := func(i *Inventory) {
				t.Helper()
				if err := i.Sync(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			sync(i)
			guarded(i, tt.want)

			next := n.inventory()
			next.RestoreKubelets(i.TrustedKubelets())
			guarded(next, tt.want) // before the first list
			sync(next)
			guarded(next, tt.want)
			sync(next)
			guarded(next, tt.want)

			n.setAge(70, tt.age-time.Second) // another process with the pid
			last := n.inventory()
			last.RestoreKubelets(next.TrustedKubelets())
			sync(last)
			sync(next)
			guarded(last, false)
			guarded(next, false)
		})
	}
}
