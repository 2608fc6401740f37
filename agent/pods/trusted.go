package pods

import (
	"errors"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/process"
)

// trustKubelets keeps the kubelets that were found until they end. A pod with the permission
// can move a kubelet into its own cgroup: it is then not found any more, and must still not
// be killed. A kubelet is trusted if it is in no container of a list, and was guardScanMaxAge
// old when that list was requested: a younger process may belong to a container that was not
// listed yet.
func (inv *Inventory) trustKubelets(requested, now time.Time) {
	trusted := inv.stillRunning(inv.trustedKubelets)
	uptime, err := process.Uptime()
	if err != nil || requested.IsZero() {
		inv.trustedKubelets = trusted
		return
	}
	for _, k := range inv.kubelets {
		age := uptime - now.Sub(requested) - time.Duration(k.Start)*clockTick
		if k.Start != 0 && age >= guardScanMaxAge && !slices.Contains(trusted, k) {
			trusted = append(trusted, k)
		}
	}
	inv.trustedKubelets = trusted
}

// clockTick is the unit of start times in /proc/PID/stat: USER_HZ, which is 100 on all
// architectures that evictd supports (include/asm-generic/param.h).
const clockTick = 10 * time.Millisecond

// stillRunning returns the kubelets of a list that have not ended.
func (inv *Inventory) stillRunning(list []evict.KubeletProcess) []evict.KubeletProcess {
	return slices.DeleteFunc(slices.Clone(list), func(k evict.KubeletProcess) bool {
		stat, err := process.ReadStat(inv.procfs, k.PID)
		if err != nil {
			return errors.Is(err, process.ErrGone) // an unreadable process may still run
		}
		return stat.StartTime != k.Start
	})
}

// TrustedKubelets returns the kubelets that are guarded until they end, whatever cgroup they
// are moved to. The caller must not change the list.
func (inv *Inventory) TrustedKubelets() []evict.KubeletProcess {
	return inv.current.Load().trustedKubelets
}

// RestoreKubelets guards the [Inventory.TrustedKubelets] of an earlier run in the same boot:
// a kubelet that was moved into a container's cgroup would not be found again. It must be
// called before the first list.
func (inv *Inventory) RestoreKubelets(list []evict.KubeletProcess) {
	if len(list) == 0 {
		return
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.trustedKubelets = inv.stillRunning(list)
	inv.current.Store(&listSnapshot{guard: inv.guard(nil, nil), trustedKubelets: inv.trustedKubelets})
}

// guardedKubelets returns the kubelets that must not be killed: the trusted ones, and those
// of the last scan.
func (inv *Inventory) guardedKubelets() []evict.KubeletProcess {
	list := slices.Clone(inv.trustedKubelets)
	for _, k := range inv.kubelets {
		if !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	return list
}
