package scenario

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/evict"
)

// resources is a list of resources as in core/v1.
type resources map[string]quantity

// DecodeYAML decodes the list and reports names that the API server would reject.
func (r *resources) DecodeYAML(d *strict.Decoder, n *yaml.Node) {
	var list map[string]quantity
	d.Decode(n, &list)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if !isResource(name) {
			d.Errorf(strict.Key("", name), "is not a resource; want %s", resourceNames(name, "cpu", "memory", "ephemeral-storage"))
		}
	}
	*r = list
}

// isResource reports whether a container can request a resource of that name. Extended
// resources, whose names have a domain, may have any name.
func isResource(name string) bool {
	switch name {
	case "cpu", "memory", "ephemeral-storage":
		return true
	}
	return isHugePages(name) || strings.Contains(name, "/")
}

func isHugePages(name string) bool { return strings.HasPrefix(name, "hugepages-") }

func resourceNames(name string, names ...string) string {
	if near := strict.Nearest(name, names); near != "" {
		return near
	}
	return strings.Join(names, ", ") + " or hugepages-<size>"
}

// checkPodLevel reports resources that can't be set at pod level.
func (r resources) checkPodLevel(d *strict.Decoder) {
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if isResource(name) && name != "cpu" && name != "memory" && !isHugePages(name) {
			d.Errorf(strict.Key("", name), "is not a pod-level resource; want %s", resourceNames(name, "cpu", "memory"))
		}
	}
}

// amounts returns the resources that decisions use.
func (r resources) amounts() evict.Amounts {
	of := func(name string) *resource.Quantity {
		q, ok := r[name]
		if !ok {
			return nil
		}
		return &q.Quantity
	}
	return evict.Amounts{CPU: of("cpu"), Memory: of("memory"), EphemeralStorage: of("ephemeral-storage")}
}

func (r fileResources) evict() evict.Resources {
	return evict.Resources{Requests: r.Requests.amounts(), Limits: r.Limits.amounts()}
}
