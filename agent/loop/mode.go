package loop

import (
	"slices"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/pods"
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
	// RightsKnown is that of the Facts.
	RightsKnown bool
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
	// RightsKnown is set if CannotReport is what evictd-kube has found out: it is not if none has ever connected.
	RightsKnown bool
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
	return Mode{DryRun: len(why) > 0, Reasons: why, ReasonsExceptKubelet: exceptKubelet, Reporting: besideKubelet && len(why) == 0, RightsKnown: f.RightsKnown}
}

// kubeletHard returns the hard thresholds of the kubelet whose pods evictd evicts next to it
// (kubelet: auto), with those that it derives; nil if there is none or they are not known. In dry
// run they are the same.
//
// While they are not known, evictd evicts for every signal: a kubelet that evicts too costs a
// second victim at times, but a full disk on which neither evicts costs the node.
func (l *Loop) kubeletHard(s *pods.Snapshot) []evict.Threshold {
	if l.kubeletThresholds == nil || l.config.Kubelet != config.KubeletAuto || !s.Kubelet.HasSandboxes {
		return nil
	}
	known := l.kubeletThresholds()
	if known == nil {
		return nil
	}
	return evict.WithDerived(known, l.policy.Layout, true)
}

func (m Mode) equal(other Mode) bool {
	return m.DryRun == other.DryRun && m.Reporting == other.Reporting && slices.Equal(m.Reasons, other.Reasons)
}
