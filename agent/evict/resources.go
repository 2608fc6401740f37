package evict

import (
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/evictd/evictd/agent/signal"
)

// Amount returns the quantity of a resource; nil if it is absent or pods can't request
// the resource.
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

// podLevel reports whether CPU or memory is set, the resources that can be set for a
// pod as a whole.
func (a Amounts) podLevel() bool { return a.CPU != nil || a.Memory != nil }

// fields returns pointers to the fields, so that they can be processed in a loop.
func (a *Amounts) fields() [3]**resource.Quantity {
	return [3]**resource.Quantity{&a.CPU, &a.Memory, &a.EphemeralStorage}
}

// SetDefaults sets absent requests as the API server does
// (pkg/apis/core/v1/defaults.go): to the limit, if there is one. The pod-level requests
// are set to the sum of the containers' requests first.
func (p *Pod) SetDefaults() {
	for _, cs := range [][]Container{p.Containers, p.InitContainers} {
		for i := range cs {
			fillAbsent(&cs[i].Resources.Requests, cs[i].Resources.Limits)
		}
	}
	if !p.Resources.Limits.podLevel() {
		return
	}
	storage := p.Resources.Requests.EphemeralStorage
	fillAbsent(&p.Resources.Requests, p.aggregate(func(c *Container) Amounts { return c.Resources.Requests }))
	fillAbsent(&p.Resources.Requests, p.Resources.Limits)
	p.Resources.Requests.EphemeralStorage = storage // can't be set at pod level
}

// fillAbsent sets the amounts that are absent from into to those of from.
func fillAbsent(into *Amounts, from Amounts) {
	dst, src := into.fields(), from.fields()
	for i := range dst {
		if *dst[i] == nil {
			*dst[i] = *src[i]
		}
	}
}

// aggregate returns the requests or limits, as selected by of, of all containers of the
// pod together; see sumContainers.
func (p *Pod) aggregate(of func(*Container) Amounts) Amounts {
	var all Amounts
	for i, q := range all.fields() {
		total, given := p.sumContainers(func(c *Container) *resource.Quantity {
			a := of(c)
			return *a.fields()[i]
		})
		if given {
			*q = &total
		}
	}
	return all
}

// sumContainers returns the total of one resource for the containers of a pod, and
// whether any of them has it. It is the larger of two amounts: the regular containers
// and the sidecars together, and the largest init container together with the sidecars
// that were started before it (k8s.io/component-helpers/resource:
// AggregateContainerRequests).
func (p *Pod) sumContainers(of func(*Container) *resource.Quantity) (total resource.Quantity, given bool) {
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
		// DeepCopy, because a Quantity above an int64 or with a fraction contains a
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

// plus returns the sum of a and b. If an amount is absent from both, so
// is their sum.
func plus(a, b Amounts) Amounts {
	dst, src := a.fields(), b.fields()
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

// Request returns the pod's request for a resource, as eviction ranks by it
// (pkg/api/v1/resource/helpers.go: GetResourceRequestQuantity): the pod-level request
// if there is one, which is not the case for ephemeral storage unless SummedRequests is set, else that of its containers together, sidecars included. The
// overhead is added to a request that is not 0. Fractions of a unit are dropped. This
// does not change the result of comparing usage with the request, because usage is a
// whole number.
func (p *Pod) Request(r signal.Resource) int64 {
	var total int64
	if whole := p.Resources.Requests.Amount(r); whole != nil && (r == signal.Memory || p.SummedRequests) {
		total = floor(whole)
	} else {
		sum, _ := p.sumContainers(func(c *Container) *resource.Quantity { return c.Resources.Requests.Amount(r) })
		total = floor(&sum)
	}
	if o := p.Overhead.Amount(r); o != nil && total != 0 {
		total = saturatingAdd(total, floor(o))
	}
	return total
}

// floor returns q rounded down, at most math.MaxInt64. Quantity.Value would keep the
// lowest bits of a larger sum.
func floor(q *resource.Quantity) int64 {
	if q.CmpInt64(math.MaxInt64) > 0 {
		return math.MaxInt64
	}
	n := q.Value() // rounded up
	if q.CmpInt64(n) < 0 {
		n--
	}
	return n
}

// storageLimit returns the pod's limit on ephemeral storage; nil if no container has
// one.
func (p *Pod) storageLimit() *resource.Quantity {
	limit := p.aggregate(func(c *Container) Amounts { return c.Resources.Limits }).EphemeralStorage
	if limit != nil && p.Overhead.EphemeralStorage != nil {
		sum := limit.DeepCopy()
		sum.Add(*p.Overhead.EphemeralStorage)
		limit = &sum
	}
	return limit
}
