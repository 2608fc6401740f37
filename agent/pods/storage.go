package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// The annotations for local storage: quantities by the name of a container or of a volume,
// as in "main=1Gi,sidecar=100Mi".
const (
	annotationStorageRequests = annotationPrefix + "ephemeral-storage-requests"
	annotationStorageLimits   = annotationPrefix + "ephemeral-storage-limits"
	annotationEmptyDirLimits  = annotationPrefix + "emptydir-limits"
)

// namedQuantity is the quantity of a container or volume.
type namedQuantity struct {
	name   string
	amount resource.Quantity
}

var errNotNamedQuantities = errors.New("not quantities by name such as main=1Gi,sidecar=100Mi")

// parseNamedQuantities parses a list of quantities with unique names.
func parseNamedQuantities(text string) ([]namedQuantity, error) {
	var all []namedQuantity
	for part := range strings.SplitSeq(text, ",") {
		name, amount, ok := strings.Cut(strings.TrimSpace(part), "=")
		q, err := signal.ParseQuantity(amount)
		if !ok || name == "" || err != nil || q.Sign() < 0 || slices.ContainsFunc(all, func(n namedQuantity) bool { return n.name == name }) {
			return nil, errNotNamedQuantities
		}
		all = append(all, namedQuantity{name, q})
	}
	return all, nil
}

// annotateStorage applies an annotation for local storage, all of it or nothing. A limit is
// also the request if there is none, as in the API server.
func (p *pod) annotateStorage(key, value string) error {
	all, err := parseNamedQuantities(value)
	if err != nil {
		return err
	}
	if key == annotationEmptyDirLimits {
		for i := range all {
			p.spec.Volumes = append(p.spec.Volumes, evict.Volume{Name: all[i].name, Type: evict.EmptyDir, SizeLimit: &all[i].amount})
		}
		return nil
	}
	containers := make([]*evict.Container, len(all))
	for i := range all {
		if containers[i] = p.container(all[i].name); containers[i] == nil {
			return fmt.Errorf("no container is named %s", quoted(all[i].name))
		}
	}
	for i, c := range containers {
		if key == annotationStorageRequests {
			c.Resources.Requests.EphemeralStorage = &all[i].amount
			continue
		}
		c.Resources.Limits.EphemeralStorage = &all[i].amount
		if c.Resources.Requests.EphemeralStorage == nil {
			c.Resources.Requests.EphemeralStorage = &all[i].amount
		}
	}
	return nil
}

// container returns the container with a name; nil if there is none.
func (p *pod) container(name string) *evict.Container {
	for _, cs := range [][]evict.Container{p.spec.Containers, p.spec.InitContainers} {
		for i := range cs {
			if cs[i].Name == name {
				return &cs[i]
			}
		}
	}
	return nil
}
