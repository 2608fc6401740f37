// Package kubeletconfig has what a kubelet next to evictd should be configured to do: the fragment of a
// KubeletConfiguration that fits evictd's configuration, and the comparison with that of a running
// kubelet. evictctl prints the one, evictd's status has the other.
package kubeletconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Fragment is the part of a KubeletConfiguration that fits a configuration of evictd.
type Fragment struct {
	// Hard are the hard thresholds, in the order of signals.
	Hard []HardThreshold
	// Shutdown are the fields about a graceful node shutdown, empty if the kubelet's own stay.
	Shutdown []Field
	// Evictd is set if evictd is to stop the pods when the node shuts down, for which it must reach
	// logind, and Owner is the setting by which that is decided.
	Evictd bool
	Owner  config.ShutdownOwner
}

// HardThreshold is a threshold of the kubelet and what it is derived from.
type HardThreshold struct {
	Signal signal.Signal
	Value  string
	// Own is evictd's threshold; empty if evictd has none, and Value is the kubelet's default.
	Own string
}

// Field is a field and its value, which is marshalled as JSON.
type Field struct {
	Name  string
	Value any
}

// kubeletDefaults are the kubelet's hard thresholds if it has no others
// (pkg/kubelet/eviction/defaults_linux.go).
var kubeletDefaults = map[signal.Signal]string{
	signal.MemoryAvailable: "100Mi", signal.NodeFsAvailable: "10%", signal.NodeFsInodesFree: "5%",
	signal.ImageFsAvailable: "15%", signal.ImageFsInodesFree: "5%",
}

// For returns the fragment that fits a configuration. Each threshold of the kubelet is below
// evictd's, so that evictd evicts first. All signals have one: if the map evictionHard is given, the
// kubelet has no defaults for the others (cmd/kubelet/app/server.go).
func For(c *config.Config) Fragment {
	f := Fragment{Evictd: shutsDown(c), Owner: c.Shutdown.BesideKubelet}
	for _, s := range signal.All() {
		if own, ok := lowest(c, s); ok {
			f.Hard = append(f.Hard, HardThreshold{s, lastLine(s, own), own.String()})
		} else if value := kubeletDefaults[s]; value != "" {
			f.Hard = append(f.Hard, HardThreshold{Signal: s, Value: value})
		}
	}
	switch {
	case f.Evictd:
		f.Shutdown = shutdownFields("0s", "0s", nil)
	case len(c.ShutdownGracePeriodByPodPriority) > 0:
		groups := []map[string]int64{}
		for _, g := range c.ShutdownGracePeriodByPodPriority {
			groups = append(groups, map[string]int64{"priority": int64(g.Priority), "shutdownGracePeriodSeconds": g.ShutdownGracePeriodSeconds})
		}
		f.Shutdown = shutdownFields("0s", "0s", groups)
	case c.ShutdownGracePeriod > 0:
		f.Shutdown = shutdownFields(c.ShutdownGracePeriod.String(), c.ShutdownGracePeriodCriticalPods.String(), nil)
	}
	return f
}

// shutsDown reports whether evictd stops the pods of a kubelet that has no grace period for
// shutdowns, if it reaches logind: in dry run it stops none.
func shutsDown(c *config.Config) bool { return ownsShutdown(c) && !c.DryRun }

// ownsShutdown reports whether stopping such pods is configured: there is a schedule, and with own in
// any case, with auto if evictd-kube reports their ends. With auto a kubelet with a grace period stops them instead
// (agent/shutdown/driver).
func ownsShutdown(c *config.Config) bool {
	switch {
	case c.ShutdownSchedule().Total() <= 0:
		return false
	case c.Shutdown.BesideKubelet == config.ShutdownAuto:
		return c.Kubelet == config.KubeletAuto && c.Kube.UID != 0
	}
	return c.Shutdown.BesideKubelet == config.ShutdownOwn
}

func shutdownFields(period, critical string, groups []map[string]int64) []Field {
	fields := []Field{{"shutdownGracePeriod", period}, {"shutdownGracePeriodCriticalPods", critical}, {"shutdownGracePeriodByPodPriority", nil}}
	if groups != nil {
		fields[2].Value = groups
	}
	return fields
}

