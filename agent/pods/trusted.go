package pods

import (
	"errors"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/kernel/process"
)

// trustKubelets remembers the kubelets that were found until they end. A pod that may
// do so can move one into its own cgroup: it is then no longer found, and must not be
// killed all the same. A kubelet is remembered if it was guardedKubeletAge old when the
// list was asked for that has it in no container: a younger process can be one of a
// container that was not listed yet.
func (i *Inventory) trustKubelets(asked, now time.Time) {
	trusted := i.running(i.trusted)
	uptime, err := process.Uptime()
	if err != nil || asked.IsZero() {
		i.trusted = trusted
		return
	}
	for _, k := range i.kubelets {
		age := uptime - now.Sub(asked) - time.Duration(k.Start)*clockTick
		if k.Start != 0 && age >= guardedKubeletAge && !slices.Contains(trusted, k) {
			trusted = append(trusted, k)
		}
	}
	i.trusted = trusted
}

// clockTick is the unit of start times in /proc/PID/stat, USER_HZ, which is 100 on all
// architectures that evictd is built for (include/asm-generic/param.h).
const clockTick = 10 * time.Millisecond

// running returns those of a list that have not ended.
func (i *Inventory) running(list []evict.KubeletProcess) []evict.KubeletProcess {
	return slices.DeleteFunc(slices.Clone(list), func(k evict.KubeletProcess) bool {
		stat, err := process.ReadStat(i.procfs, k.PID)
		if err != nil {
			return errors.Is(err, process.ErrGone) // what can't be read now may run on
		}
		return stat.StartTime != k.Start
	})
}

// TrustedKubelets returns the kubelets that stay guarded until they end, wherever they
// are moved to. The caller must not change the list.
func (i *Inventory) TrustedKubelets() []evict.KubeletProcess { return i.world.Load().trusted }

// RestoreKubelets has an Inventory that has listed nothing yet guard what
// [Inventory.TrustedKubelets] was in an earlier run of the same boot: a kubelet that
// was moved into a container's cgroup would not be found again.
func (i *Inventory) RestoreKubelets(list []evict.KubeletProcess) {
	if len(list) == 0 {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.trusted = i.running(list)
	i.world.Store(&world{guard: i.guard(nil, nil), trusted: i.trusted})
}

// guardedKubelets returns the kubelets that must live: those that are trusted, and those
// that were found.
func (i *Inventory) guardedKubelets() []evict.KubeletProcess {
	list := slices.Clone(i.trusted)
	for _, k := range i.kubelets {
		if !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	return list
}
