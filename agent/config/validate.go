package config

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/signal"
)

// The values of enforceNodeAllocatable that have an effect.
const (
	enforcePods = "pods"
	enforceNone = "none"
)

// maxSocketPath is the longest path of a unix socket (unix(7), less its NUL).
const maxSocketPath = 107

// check validates the whole configuration, with its defaults, except for fields
// that could not be read.
func (c *Config) check() {
	c.checkThresholds()
	c.checkConditions()
	c.checkAllocatable()
	c.checkReserved("systemReserved", c.SystemReserved)
	c.checkReserved("kubeReserved", c.KubeReserved)
	c.checkImageGC()
	c.checkShutdown()
	c.checkNode()
	c.checkNamespaces("trustAnnotations", c.TrustAnnotations)
	c.checkProtect()
	c.checkNotification()
	c.checkPressure()
	c.checkKube()
	c.checkSelfFencing()
	c.noticeIneffective()
}

func (c *Config) checkConditions() {
	const transition = "evictionPressureTransitionPeriod"
	if p := c.EvictionPressureTransitionPeriod; p < 0 {
		if !c.sources.fromKubelet(transition) {
			c.errorf(transition, "%v is negative; want a duration, or 0s for the default of %v", p, defaultTransitionPeriod)
		} else {
			c.noticef(transition, "%v is negative; conditions end as soon as their threshold is no longer met", p)
			c.EvictionPressureTransitionPeriod = time.Nanosecond
		}
	}
	const grace = "evictionMaxPodGracePeriod"
	if g := c.EvictionMaxPodGracePeriod; g < 0 && c.sources.fromKubelet(grace) {
		c.noticef(grace, "%d is negative; pods get their own grace period, as the kubelet documents; the kubelet itself gives them one second", g)
	}
}

func (c *Config) checkAllocatable() {
	const field = "enforceNodeAllocatable"
	allowed := []string{
		enforcePods, "system-reserved", "system-reserved-compressible", "kube-reserved", "kube-reserved-compressible", enforceNone,
	}
	for i, value := range c.EnforceNodeAllocatable {
		at := strict.Index(field, i)
		switch {
		case c.failed(at):
		case !slices.Contains(allowed, value):
			c.errorf(at, "is %s; want one of %s", strict.Quote(value), strings.Join(allowed, ", "))
		case slices.Contains(c.EnforceNodeAllocatable[:i], value):
			c.errorf(at, "%s is listed twice", value)
		case value == enforceNone && len(c.EnforceNodeAllocatable) > 1:
			c.errorf(at, "none excludes the others; want it alone, or not at all")
		case c.sources.fromKubelet(field):
			c.checkKubeletCgroup(at, value)
		}
	}
}

// checkKubeletCgroup reports errors with which a kubelet refuses to start: a value
// of enforceNodeAllocatable without the field that names its cgroup, or two values
// for the same cgroup (pkg/kubelet/apis/config/validation/validation.go).
func (c *Config) checkKubeletCgroup(at, value string) {
	of, compressible := strings.CutSuffix(value, "-compressible")
	group := map[string]struct{ field, path string }{
		"system-reserved": {"systemReservedCgroup", c.sources.cgroups.System},
		"kube-reserved":   {"kubeReservedCgroup", c.sources.cgroups.Kube},
	}[of]
	switch {
	case group.field != "" && group.path == "":
		c.errorf(at, "%s needs %s", value, group.field)
	case compressible && slices.Contains(c.EnforceNodeAllocatable, of):
		c.errorf(at, "%s excludes %s; give one of them", value, of)
	}
	if perQOS := c.sources.cgroups.PerQOS; perQOS != nil && !*perQOS && value != enforceNone {
		c.errorf(at, "%s needs cgroupsPerQOS: true", value)
	}
}

