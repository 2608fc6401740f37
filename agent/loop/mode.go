package loop

import (
	"slices"

	"github.com/evictd/evictd/agent/evict"
)

// Mode is whether evictd is in dry run, and why.
type Mode struct {
	DryRun  bool
	Reasons []string // every reason for dry run
	// ReasonsExceptKubelet are the reasons except that a kubelet owns the pods, for which a shutdown has
	// a rule of its own.
	ReasonsExceptKubelet []string
	// Reporting is set if evictd enforces next to a kubelet (kubelet: auto) because evictd-kube
	// reports evictions of its pods to the API server.
	Reporting bool
}

// Facts are what the mode depends on.
type Facts struct {
	Configured            string // why the configuration or a flag asks for dry run; empty if neither does
	Kubelet               string // the configuration's kubelet: auto, absent or override
	KubeletFound          evict.Kubelet
	KubeletSettingChanged bool   // KubeletFound was determined under another value of Kubelet
	Misplaced             string // why evictd does not find itself on the host; empty if it does
	// CannotReport is why no program reports evictions of a kubelet's pods to the API server;
	// empty if evictd-kube does, or did when it was last connected.
	CannotReport string
}

// decideMode returns the mode: dry run if there is any reason for it.
func decideMode(f Facts) Mode {
	var why []string
	add := func(reason string) {
		if reason != "" {
			why = append(why, reason)
		}
	}
	add(f.Configured)
	add(f.Misplaced)
	if f.KubeletSettingChanged {
		add("the configuration of the kubelet has changed, and the pods have not been listed since")
	}
	if f.Kubelet == "absent" && f.KubeletFound.Process != "" {
		add("the configuration says that no kubelet runs here (kubelet: absent), but one does: " + f.KubeletFound.Process)
	}
	exceptKubelet := slices.Clip(why)
	besideKubelet := f.Kubelet == "auto" && f.KubeletFound.HasSandboxes
	if besideKubelet && f.CannotReport != "" {
		add("a kubelet owns pods of this node, and nothing here can tell it that a pod has failed (kubelet: auto): " + f.CannotReport)
	}
	return Mode{DryRun: len(why) > 0, Reasons: why, ReasonsExceptKubelet: exceptKubelet, Reporting: besideKubelet && len(why) == 0}
}

func (m Mode) equal(other Mode) bool {
	return m.DryRun == other.DryRun && m.Reporting == other.Reporting && slices.Equal(m.Reasons, other.Reasons)
}
