package config

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/signal"
)

const (
	kubeletAPIVersion = "kubelet.config.k8s.io/v1beta1"
	kubeletKind       = "KubeletConfiguration"
)

// readKubelet decodes the part of a KubeletConfiguration that concerns evictd
// into c.
func (c *Config) readKubelet(name string, data []byte) error {
	d, root, err := strict.ParseLenient(name, data)
	if err != nil {
		return err
	}
	if err := wrongKind(d, root, kubeletKind, map[string]string{Kind: "evictd reads its own with --config"}); err != nil {
		return err
	}
	d.Ignore(ignoredKubeletFields...)
	c.sources.kubelet = d
	c.Files = append(c.Files, name)
	file := struct {
		Header  header          `yaml:",inline"`
		Fields  *KubeletFields  `yaml:",inline"`
		Cgroups *kubeletCgroups `yaml:",inline"`
	}{Fields: &c.KubeletFields, Cgroups: &c.sources.cgroups}
	d.Decode(root, &file)
	file.Header.check(d, kubeletAPIVersion, kubeletKind)
	return nil
}

// kubeletCgroups are fields of a KubeletConfiguration that evictd reads only to
// check whether a kubelet would start with its enforceNodeAllocatable.
type kubeletCgroups struct {
	System string `yaml:"systemReservedCgroup"`
	Kube   string `yaml:"kubeReservedCgroup"`
	PerQOS *bool  `yaml:"cgroupsPerQOS"`
}

// kubeletAmount returns what the kubelet makes of a threshold or minimum reclaim
// that evictd refuses, and a notice about it. Converted is empty if the value has
// no effect in the kubelet; ok is false if the kubelet refuses it too.
func kubeletAmount(text string, reclaim bool) (converted, notice string, ok bool) {
	if strings.HasSuffix(text, "%") {
		number := strings.TrimRight(text, "%")
		share, err := strconv.ParseFloat(number, 32)
		switch {
		case err != nil:
			return "", "", false
		case math.IsNaN(share), math.IsInf(share, 1) && reclaim:
			return "", "in the kubelet this threshold is never met; it is ignored", true
		}
		return number + "%", "is read as " + number + "%, as by the kubelet", true
	}
	if !tooLarge(text) {
		return "", "", false
	}
	largest := strconv.FormatInt(math.MaxInt64, 10)
	return largest, "is read as " + largest + ", the largest quantity that evictd supports", true
}

var (
	// plainNumber is a quantity without a suffix.
	plainNumber = regexp.MustCompile(`^\+?[0-9.]+([eE][-+]?[0-9]+)?$`)
	exponent    = regexp.MustCompile(`[eE][-+]?[0-9]`)
)

// withExponent is a quantity in scientific notation that is not negative.
var withExponent = regexp.MustCompile(`^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$`)

// kubeletAccepts reports whether the kubelet accepts a quantity of systemReserved
// or kubeReserved that evictd refuses: one that is too large, and "Gi", which it
// reads as 0 (cmd/kubelet/app/server.go: parseResourceList).
func kubeletAccepts(text string) bool {
	if exponent.MatchString(text) { // ParseQuantity must not see it, see tooLarge
		return withExponent.MatchString(text)
	}
	q, err := resource.ParseQuantity(text)
	return err == nil && q.Sign() >= 0
}

// tooLarge reports whether text is a quantity above the largest int64.
// resource.ParseQuantity must not see an exponent, because it computes the power
// of ten without a limit on its time.
func tooLarge(text string) bool {
	if plainNumber.MatchString(text) {
		f, _ := strconv.ParseFloat(text, 64) // infinite if out of range
		return f >= math.MaxInt64
	}
	if exponent.MatchString(text) {
		return false
	}
	q, err := resource.ParseQuantity(text)
	return err == nil && q.Cmp(*resource.NewQuantity(math.MaxInt64, resource.DecimalSI)) > 0
}

