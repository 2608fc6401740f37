package kubeletconfig

import (
	"path"
	"strings"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Running is what concerns evictd of the configuration of a running kubelet, with the defaults that
// it has filled in.
type Running struct {
	EvictionHard, EvictionSoft, EvictionMinimumReclaim map[string]string
	// ShutsDown is set if the kubelet stops the pods when the node shuts down, in the time
	// Shutdown.
	ShutsDown  bool
	Shutdown   string
	CgroupRoot string
	// CgroupsPerQOS is nil for the default, true.
	CgroupsPerQOS *bool
}

// Shutdown is whether a running evictd stops the pods when the node shuts down.
type Shutdown struct {
	// SkipReasons are why it stops none. Logind is set if it reaches logind, without which it does
	// not notice the shutdown.
	SkipReasons []string
	Logind      bool
}

// Difference is a field in which a kubelet's configuration does not fit evictd's.
type Difference struct {
	Field string
	// Kubelet is the kubelet's value, and Want one that fits; empty for none.
	Kubelet, Want       string
	Consequence, Remedy string
	// MemoryOverlap is set if the kubelet evicts for memory when evictd does.
	MemoryOverlap bool
}

// Compare returns how the configuration of a running kubelet does not fit evictd's. observed has the
// capacities, without which a percentage and a quantity can't be compared. shutdown is of the evictd
// that has the configuration c.
func Compare(c *config.Config, running *Running, observed *signal.Observations, shutdown Shutdown) (list []Difference) {
	for _, want := range For(c).Hard {
		list = append(list, compareHard(c, &want, running, &observed[want.Signal])...)
	}
	for _, s := range signal.All() {
		if value := running.EvictionSoft[s.String()]; value != "" {
			field := "evictionSoft." + s.String()
			list = append(list, Difference{
				Field: field, Kubelet: value, Consequence: "the kubelet evicts by this threshold too, without regard to evictd's victims", Remedy: remove(field),
			})
		}
	}
	list = append(list, compareShutdown(c, running, shutdown)...)
	if kubelet, agent := path.Clean("/"+running.CgroupRoot), path.Clean("/"+c.CgroupRoot); kubelet != agent {
		list = append(list, Difference{
			Field: "cgroupRoot", Kubelet: kubelet, Want: agent, Consequence: "evictd looks for the pods' cgroups below another one",
			Remedy: "set cgroupRoot: " + kubelet + " in evictd's configuration",
		})
	}
	if running.CgroupsPerQOS != nil && !*running.CgroupsPerQOS {
		list = append(list, Difference{
			Field: "cgroupsPerQOS", Kubelet: "false", Want: "true", Consequence: "pods have no cgroup of their own: evicted pods can't be fenced, and may be started again",
			Remedy: "remove cgroupsPerQOS from the kubelet's configuration",
		})
	}
	return list
}

// compareShutdown compares which program stops the pods when the node shuts down: there must be one.
func compareShutdown(c *config.Config, running *Running, shutdown Shutdown) []Difference {
	const field = "shutdownGracePeriod"
	evictd := shutsDown(c) && shutdown.Logind && len(shutdown.SkipReasons) == 0
	configured := c.ShutdownSchedule().Total()
	if running.ShutsDown {
		if !evictd || c.Shutdown.BesideKubelet != config.ShutdownOwn {
			return nil
		}
		return []Difference{{
			Field: field, Kubelet: running.Shutdown, Want: "0s",
			Consequence: "the kubelet stops the pods when the node shuts down, and evictd is configured to do it (shutdown.besideKubelet: own)",
			Remedy:      "set shutdownGracePeriod to 0s and remove shutdownGracePeriodByPodPriority in the kubelet's configuration",
		}}
	}
	if evictd || configured <= 0 {
		return nil
	}
	d := Difference{Field: field, Kubelet: "0s", Want: configured.String()}
	const consequence = "pods are not stopped in order when the node shuts down: "
	switch {
	case ownsShutdown(c) && len(shutdown.SkipReasons) > 0:
		d.Consequence = consequence + "the kubelet does not do it, and evictd does not either: " + strings.Join(shutdown.SkipReasons, "; ")
		d.Remedy = "set the kubelet's shutdownGracePeriod, or remove what keeps evictd from it"
	case ownsShutdown(c):
		d.Consequence = consequence + "the kubelet does not do it, and evictd does not reach logind, which would notify it"
		d.Remedy = "set the kubelet's shutdownGracePeriod, or run evictd as a systemd unit"
	case c.Shutdown.BesideKubelet == config.ShutdownAuto:
		d.Consequence = consequence + "evictd leaves that to the kubelet, which does not do it"
		d.Remedy = "set kubelet: auto and kube.uid in evictd's configuration, so that evictd stops the pods and evictd-kube reports it, or set it in the kubelet's"
	default:
		d.Consequence = consequence + "evictd leaves that to the kubelet, which does not do it"
		d.Remedy = "set it in the kubelet's configuration, or shutdown.besideKubelet: own in evictd's"
	}
	return []Difference{d}
}

// compareHard compares a hard threshold of the kubelet with evictd's threshold on the signal.
func compareHard(c *config.Config, want *HardThreshold, running *Running, o *signal.Observation) (list []Difference) {
	name := want.Signal.String()
	field, text := "evictionHard."+name, running.EvictionHard[name]
	add := func(consequence string) {
		remedy := "set " + field + ": " + want.Value + " in the kubelet's configuration (evictctl kubelet-config)"
		if c.Origin(field) == config.OriginKubelet {
			// A lower threshold of the kubelet would lower evictd's, too.
			remedy = "set evictionHard in evictd's configuration, which has the kubelet's (--kubelet-config); then " + remedy
		}
		list = append(list, Difference{Field: field, Kubelet: text, Want: want.Value, Consequence: consequence, Remedy: remedy})
	}
	own, hasOwn := lowest(c, want.Signal)
	value, err := signal.ParseThreshold(text)
	switch {
	case err != nil && hasOwn:
		add("the kubelet does not evict for this signal while evictd does not run")
		return list
	case err != nil:
		add("neither evictd nor the kubelet evicts for this signal")
		return list
	case !hasOwn:
		return nil
	}
	if evict.NotBelow(value, own, o) {
		if want.Signal.IsMemory() {
			add("the kubelet evicts for memory when evictd does, by what it saw up to 10 s ago: it may evict a second pod")
			list[0].MemoryOverlap = true
		} else {
			add("evictd leaves this signal to the kubelet")
		}
		return list
	}
	reclaimField := "evictionMinimumReclaim." + name
	reclaimText := running.EvictionMinimumReclaim[name]
	reclaim, err := signal.ParseMinReclaim(reclaimText)
	if err != nil || o.Status != signal.Observed {
		return list
	}
	target := signal.Threshold{Value: value, MinReclaim: reclaim}.Target(o.Capacity)
	if target > own.Amount(o.Capacity) {
		list = append(list, Difference{
			Field: reclaimField, Kubelet: reclaimText, Consequence: "once the kubelet evicts, it goes on above evictd's threshold", Remedy: remove(reclaimField),
		})
	}
	return list
}

func remove(field string) string {
	return "remove " + field + " from the kubelet's configuration (evictctl kubelet-config)"
}
