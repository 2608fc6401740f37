package config

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/signal"
)

// APIVersion and Kind are what an AgentConfiguration begins with.
const (
	APIVersion = "evictd.io/v1alpha1"
	Kind       = "AgentConfiguration"
)

// Config is a valid configuration with all defaults filled in. Its maps and
// lists are never nil.
type Config struct {
	KubeletFields `yaml:",inline"`

	// RuntimeEndpoint is the socket of the container runtime, as a path or
	// unix:///path; empty is to be detected.
	RuntimeEndpoint string `yaml:"runtimeEndpoint"`
	// CgroupRoot is the cgroup below which kubepods lies.
	CgroupRoot string `yaml:"cgroupRoot"`
	// NodefsPath is a directory on the node's filesystem; empty is
	// /var/lib/kubelet where there is one, else /.
	NodefsPath string `yaml:"nodefsPath"`
	// DryRun makes evictd decide and report, and touch nothing.
	DryRun bool `yaml:"dryRun"`
	// Kubelet tells what to do beside a kubelet.
	Kubelet KubeletMode `yaml:"kubelet"`
	// UnknownPriority tells what becomes of a kubelet's pods while their
	// priority is not known.
	UnknownPriority UnknownPriority `yaml:"unknownPriority"`
	// TrustAnnotations lists the namespaces in which annotations are believed
	// even on a kubelet's pods.
	TrustAnnotations []string `yaml:"trustAnnotations"`
	// Protect names the pods that are left alone.
	Protect Protect `yaml:"protect"`
	// MemoryAccounting tells what counts as available memory.
	MemoryAccounting MemoryAccounting `yaml:"memoryAccounting"`
	// MaxVictims is the most pods that one decision evicts, at least 1.
	MaxVictims int `yaml:"maxVictims"`
	// SettleTimeout is how long the memory of a victim is waited for, above 0.
	SettleTimeout time.Duration `yaml:"settleTimeout"`
	// ImageGC tells whether unused images are removed.
	ImageGC ImageGC `yaml:"imageGC"`
	// Reclaim tells what is taken back before a pod has to go.
	Reclaim Reclaim `yaml:"reclaim"`
	// OOMScoreAdj tells what becomes of what the kernel's OOM killer is told of
	// containers.
	OOMScoreAdj OOMScoreAdj `yaml:"oomScoreAdj"`
	// Notification tells how evictd learns of memory pressure.
	Notification Notification `yaml:"notification"`
	// Pressure tells what becomes of stalls.
	Pressure Pressure `yaml:"pressure"`
	// Shutdown tells what becomes of a shutdown beside a kubelet.
	Shutdown Shutdown `yaml:"shutdown"`

	// Files lists the files that this configuration was read from.
	Files []string `yaml:"-"`
	// Notices are what an operator should know about a valid configuration.
	Notices []strict.Problem `yaml:"-"`

	thresholds []signal.Threshold // hard ones, then soft ones, each in order
	sources    sources
	origin     map[string]Origin // by path, what sources does not tell
}

