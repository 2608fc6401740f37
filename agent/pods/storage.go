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

// The annotations about local storage: quantities by the name of a container, or
// of a volume, as in "main=1Gi,sidecar=100Mi".
const (
	annotationStorageRequests = annotationPrefix + "ephemeral-storage-requests"
	annotationStorageLimits   = annotationPrefix + "ephemeral-storage-limits"
	annotationEmptyDirLimits  = annotationPrefix + "emptydir-limits"
)

// named is a quantity and whose it is.
type named struct {
	name   string
	amount resource.Quantity
}

var errNotNamed = errors.New("not quantities by name such as main=1Gi,sidecar=100Mi")

// parseNamed reads a list of quantities by name, each name once.
func parseNamed(text string) ([]named, error) {
	var all []named
	for part := range strings.SplitSeq(text, ",") {
		name, amount, ok := strings.Cut(strings.TrimSpace(part), "=")
		q, err := signal.ParseQuantity(amount)
		if !ok || name == "" || err != nil || q.Sign() < 0 || slices.ContainsFunc(all, func(n named) bool { return n.name == name }) {
			return nil, errNotNamed
		}
		all = append(all, named{name, q})
	}
	return all, nil
}

// annotateStorage takes an annotation about local storage, all of it or nothing.
// A container's limit is also its request where it states none, as the API server
// has it.
func (p *pod) annotateStorage(key, value string) error {
	all, err := parseNamed(value)
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
			return fmt.Errorf("no container is called %s", quoted(all[i].name))
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

// container returns a container of the pod by its name, nil for none.
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
