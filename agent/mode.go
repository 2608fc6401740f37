package agent

import (
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// mode says whether evictd acts, and every reason why it does not.
type mode struct {
	dryRun bool
	why    []string
	// apart are the reasons apart from that a kubelet owns the pods, which a
	// shutdown has a rule of its own for.
	apart []string
}

// facts are what the mode follows from.
type facts struct {
	configured string // why the configuration or a flag wants dry run; empty for not
	kubelet    string // the configuration's kubelet: auto, absent or override
	found      evict.Kubelet
	outdated   bool   // whose the pods are was told by another configuration
	misplaced  string // why evictd does not know where it is; empty where it does
}

// decideMode returns the mode: dry run where anything asks for it.
func decideMode(f facts) mode {
	var why []string
	add := func(reason string) {
		if reason != "" {
			why = append(why, reason)
		}
	}
	add(f.configured)
	add(f.misplaced)
	if f.outdated {
		add("the configuration of the kubelet has changed, and the pods have not been listed since")
	}
	if f.kubelet == "absent" && f.found.Process != "" {
		add("the configuration says that no kubelet runs here (kubelet: absent), but one does: " + f.found.Process)
	}
	apart := slices.Clip(why)
	if f.kubelet == "auto" && f.found.Pods {
		add("a kubelet owns pods of this node, and nothing here can tell it that a pod has failed (kubelet: auto)")
	}
	return mode{dryRun: len(why) > 0, why: why, apart: apart}
}

func (m mode) equal(other mode) bool {
	return m.dryRun == other.dryRun && slices.Equal(m.why, other.why)
}
