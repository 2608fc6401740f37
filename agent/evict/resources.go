package evict

import (
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/signal"
)

// Amount returns the quantity of a resource, nil where it is absent or the
// resource is one that pods cannot ask for.
func (a Amounts) Amount(r signal.Resource) *resource.Quantity {
	switch r {
	case signal.Memory:
		return a.Memory
	case signal.EphemeralStorage:
		return a.EphemeralStorage
	}
	return nil
}

func (a Amounts) empty() bool { return a.CPU == nil && a.Memory == nil && a.EphemeralStorage == nil }

// podLevel reports whether the resources are of the kind that can be set for a
// pod as a whole: CPU and memory.
func (a Amounts) podLevel() bool { return a.CPU != nil || a.Memory != nil }

// each calls f for the same resource of several Amounts.
func (a *Amounts) each() [3]**resource.Quantity {
	return [3]**resource.Quantity{&a.CPU, &a.Memory, &a.EphemeralStorage}
}

// SetDefaults completes requests as the API server does: a request that is
// absent where a limit is given equals the limit; for the pod as a whole it is
// the containers' sum first (pkg/apis/core/v1/defaults.go).
func (p *Pod) SetDefaults() {
	for _, cs := range [][]Container{p.Containers, p.InitContainers} {
		for i := range cs {
			fill(&cs[i].Resources.Requests, cs[i].Resources.Limits)
		}
	}
	if !p.Resources.Limits.podLevel() {
		return
	}
	storage := p.Resources.Requests.EphemeralStorage
	fill(&p.Resources.Requests, p.aggregate(func(c *Container) Amounts { return c.Resources.Requests }))
	fill(&p.Resources.Requests, p.Resources.Limits)
	p.Resources.Requests.EphemeralStorage = storage // no resource of a pod as a whole
}

func fill(into *Amounts, from Amounts) {
	dst, src := into.each(), from.each()
	for i := range dst {
		if *dst[i] == nil {
			*dst[i] = *src[i]
		}
	}
}

// aggregate returns a kind of resource, requests or limits, for the containers
// of a pod together; see sum.
func (p *Pod) aggregate(of func(*Container) Amounts) Amounts {
	var all Amounts
	for i, q := range all.each() {
		total, given := p.sum(func(c *Container) *resource.Quantity {
			a := of(c)
			return *a.each()[i]
		})
		if given {
			*q = &total
		}
	}
	return all
}

// sum returns what the containers of a pod ask for of one resource, and whether
// any of them does. It is the larger of two amounts: the regular containers and
// the sidecars together, and the largest init container together with the
// sidecars that were started before it
// (k8s.io/component-helpers/resource: AggregateContainerRequests).
func (p *Pod) sum(of func(*Container) *resource.Quantity) (total resource.Quantity, given bool) {
	for i := range p.Containers {
		if q := of(&p.Containers[i]); q != nil {
			total.Add(*q)
			given = true
		}
	}
	var sidecars, largest resource.Quantity
	for i := range p.InitContainers {
		c := &p.InitContainers[i]
		q := of(c)
		if q == nil {
			continue
		}
		given = true
		if c.Sidecar {
			total.Add(*q)
			sidecars.Add(*q)
			continue
		}
		// A copy, because a sum beyond an int64 or with a fraction is behind a
		// pointer.
		with := sidecars.DeepCopy()
		with.Add(*q)
		if with.Cmp(largest) > 0 {
			largest = with
		}
	}
	if largest.Cmp(total) > 0 {
		return largest, given
	}
	return total, given
}

func plus(a, b Amounts) Amounts {
	dst, src := a.each(), b.each()
	for i := range dst {
		switch {
		case *src[i] == nil:
		case *dst[i] == nil:
			*dst[i] = *src[i]
		default:
			sum := (*dst[i]).DeepCopy()
			sum.Add(**src[i])
			*dst[i] = &sum
		}
	}
	return a
}

// Request returns the amount of a resource that the pod requests, as eviction
// ranks by it: the request of the pod as a whole where there is one, else that of
// its containers together, sidecars included; the overhead is added to a request
// that is not 0 (pkg/api/v1/resource/helpers.go: GetResourceRequestQuantity).
// Fractions of a unit are dropped: usage is whole, and above a request exactly
// when it is above the request without its fraction.
func (p *Pod) Request(r signal.Resource) int64 {
	var total int64
	if whole := p.Resources.Requests.Amount(r); whole != nil && r == signal.Memory {
		total = floor(whole)
	} else {
		sum, _ := p.sum(func(c *Container) *resource.Quantity { return c.Resources.Requests.Amount(r) })
		total = floor(&sum)
	}
	if o := p.Overhead.Amount(r); o != nil && total != 0 {
		total = saturatingAdd(total, floor(o))
	}
	return total
}

// floor returns the largest whole number that is not above q, and the largest
// int64 for a sum beyond it, of which Value would keep the lowest bits.
func floor(q *resource.Quantity) int64 {
	if q.CmpInt64(math.MaxInt64) > 0 {
		return math.MaxInt64
	}
	n := q.Value() // the smallest that is not below
	if q.CmpInt64(n) < 0 {
		n--
	}
	return n
}

// storageLimit returns the pod's limit on ephemeral storage, nil where no
// container has one.
func (p *Pod) storageLimit() *resource.Quantity {
	limit := p.aggregate(func(c *Container) Amounts { return c.Resources.Limits }).EphemeralStorage
	if limit != nil && p.Overhead.EphemeralStorage != nil {
		sum := limit.DeepCopy()
		sum.Add(*p.Overhead.EphemeralStorage)
		limit = &sum
	}
	return limit
}
