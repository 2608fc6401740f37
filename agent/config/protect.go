package config

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
)

// Protect selects the pods that are never evicted. A pod is protected if any of
// the fields selects it.
type Protect struct {
	Namespaces []string `yaml:"namespaces"`
	// LabelSelectors have kubectl's syntax: app=db,tier!=cache.
	LabelSelectors []string `yaml:"labelSelectors"`
	// Names are namespace/name.
	Names []string `yaml:"names"`
	// DaemonSets protects the pods of every DaemonSet.
	DaemonSets bool `yaml:"daemonSets"`
}

func (c *Config) checkProtect() {
	const base = "protect"
	c.checkNamespaces(base+".namespaces", c.Protect.Namespaces)
	for i, text := range c.Protect.LabelSelectors {
		path := strict.Index(base+".labelSelectors", i)
		selector, err := labels.Parse(text)
		switch {
		case c.failed(path):
		case err != nil:
			c.errorf(path, "%s is not a label selector; want one such as app=db,tier!=cache", strict.Quote(text))
		case selector.Empty():
			c.errorf(path, "is empty, which selects every pod; want a selector such as app=db")
		}
	}
	for i, name := range c.Protect.Names {
		namespace, pod, found := strings.Cut(name, "/")
		at := strict.Index(base+".names", i)
		if !c.failed(at) && (!found || namespace == "" || pod == "" || strings.Contains(pod, "/")) {
			c.errorf(at, "%s is not a pod; want namespace/name", strict.Quote(name))
		}
	}
}

// checkNamespaces accepts every namespace that a container runtime accepts:
// outside of Kubernetes it need not be a DNS label.
func (c *Config) checkNamespaces(path string, namespaces []string) {
	for i, namespace := range namespaces {
		if at := strict.Index(path, i); !c.failed(at) && (namespace == "" || strings.Contains(namespace, "/")) {
			c.errorf(at, "%s is not a namespace; want one such as kube-system", strict.Quote(namespace))
		}
	}
}

// protected returns a function that returns why a pod is protected, "" if it is
// not. It returns nil if the configuration protects no pod.
func (p *Protect) protected() func(*evict.Pod) string {
	if len(p.Namespaces) == 0 && len(p.LabelSelectors) == 0 && len(p.Names) == 0 && !p.DaemonSets {
		return nil
	}
	selectors := make([]labels.Selector, 0, len(p.LabelSelectors))
	for _, text := range p.LabelSelectors {
		if selector, err := labels.Parse(text); err == nil { // checked already
			selectors = append(selectors, selector)
		}
	}
	return func(pod *evict.Pod) string {
		if slices.Contains(p.Namespaces, pod.Namespace) {
			return "namespace " + pod.Namespace
		}
		if slices.Contains(p.Names, pod.Key()) {
			return "named " + pod.Key()
		}
		for i, selector := range selectors {
			if selector.Matches(labels.Set(pod.Labels)) || pod.RuntimeLabels != nil && selector.Matches(labels.Set(pod.RuntimeLabels)) {
				return "label selector " + p.LabelSelectors[i]
			}
		}
		if p.DaemonSets && pod.OwnedByDaemonSet() {
			return "a DaemonSet's pod"
		}
		return ""
	}
}
