package config

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/signal"
)

// APIVersion and Kind are the header of an AgentConfiguration.
const (
	APIVersion = "evictd.io/v1alpha1"
	Kind       = "AgentConfiguration"
)

// Config is a valid configuration with all defaults filled in. Its maps and
// lists are never nil.
type Config struct {
	KubeletFields `yaml:",inline"`

	// RuntimeEndpoint is the socket of the container runtime, as a path or
	// unix:///path. Empty means that it is detected.
	RuntimeEndpoint string `yaml:"runtimeEndpoint"`
	// CgroupRoot is the parent cgroup of kubepods.
	CgroupRoot string `yaml:"cgroupRoot"`
	// NodefsPath is a directory on the node's filesystem. Empty means
	// /var/lib/kubelet if it exists, else /.
	NodefsPath string `yaml:"nodefsPath"`
	// DryRun makes evictd decide and report without acting.
	DryRun bool `yaml:"dryRun"`
	// Kubelet selects what evictd does next to a kubelet.
	Kubelet KubeletMode `yaml:"kubelet"`
	// UnknownPriority selects whether a kubelet's pods may be evicted while their
	// priority is unknown.
	UnknownPriority UnknownPriority `yaml:"unknownPriority"`
	// TrustAnnotations lists the namespaces in which evictd's annotations are
	// trusted even on a kubelet's pods.
	TrustAnnotations []string `yaml:"trustAnnotations"`
	// Protect selects the pods that are never evicted.
	Protect Protect `yaml:"protect"`
	// MemoryAccounting selects what counts as available memory.
	MemoryAccounting MemoryAccounting `yaml:"memoryAccounting"`
	// MaxVictims is the maximum number of pods that one decision evicts, at least 1.
	MaxVictims int `yaml:"maxVictims"`
	// SettleTimeout is how long a decision waits for the memory of a victim; it is
	// above 0.
	SettleTimeout time.Duration `yaml:"settleTimeout"`
	// ImageGC selects whether unused images are removed.
	ImageGC ImageGC `yaml:"imageGC"`
	// Reclaim configures what is reclaimed before a pod is evicted.
	Reclaim Reclaim `yaml:"reclaim"`
	// OOMScoreAdj selects whether the oom_score_adj of containers is shown or
	// corrected.
	OOMScoreAdj OOMScoreAdj `yaml:"oomScoreAdj"`
	// Notification selects the lanes that notify evictd of pressure.
	Notification Notification `yaml:"notification"`
	// Pressure configures the response to memory stalls.
	Pressure Pressure `yaml:"pressure"`
	// Shutdown configures a graceful node shutdown next to a kubelet.
	Shutdown Shutdown `yaml:"shutdown"`
	// Admission selects whether BestEffort pods that arrive under memory pressure are
	// evicted.
	Admission Admission `yaml:"admission"`
	// Kube is how evictd-kube connects to evictd, and how evictions are reported.
	Kube Kube `yaml:"kube"`
	// SelfFencing configures the watchdog of a node that fences itself.
	SelfFencing SelfFencing `yaml:"selfFencing"`

	// Files lists the files that this configuration was read from.
	Files []string `yaml:"-"`
	// Notices are remarks on a valid configuration, for the operator.
	Notices []strict.Problem `yaml:"-"`

	thresholds []signal.Threshold // hard ones, then soft ones, each in order
	sources    sources
	origin     map[string]Origin // by path, where it differs from that of sources
}

