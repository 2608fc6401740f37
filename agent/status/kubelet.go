package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/config/kubeletconfig"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/loop"
)

// kubeletStatus returns what is known of the kubelet's configuration, without the comparison.
func (b *Backend) kubeletStatus(now time.Time) control.KubeletConfiguration {
	c, at, known := b.o.Facts.Kubelet()
	return control.KubeletConfiguration{
		Known: known, AgeSeconds: control.Age(at, now), Error: b.o.Facts.KubeletError(), EvictionHard: c.EvictionHard, ShutsDown: c.ShutsDown(),
	}
}

// compareKubelet adds how the kubelet's configuration fits the one in force, with a warning about
// what may cause evictions of both.
func (b *Backend) compareKubelet(s *control.Status, v *loop.View) {
	k := &s.Kubernetes.Kubelet
	if !k.Known {
		if v.Mode.Reporting {
			s.Warnings = append(s.Warnings, unknownKubelet(k.Error))
		}
		return
	}
	for _, o := range s.Signals {
		for _, t := range o.Thresholds {
			if t.Kubelet != "" {
				k.Left = append(k.Left, o.Signal.String())
				break
			}
		}
	}
	c, _, _ := b.o.Facts.Kubelet()
	running := kubeletconfig.Running{
		EvictionHard: c.EvictionHard, EvictionSoft: c.EvictionSoft, EvictionMinimumReclaim: c.EvictionMinimumReclaim,
		ShutsDown: c.ShutsDown(), Shutdown: c.ShutdownGracePeriod, CgroupRoot: c.CgroupRoot, CgroupsPerQOS: c.CgroupsPerQOS,
	}
	lock := b.o.DelayLock.Status()
	running.ShutsDown = running.ShutsDown || lock.Kubelet // a kubelet without a grace period has no lock
	shutdown := kubeletconfig.Shutdown{SkipReasons: slices.Concat(v.Mode.ReasonsExceptKubelet, b.o.Shutdown.SkipReasons(v)), Logind: lock.Connected}
	for _, d := range kubeletconfig.Compare(v.Config, &running, &v.Observations, shutdown) {
		k.Differences = append(k.Differences, control.KubeletDifference(d))
		if d.MemoryOverlap {
			s.Warnings = append(s.Warnings, fmt.Sprintf("kubelet's %s is %s: %s; %s", d.Field, d.Kubelet, d.Consequence, d.Remedy))
		}
	}
}

// unknownKubelet is the warning while evictd enforces next to a kubelet whose configuration is not
// known.
func unknownKubelet(why string) string {
	text := "the kubelet's configuration is not known: evictd evicts for every signal, and the kubelet may evict for the same shortage"
	if why != "" {
		text += ": " + why
	}
	return text
}

// kubeletNotes explains which thresholds of a signal are left to the kubelet.
func kubeletNotes(s *control.SignalStatus) (notes []string) {
	for _, t := range s.Thresholds {
		if t.Kubelet == "" {
			continue
		}
		timeout := time.Duration(t.KubeletTimeoutSeconds) * time.Second
		notes = append(notes, fmt.Sprintf("%s<%s is left to the kubelet, whose threshold of %s is not below it: evictd evicts only if it stays met for %v; "+
			"a lower threshold of the kubelet lets evictd evict first (evictctl kubelet-config)", s.Signal, t.Value, t.Kubelet, timeout))
	}
	return notes
}
