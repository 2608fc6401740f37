package pods

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// The annotations by which a pod's author gives evictd data that no runtime has.
const (
	annotationPrefix   = "evictd.io/"
	annotationPriority = annotationPrefix + "priority"
	annotationRequest  = annotationPrefix + "memory-request"
	annotationCritical = annotationPrefix + "critical"
	// configMirror marks, in the API, the mirror pod of a static pod. No kubelet runs such a
	// pod, so on a sandbox it was written by the pod's author
	// (pkg/kubelet/types/pod_update.go).
	configMirror = "kubernetes.io/config.mirror"
)

// criticalPriority is the lowest priority that makes a pod critical
// (pkg/apis/scheduling/types.go: SystemCriticalPriority).
const criticalPriority = 2_000_000_000

// annotations applies the pod's annotations that are trusted, and reports the others as
// ignored.
func (d *deduction) annotations(p *pod) {
	all := d.listed.Sandbox.Annotations
	ignore := func(key, reason string) {
		p.explanation.Ignored = append(p.explanation.Ignored, fmt.Sprintf("%s=%s: %s", strings.Trim(quoted(key), `"`), quoted(all[key]), reason))
	}
	if _, ok := all[configMirror]; ok {
		ignore(configMirror, "no kubelet runs a mirror pod; the pod's author wrote it")
	}
	made := evict.MadeByKubelet(all)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(key, annotationPrefix) {
			continue
		}
		if d.spec != nil && !exempts(key, all[key]) { // a specification does not lift an exemption
			ignore(key, "the pod's specification is known")
			continue
		}
		if made && !slices.Contains(d.rules.trustedNamespaces, d.listed.Namespace) {
			ignore(key, "a kubelet's pod, and trustAnnotations does not list its namespace")
			continue
		}
		if err := p.annotate(key, all[key]); err != nil {
			ignore(key, err.Error())
		}
	}
}

// exempts reports whether an annotation can make a pod critical.
func exempts(key, value string) bool {
	if key == annotationPriority {
		n, err := strconv.ParseInt(value, 10, 32)
		return err == nil && n >= criticalPriority
	}
	return key == annotationCritical
}

// annotate applies one trusted annotation.
func (p *pod) annotate(key, value string) error {
	switch key {
	case annotationPriority:
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return fmt.Errorf("not a whole number from %d to %d", -1<<31, 1<<31-1)
		}
		if !p.critical { // critical takes precedence; its key sorts first
			p.spec.Priority = new(int32(n))
		}
	case annotationCritical:
		switch value {
		case "true":
			p.spec.Priority, p.critical = new(int32(criticalPriority)), true
		case "false":
		default:
			return errors.New("neither true nor false")
		}
	case annotationRequest:
		q, err := signal.ParseQuantity(value)
		if err != nil || q.Sign() < 0 {
			return errors.New("not a quantity such as 512Mi")
		}
		p.spec.Resources.Requests.Memory = &q
		if p.spec.QoS == evict.BestEffort && q.Sign() > 0 {
			p.spec.QoS, p.explanation.QoSOrigin = evict.Burstable, "annotation"
		}
		p.explanation.RequestOrigin, p.declared = "annotation", true
	case annotationStorageRequests, annotationStorageLimits, annotationEmptyDirLimits:
		return p.annotateStorage(key, value)
	default:
		return errors.New("unknown annotation")
	}
	return nil
}

// quoted returns untrusted text without control characters, truncated.
func quoted(s string) string {
	if len(s) > 100 {
		return strconv.QuoteToASCII(s[:100]) + "…"
	}
	return strconv.QuoteToASCII(s)
}