// moveZeroGraceToHard turns soft thresholds with a grace period of 0 into hard
// ones, which they are in the kubelet (pkg/kubelet/eviction/helpers.go:
// isHardEvictionThreshold). If evictionHard has the signal too, the kubelet keeps
// both and acts when the first of them is met, which is the larger one.
func (c *Config) moveZeroGraceToHard(hard, soft map[signal.Signal]signal.Value) {
	for _, s := range signal.All() {
		name := s.String()
		grace, given := c.EvictionSoftGracePeriod[name]
		value, isSoft := soft[s]
		path := strict.Key(fieldSoftGrace, name)
		if !given || grace != 0 || !isSoft || !c.sources.fromKubelet(fieldSoftGrace) {
			continue
		}
		notice := "is 0, which makes the threshold a hard one, as in the kubelet"
		other, both := hard[s]
		if both {
			value = signal.Larger(value, other)
			notice += "; of it and that of evictionHard, " + other.String() + ", the one that is reached first counts"
		}
		if !both || value.String() != other.String() {
			hard[s] = value
			c.EvictionHard[name] = value.String()
			c.origin[strict.Key(fieldHard, name)] = c.Origin(strict.Key(fieldSoft, name))
		}
		c.noticef(path, "%s", notice)
		delete(soft, s)
		delete(c.EvictionSoft, name)
		delete(c.EvictionSoftGracePeriod, name)
	}
}

// ignoredKubeletFields are the fields of a KubeletConfiguration that evictd does
// not read, up to Kubernetes 1.37 and back to the first v1beta1.
var ignoredKubeletFields = []string{
	"address", "allowedUnsafeSysctls", "authentication", "authorization", "cgroupDriver", "cgroupRoot",
	"clusterDNS", "clusterDomain", "configMapAndSecretChangeDetectionStrategy", "configTrialDuration",
	"containerLogMaxFiles", "containerLogMaxSize", "containerLogMaxWorkers", "containerLogMonitorInterval",
	"containerRuntimeEndpoint", "contentType", "cpuCFSQuota", "cpuCFSQuotaPeriod", "cpuManagerPolicy",
	"cpuManagerPolicyOptions", "cpuManagerReconcilePeriod", "crashLoopBackOff", "enableCAdvisorJSONEndpoints",
	"enableContentionProfiling", "enableControllerAttachDetach", "enableDebugFlagsHandler", "enableDebuggingHandlers",
	"enableProfilingHandler", "enableServer", "enableSystemLogHandler", "enableSystemLogQuery", "eventBurst",
	"eventRecordQPS", "failCgroupV1", "failSwapOn", "featureGates", "fileCheckFrequency",
	"hairpinMode", "healthzBindAddress", "healthzPort", "httpCheckFrequency", "imagePullCredentialsVerificationPolicy",
	"imageServiceEndpoint", "iptablesDropBit", "iptablesMasqueradeBit", "kernelMemcgNotification", "kubeAPIBurst",
	"kubeAPIQPS", "kubeletCgroups", "localStorageCapacityIsolation", "logging",
	"makeIPTablesUtilChains", "maxOpenFiles", "maxParallelImagePulls", "maxPods", "memoryManagerPolicy",
	"memoryReservationPolicy", "memorySwap", "memoryThrottlingFactor", "nodeLeaseDurationSeconds",
	"nodeStatusMaxImages", "nodeStatusReportFrequency", "nodeStatusUpdateFrequency", "oomScoreAdj", "podCIDR",
	"podHousekeepingPeriod", "podLogsDir", "podPidsLimit", "podsPerCore", "port", "preloadedImagesVerificationAllowlist",
	"protectKernelDefaults", "providerID", "qosReserved", "readOnlyPort", "registerNode", "registerWithTaints",
	"registryBurst", "registryPullQPS", "reservedMemory", "reservedSystemCPUs", "resolvConf", "rotateCertificates",
	"runOnce", "runtimeRequestTimeout", "seccompDefault", "serializeImagePulls", "serverTLSBootstrap",
	"showHiddenMetricsForVersion", "singleProcessOOMKill", "staticPodPath", "staticPodURL", "staticPodURLHeader",
	"streamingConnectionIdleTimeout", "syncFrequency", "systemCgroups", "tlsCertFile",
	"tlsCipherSuites", "tlsCurvePreferences", "tlsMinVersion", "tlsPrivateKeyFile", "topologyManagerPolicy",
	"topologyManagerPolicyOptions", "topologyManagerScope", "tracing", "userNamespaces", "volumePluginDir",
	"volumeStatsAggPeriod", "draManagerReconcilePeriod",
}
