package kube

import (
	"errors"
	"fmt"
	"reflect"
)

// maxEntry bounds each text of a KubeletConfiguration, in bytes. All of it is also bounded by the
// largest line that evictd reads.
const maxEntry = 256

// check validates a request of evictd.
func (r *ReadKubelet) check() error {
	if len(r.Certificates) > maxCertificates {
		return errors.New("certificates of the kubelet that are too long")
	}
	return nil
}

// check validates the form of a configuration: evictd-kube may be compromised. Values that evictd
// does not understand are not errors.
func (c *KubeletConfiguration) check() error {
	if !isPrintable(c.Error, maxWhy) {
		return errors.New("kubelet's configuration with an error that can't be printed or is too long")
	}
	if c.Error != "" && !reflect.DeepEqual(*c, KubeletConfiguration{Error: c.Error}) {
		return errors.New("kubelet's configuration that is not known, with values")
	}
	for _, m := range []map[string]string{
		c.EvictionHard, c.EvictionSoft, c.EvictionSoftGracePeriod, c.EvictionMinimumReclaim, c.KubeReserved, c.SystemReserved,
	} {
		if len(m) > maxEntries {
			return fmt.Errorf("kubelet's configuration with a map of %d entries; want at most %d", len(m), maxEntries)
		}
		for key, value := range m {
			if !isEntry(key) || !isEntry(value) {
				return fmt.Errorf("kubelet's configuration with the entry %.60q: %.60q, which is not plain text", key, value)
			}
		}
	}
	if len(c.EnforceNodeAllocatable) > maxEntries || len(c.ShutdownGracePeriodByPodPriority) > maxEntries {
		return fmt.Errorf("kubelet's configuration with a list of more than %d entries", maxEntries)
	}
	for _, text := range append([]string{
		c.EvictionPressureTransitionPeriod, c.ShutdownGracePeriod, c.ShutdownGracePeriodCriticalPods, c.CgroupDriver, c.CgroupRoot,
	}, c.EnforceNodeAllocatable...) {
		if !isEntry(text) {
			return fmt.Errorf("kubelet's configuration with the text %.60q, which is not plain", text)
		}
	}
	return nil
}

func isEntry(s string) bool { return len(s) <= maxEntry && isPlain(s) }