func (c *Config) checkReserved(field string, amounts Amounts) {
	allowed := []string{"cpu", "memory", "ephemeral-storage", "pid"}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		at := strict.Key(field, name)
		if !slices.Contains(allowed, name) {
			c.errorf(at, "is not a resource that can be reserved; want one of %s", strings.Join(allowed, ", "))
			continue
		}
		q, err := signal.ParseQuantity(amounts[name])
		if err == nil && q.Sign() < 0 {
			err = fmt.Errorf("%q is below 0", amounts[name])
		}
		switch {
		case err != nil && c.sources.fromKubelet(field) && kubeletAccepts(amounts[name]):
			// evictd does not use the value.
			c.noticef(at, "%v; it is ignored", err)
			delete(amounts, name)
		case err != nil:
			c.errorf(at, "%v; want a quantity of at least 0 such as 500Mi", err)
		}
	}
}

func (c *Config) checkImageGC() {
	const (
		high, low = "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"
		minimum   = "imageMinimumGCAge"
		maximum   = "imageMaximumGCAge"
	)
	inRange := true
	for _, f := range []struct {
		name  string
		value int32
	}{{high, c.ImageGCHighThresholdPercent}, {low, c.ImageGCLowThresholdPercent}} {
		if f.value < 0 || f.value > 100 {
			c.errorf(f.name, "is %d; want a percentage from 0 to 100", f.value)
			inRange = false
		}
	}
	if inRange && c.ImageGCLowThresholdPercent >= c.ImageGCHighThresholdPercent && !c.failed(high) && !c.failed(low) {
		at := low
		if c.Origin(low) == OriginDefault {
			at = high
		}
		c.errorf(at, "%s is %d and %s is %d; want the first below the second", low, c.ImageGCLowThresholdPercent, high, c.ImageGCHighThresholdPercent)
	}
	if c.ImageMinimumGCAge < 0 {
		c.errorf(minimum, "%v is negative; want a duration, or 0s for the default of %v", c.ImageMinimumGCAge, defaultImageMinimumGCAge)
	}
	switch {
	case c.ImageMaximumGCAge < 0:
		c.errorf(maximum, "%v is negative; want a duration, or 0s for none", c.ImageMaximumGCAge)
	case c.ImageMaximumGCAge > 0 && c.ImageMaximumGCAge <= c.ImageMinimumGCAge:
		c.errorf(maximum, "%v is not above imageMinimumGCAge, which is %v; want a longer one, or 0s for none", c.ImageMaximumGCAge, c.ImageMinimumGCAge)
	}
}

func (c *Config) checkNode() {
	if why := badEndpoint(c.RuntimeEndpoint); why != "" {
		c.errorf("runtimeEndpoint", "%s %s; want unix:///path/to/socket, /path/to/socket or %s", strict.Quote(c.RuntimeEndpoint), why, RuntimeNone)
	}
	for _, f := range []struct{ name, value string }{{"cgroupRoot", c.CgroupRoot}, {"nodefsPath", c.NodefsPath}} {
		if f.value != "" && (!path.IsAbs(f.value) || path.Clean(f.value) != f.value || strings.ContainsRune(f.value, 0)) {
			c.errorf(f.name, "%s is not an absolute path in its shortest form; want one such as /", strict.Quote(f.value))
		}
	}
	if c.MaxVictims < 1 && !c.failed("maxVictims") {
		c.errorf("maxVictims", "is %d; want at least 1", c.MaxVictims)
	}
	if c.SettleTimeout <= 0 && !c.failed("settleTimeout") {
		c.errorf("settleTimeout", "is %v; want a duration above 0 such as 1s", c.SettleTimeout)
	}
}

// RuntimeNone is the RuntimeEndpoint of a node that has no container runtime.
const RuntimeNone = "none"

// badEndpoint returns why text can't be a container runtime's endpoint, and "" if
// it can.
func badEndpoint(text string) string {
	if text == "" || text == RuntimeNone {
		return ""
	}
	socket, scheme := strings.CutPrefix(text, "unix://")
	switch {
	case !scheme && strings.Contains(text, "://"):
		return "is not a unix socket"
	case !path.IsAbs(socket):
		return "is not an absolute path"
	case path.Clean(socket) == "/":
		return "is a directory"
	case strings.ContainsRune(socket, 0):
		return "contains a NUL byte"
	case len(socket) > maxSocketPath:
		return "is longer than a socket path may be"
	}
	return ""
}