// lowest returns evictd's lowest configured threshold on a signal: the hard one if there is one.
// The kubelet has no thresholds of its own on the pods' memory and on containerfs.
func lowest(c *config.Config, s signal.Signal) (v signal.Value, ok bool) {
	switch s {
	case signal.AllocatableMemoryAvailable, signal.ContainerFsAvailable, signal.ContainerFsInodesFree:
		return signal.Value{}, false
	}
	for _, t := range c.Policy(evict.SingleFs).Thresholds { // hard ones come first
		if t.Signal == s && !t.Derived && (!t.Value.IsPercentage() || percent(t.Value) > 0) {
			return t.Value, true
		}
	}
	return signal.Value{}, false
}

// enoughMemory is the kubelet's default threshold on memory: with less the node may stop to respond.
const enoughMemory = 100 << 20

// lastLine returns the kubelet's threshold below one of evictd: half of it. For memory it is at
// least 100Mi where that is at most three quarters of evictd's: the kubelet looks every 10 s only.
func lastLine(s signal.Signal, own signal.Value) string {
	if own.IsPercentage() {
		return strconv.FormatFloat(percent(own)/2, 'f', -1, 32) + "%"
	}
	n := own.Amount(0)
	half := n / 2
	if s.IsMemory() {
		half = max(half, min(enoughMemory, n-n/4))
	}
	const mebi = 1 << 20
	if s.Format() == resource.BinarySI && half > mebi {
		half -= half % mebi
	}
	return resource.NewQuantity(max(half, 1), s.Format()).String()
}

// percent returns the percentage of a value, of one that is the larger of a percentage and a
// quantity, too.
func percent(v signal.Value) float64 {
	number, _, _ := strings.Cut(v.String(), "%")
	p, _ := strconv.ParseFloat(number, 64) // the configuration has checked it
	return p
}

// MarshalJSON returns the fragment as a KubeletConfiguration.
func (f Fragment) MarshalJSON() ([]byte, error) {
	hard := map[string]string{}
	for _, t := range f.Hard {
		hard[t.Signal.String()] = t.Value
	}
	fields := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"evictionHard": hard, "evictionSoft": nil, "evictionSoftGracePeriod": nil, "evictionMinimumReclaim": nil,
	}
	for _, field := range f.Shutdown {
		fields[field.Name] = field.Value
	}
	return json.Marshal(fields)
}

const logindNeeded = `# That is so if evictd reaches logind, as a systemd unit does; a pod does not: then set it here.
`

// YAML returns the fragment as a KubeletConfiguration with comments.
func (f Fragment) YAML() []byte {
	var b bytes.Buffer
	b.WriteString(`# The part of the kubelet's configuration that fits evictd's. Add it to the file of the kubelet's flag
# --config, or put it as NAME.conf into the directory of --config-dir, and restart the kubelet.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration

# The last line of defence, for example while evictd is restarted. These thresholds are half of evictd's
# (of memory at least 100Mi, but at most three quarters), so that evictd evicts first. Every signal is
# listed: the kubelet has no defaults for those that are missing here.
evictionHard:
`)
	for _, t := range f.Hard {
		own := "evictd's is " + t.Own
		if t.Own == "" {
			own = "the kubelet's default; evictd has none"
		}
		fmt.Fprintf(&b, "  %s: %q # %s\n", t.Signal, t.Value, own)
	}
	b.WriteString(`
# None: evictd has the soft thresholds. A minimum reclaim could lift the thresholds above evictd's. Null
# also removes what the files before this one set.
evictionSoft: null
evictionSoftGracePeriod: null
evictionMinimumReclaim: null
`)
	switch {
	case f.Evictd && f.Owner == config.ShutdownAuto:
		b.WriteString(`
# evictd stops the pods when the node shuts down, and evictd-kube reports their ends, because the kubelet
# has no grace period of its own (shutdown.besideKubelet: auto). With one here, the kubelet stops them.
` + logindNeeded)
	case f.Evictd:
		b.WriteString("\n# evictd stops the pods when the node shuts down (shutdown.besideKubelet: own).\n" + logindNeeded)
	case len(f.Shutdown) > 0:
		b.WriteString("\n# The kubelet stops the pods when the node shuts down, in the periods of evictd's configuration.\n")
	default:
		b.WriteString("\n# The kubelet stops the pods when the node shuts down, if its shutdownGracePeriod says so.\n")
	}
	for _, field := range f.Shutdown {
		value, err := json.Marshal(field.Value)
		if err != nil {
			panic(err) // texts, numbers and null
		}
		fmt.Fprintf(&b, "%s: %s\n", field.Name, value)
	}
	return b.Bytes()
}