// KubeletFields are the fields that a KubeletConfiguration has too, with the
// kubelet's meanings.
type KubeletFields struct {
	// EvictionHard and EvictionSoft are thresholds by signal: a quantity, or a
	// percentage of the signal's capacity.
	EvictionHard Amounts `yaml:"evictionHard"`
	EvictionSoft Amounts `yaml:"evictionSoft"`
	// EvictionSoftGracePeriod is how long each soft threshold must be met.
	EvictionSoftGracePeriod map[string]time.Duration `yaml:"evictionSoftGracePeriod"`
	// EvictionMinimumReclaim is how far above its thresholds a signal must come
	// back, as a quantity or a percentage.
	EvictionMinimumReclaim Amounts `yaml:"evictionMinimumReclaim"`
	// EvictionPressureTransitionPeriod is how long a condition outlives its
	// last sight.
	EvictionPressureTransitionPeriod time.Duration `yaml:"evictionPressureTransitionPeriod"`
	// EvictionMaxPodGracePeriod caps the grace of soft evictions, in seconds;
	// negative is the pod's own.
	EvictionMaxPodGracePeriod int32 `yaml:"evictionMaxPodGracePeriod"`
	// MergeDefaultEvictionSettings adds the defaults that EvictionHard omits.
	MergeDefaultEvictionSettings bool `yaml:"mergeDefaultEvictionSettings"`
	// EnforceNodeAllocatable arms allocatableMemory.available where it lists
	// "pods".
	EnforceNodeAllocatable []string `yaml:"enforceNodeAllocatable"`
	// SystemReserved and KubeReserved are quantities by resource.
	SystemReserved Amounts `yaml:"systemReserved"`
	KubeReserved   Amounts `yaml:"kubeReserved"`

	// The percentages of disk usage from which and down to which images are
	// collected, 0 to 100, and the ages of an unused image that spare and doom
	// it; a maximum of 0 is none.
	ImageGCHighThresholdPercent int32         `yaml:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent  int32         `yaml:"imageGCLowThresholdPercent"`
	ImageMinimumGCAge           time.Duration `yaml:"imageMinimumGCAge"`
	ImageMaximumGCAge           time.Duration `yaml:"imageMaximumGCAge"`

	// How long a shutdown waits for all pods and, as a part of that, for the
	// critical ones; 0 does not wait.
	ShutdownGracePeriod             time.Duration `yaml:"shutdownGracePeriod"`
	ShutdownGracePeriodCriticalPods time.Duration `yaml:"shutdownGracePeriodCriticalPods"`
	// ShutdownGracePeriodByPodPriority replaces both, group by group.
	ShutdownGracePeriodByPodPriority []ShutdownGroup `yaml:"shutdownGracePeriodByPodPriority"`
}

// ShutdownGroup is how long a shutdown waits for pods of at least a priority.
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

// DecodeYAML reads a string or a plain number; of a kubelet's file a string
// alone, since the kubelet does not start with a number in its maps of strings.
func (a *amount) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	if d.Lenient() {
		d.Decode(n, (*string)(a))
		return
	}
	text, _ := d.Amount(n, "a quantity such as 500Mi")
	*a = amount(text)
}

// KubeletMode tells what evictd does beside a kubelet.
type KubeletMode string

// The modes beside a kubelet.
const (
	// KubeletAuto: while a kubelet's pods run here, evictd stays in dry run.
	KubeletAuto KubeletMode = "auto"
	// KubeletAbsent: no kubelet runs here; what looks like its pods is ours.
	KubeletAbsent KubeletMode = "absent"
	// KubeletOverride: evictd acts although a kubelet runs here.
	KubeletOverride KubeletMode = "override"
)

// UnmarshalText accepts the modes by name.
func (m *KubeletMode) UnmarshalText(text []byte) error {
	return choose(m, text, KubeletAuto, KubeletAbsent, KubeletOverride)
}

// UnknownPriority tells what becomes of a kubelet's pods of unknown priority.
type UnknownPriority string

// What becomes of pods of unknown priority.
const (
	SparePriority UnknownPriority = "spare"
	EvictPriority UnknownPriority = "evict"
)

// UnmarshalText accepts spare and evict.
func (p *UnknownPriority) UnmarshalText(text []byte) error {
	return choose(p, text, SparePriority, EvictPriority)
}

// MemoryAccounting tells what counts as available memory.
type MemoryAccounting string

// The ways to count available memory.
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

// ImageGC tells whether unused images are removed.
type ImageGC string

// Whether images are collected.
const (
	// ImageGCAuto: unless a kubelet runs here, which collects them itself.
	ImageGCAuto ImageGC = "auto"
	// ImageGCOn and ImageGCOff: always, and never.
	ImageGCOn  ImageGC = "on"
	ImageGCOff ImageGC = "off"
)

// UnmarshalText accepts auto, on and off.
func (g *ImageGC) UnmarshalText(text []byte) error {
	return choose(g, text, ImageGCAuto, ImageGCOn, ImageGCOff)
}

// Reclaim tells what is taken back before a pod has to go.
type Reclaim struct {
	// Memory tells whether the kernel is asked for cold memory of pods under soft
	// thresholds.
	Memory ReclaimMemory `yaml:"memory"`
}

// ReclaimMemory tells whether the kernel is asked for cold memory.
type ReclaimMemory string

// Whether it is.
const (
	// ReclaimMemoryAuto: where it can be, on cgroup v2 from Linux 5.19.
	ReclaimMemoryAuto ReclaimMemory = "auto"
	ReclaimMemoryOff  ReclaimMemory = "off"
)

// UnmarshalText accepts auto and off.
func (r *ReclaimMemory) UnmarshalText(text []byte) error {
	return choose(r, text, ReclaimMemoryAuto, ReclaimMemoryOff)
}

// OOMScoreAdj tells what becomes of the oom_score_adj of containers' processes.
type OOMScoreAdj string

// What becomes of them.
const (
	// OOMScoreAdjObserve: evictctl explain shows them.
	OOMScoreAdjObserve OOMScoreAdj = "observe"
	// OOMScoreAdjEnforce: wrong ones are corrected, too, but a kubelet's pods'.
	OOMScoreAdjEnforce OOMScoreAdj = "enforce"
	// OOMScoreAdjOff: they are not looked at.
	OOMScoreAdjOff OOMScoreAdj = "off"
)

// UnmarshalText accepts observe, enforce and off.
func (o *OOMScoreAdj) UnmarshalText(text []byte) error {
	return choose(o, text, OOMScoreAdjObserve, OOMScoreAdjEnforce, OOMScoreAdjOff)
}

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