// KubeletFields are the fields that a KubeletConfiguration has too, with the
// kubelet's meanings.
type KubeletFields struct {
	// EvictionHard and EvictionSoft are thresholds by signal: a quantity, or a
	// percentage of the signal's capacity.
	EvictionHard Amounts `yaml:"evictionHard"`
	EvictionSoft Amounts `yaml:"evictionSoft"`
	// EvictionSoftGracePeriod is how long each soft threshold must be met before a
	// pod is evicted.
	EvictionSoftGracePeriod map[string]time.Duration `yaml:"evictionSoftGracePeriod"`
	// EvictionMinimumReclaim is how far a signal must rise above its thresholds
	// before eviction ends, as a quantity or a percentage.
	EvictionMinimumReclaim Amounts `yaml:"evictionMinimumReclaim"`
	// EvictionPressureTransitionPeriod is how long a node condition stays after
	// its threshold was last met.
	EvictionPressureTransitionPeriod time.Duration `yaml:"evictionPressureTransitionPeriod"`
	// EvictionMaxPodGracePeriod limits the grace period of soft evictions, in
	// seconds. Negative means the pod's own.
	EvictionMaxPodGracePeriod int32 `yaml:"evictionMaxPodGracePeriod"`
	// MergeDefaultEvictionSettings adds the defaults that EvictionHard omits.
	MergeDefaultEvictionSettings bool `yaml:"mergeDefaultEvictionSettings"`
	// EnforceNodeAllocatable enables allocatableMemory.available if it lists
	// "pods".
	EnforceNodeAllocatable []string `yaml:"enforceNodeAllocatable"`
	// SystemReserved and KubeReserved are quantities by resource.
	SystemReserved Amounts `yaml:"systemReserved"`
	KubeReserved   Amounts `yaml:"kubeReserved"`

	// Image collection starts at the high and ends at the low percentage of disk
	// usage, 0 to 100. An unused image younger than the minimum age is kept, one
	// older than the maximum age is removed; a maximum of 0 means no limit.
	ImageGCHighThresholdPercent int32         `yaml:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent  int32         `yaml:"imageGCLowThresholdPercent"`
	ImageMinimumGCAge           time.Duration `yaml:"imageMinimumGCAge"`
	ImageMaximumGCAge           time.Duration `yaml:"imageMaximumGCAge"`

	// ShutdownGracePeriod is how long a shutdown waits for all pods. The part of
	// it given by ShutdownGracePeriodCriticalPods is reserved for the critical
	// ones. With 0 the shutdown does not wait.
	ShutdownGracePeriod             time.Duration `yaml:"shutdownGracePeriod"`
	ShutdownGracePeriodCriticalPods time.Duration `yaml:"shutdownGracePeriodCriticalPods"`
	// ShutdownGracePeriodByPodPriority replaces both, with one period per group.
	ShutdownGracePeriodByPodPriority []ShutdownGroup `yaml:"shutdownGracePeriodByPodPriority"`
}

// ShutdownGroup is how long a shutdown waits for pods with at least a priority.
type ShutdownGroup struct {
	Priority                   int32 `yaml:"priority"`
	ShutdownGracePeriodSeconds int64 `yaml:"shutdownGracePeriodSeconds"`
}

// Amounts are quantities or percentages by name, as they were written.
type Amounts map[string]string

// DecodeYAML reads a map of strings or plain numbers.
func (a *Amounts) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	var m map[string]amount
	d.Decode(n, &m)
	if m == nil {
		return
	}
	*a = make(Amounts, len(m))
	for name, text := range m {
		(*a)[name] = string(text)
	}
}

// amount is the text of a quantity or percentage.
type amount string

// DecodeYAML reads a string or a plain number. In a kubelet's file it accepts a
// string only, because the kubelet refuses to start with a number in its maps of
// strings.
func (a *amount) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	if d.Lenient() {
		d.Decode(n, (*string)(a))
		return
	}
	text, _ := d.Amount(n, "a quantity such as 500Mi")
	*a = amount(text)
}

// KubeletMode selects what evictd does next to a kubelet.
type KubeletMode string

// The kubelet modes.
const (
	// KubeletAuto keeps evictd in dry run while a kubelet's pods run on the node, unless
	// evictd-kube reports their evictions to the API server.
	KubeletAuto KubeletMode = "auto"
	// KubeletAbsent states that no kubelet runs on the node. Pods with a kubelet's
	// annotations are left-overs that evictd may evict.
	KubeletAbsent KubeletMode = "absent"
	// KubeletOverride makes evictd act although a kubelet runs on the node.
	KubeletOverride KubeletMode = "override"
)

// UnmarshalText accepts the modes by name.
func (m *KubeletMode) UnmarshalText(text []byte) error {
	return choose(m, text, KubeletAuto, KubeletAbsent, KubeletOverride)
}

// UnknownPriority selects whether a kubelet's pods of unknown priority may be
// evicted.
type UnknownPriority string

// The values of UnknownPriority.
const (
	SpareUnknownPriority UnknownPriority = "spare"
	EvictUnknownPriority UnknownPriority = "evict"
)

// UnmarshalText accepts spare and evict.
func (p *UnknownPriority) UnmarshalText(text []byte) error {
	return choose(p, text, SpareUnknownPriority, EvictUnknownPriority)
}

// MemoryAccounting selects what counts as available memory.
type MemoryAccounting string

// The values of MemoryAccounting.
const (
	// AccountingKubelet counts active file cache as used.
	AccountingKubelet MemoryAccounting = "kubelet"
	// AccountingAvailable counts active file cache as available.
	AccountingAvailable MemoryAccounting = "available"
)

// UnmarshalText accepts kubelet and available.
func (a *MemoryAccounting) UnmarshalText(text []byte) error {
	return choose(a, text, AccountingKubelet, AccountingAvailable)
}

// ImageGC selects whether unused images are removed.
type ImageGC string

// The values of ImageGC.
const (
	// ImageGCAuto removes images unless a kubelet runs on the node, because the
	// kubelet collects them itself.
	ImageGCAuto ImageGC = "auto"
	// ImageGCOn always removes images, ImageGCOff never.
	ImageGCOn  ImageGC = "on"
	ImageGCOff ImageGC = "off"
)

// UnmarshalText accepts auto, on and off.
func (g *ImageGC) UnmarshalText(text []byte) error {
	return choose(g, text, ImageGCAuto, ImageGCOn, ImageGCOff)
}

// Reclaim configures what is reclaimed before a pod is evicted.
type Reclaim struct {
	// Memory selects whether memory of pods is reclaimed proactively
	// (memory.reclaim) while a soft threshold is met.
	Memory ReclaimMemory `yaml:"memory"`
}

// ReclaimMemory selects whether memory is reclaimed proactively.
type ReclaimMemory string

// The values of ReclaimMemory.
const (
	// ReclaimMemoryAuto reclaims where memory.reclaim exists: cgroup v2 from Linux
	// 5.19.
	ReclaimMemoryAuto ReclaimMemory = "auto"
	ReclaimMemoryOff  ReclaimMemory = "off"
)

// UnmarshalText accepts auto and off.
func (r *ReclaimMemory) UnmarshalText(text []byte) error {
	return choose(r, text, ReclaimMemoryAuto, ReclaimMemoryOff)
}

// Admission selects whether pods that a kubelet would refuse under memory pressure are
// evicted.
type Admission string

// The values of Admission.
const (
	AdmissionOff   Admission = "off"
	AdmissionEvict Admission = "evict"
)

// UnmarshalText reads a mode.
func (a *Admission) UnmarshalText(text []byte) error {
	return choose(a, text, AdmissionOff, AdmissionEvict)
}

// OOMScoreAdj selects whether the oom_score_adj of containers' processes is shown
// or corrected.
type OOMScoreAdj string

// The values of OOMScoreAdj.
const (
	// OOMScoreAdjObserve shows the values in evictctl explain.
	OOMScoreAdjObserve OOMScoreAdj = "observe"
	// OOMScoreAdjEnforce also corrects wrong values, except in a kubelet's pods.
	OOMScoreAdjEnforce OOMScoreAdj = "enforce"
	// OOMScoreAdjOff does not read the values.
	OOMScoreAdjOff OOMScoreAdj = "off"
)

// UnmarshalText accepts observe, enforce and off.
func (o *OOMScoreAdj) UnmarshalText(text []byte) error {
	return choose(o, text, OOMScoreAdjObserve, OOMScoreAdjEnforce, OOMScoreAdjOff)
}

// choose sets into to the allowed value that equals text. The error lists the
// allowed values.
func choose[T ~string](into *T, text []byte, allowed ...T) error {
	list := ""
	for i, a := range allowed {
		if string(text) == string(a) {
			*into = a
			return nil
		}
		switch {
		case i == 0:
		case i == len(allowed)-1:
			list += " or "
		default:
			list += ", "
		}
		list += string(a)
	}
	return fmt.Errorf("is %s; want %s", strict.Quote(string(text)), list)
}
