package loop

import (
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/signal"
)

// fired turns what the hot path struck into inputs of a step.
func fired(kills []hot.Kill) []evict.Fired {
	var list []evict.Fired
	for i := range kills {
		k := &kills[i]
		list = append(list, evict.Fired{
			Pod: chosen(k), Threshold: k.Threshold, Observation: k.Observation,
			Deficit: k.Deficit, Expected: k.Expected, Time: k.Decided, DryRun: k.DryRun,
		})
	}
	return list
}

// chosen returns the pod with the usage that it was chosen for. What has grown
// is told of the container where there is only one.
func chosen(k *hot.Kill) *evict.Pod {
	pod := *k.Pod
	grown := k.Memory - pod.Usage.Memory
	pod.Usage.Memory, pod.Usage.Freeable = k.Memory, k.Freeable
	if len(pod.Containers) == 1 && len(pod.InitContainers) == 0 {
		pod.Containers = slices.Clone(pod.Containers)
		pod.Containers[0].Usage.Memory = max(0, pod.Containers[0].Usage.Memory+grown)
	}
	return &pod
}

// refusals are the outcomes of kills that nobody will carry out: the pod holds
// what must live.
func refusals(kills []hot.Kill) (list []evict.Outcome) {
	for i := range kills {
		if k := &kills[i]; k.Strike.Refused() {
			list = append(list, evict.Outcome{UID: k.Pod.UID, Err: k.Strike.Err})
		}
	}
	return list
}

// adopt makes the records of what the hot path struck, as if the step had
// ordered it, and has it followed.
func (l *Loop) adopt(ctx context.Context, v *View, kills []hot.Kill) {
	for i := range v.Orders.Adopted {
		k, order := &kills[i], v.Orders.Adopted[i]
		s := k.Threshold.Signal
		l.crossed(s, k)
		rec := l.record(v, &order)
		rec.DryRun, rec.Decided, rec.Confirmed, rec.Chosen, rec.RankingAge = k.DryRun, k.Decided, k.Confirmed, k.Chosen, k.RankingAge
		rec.Lane, rec.Confirm = k.Raise.Lane, "fresh reading on the hot path"
		if k.Cold {
			rec.Confirm += ", pod not held beforehand"
		}
		rec.Candidates = slices.Clone(k.Candidates())
		hold := k.Hold.(*act.Hold)
		l.holds.forget(order.UID, k.Hold)
		l.logOrder(&rec)
		l.execute.Follow(ctx, rec, order, hold, k.Strike)
		hold.Drop()
	}
}

// crossed notes the crossing for which a pod was struck, which may be over
// before the loop has seen it.
func (l *Loop) crossed(s signal.Signal, k *hot.Kill) {
	c := &l.crossing[s]
	if c.seen.IsZero() {
		if r := &k.Raise; r.LastAbove.After(c.lastAbove) && !r.LastAbove.After(k.Decided) {
			c.lastAbove = r.LastAbove
		}
		c.seen = k.Raise.Seen
		if c.seen.Before(c.lastAbove) || c.seen.After(k.Decided) {
			c.seen = k.Decided
		}
		// Two observers may disagree by microseconds.
		if c.lastAbove.After(c.seen) {
			c.lastAbove = c.seen
		}
		l.episode[s] = c.seen
	}
}

// hotPatience is how long the hot path may take to begin with an order, before
// the loop strikes by itself.
const hotPatience = 100 * time.Millisecond

// strike kills the victims of a step that are urgent, by way of the hot path,
// and returns the orders that it could not take, because a pod can't be held.
func (l *Loop) strike(ctx context.Context, v *View, guard *evict.Guard) (rest []evict.Order) {
	order := hot.Order{Guard: guard, DryRun: v.Mode.DryRun}
	var orders []evict.Order
	var struck []*act.Hold
	for _, o := range v.Orders.Evict {
		if !urgent(&o) {
			rest = append(rest, o)
			continue
		}
		hold := l.holds.take(o.UID)
		if hold == nil {
			var err error
			if hold, err = l.holds.prepare(o.UID, &v.Snapshot, guard); err != nil {
				rest = append(rest, o)
				continue
			}
			l.holds.take(o.UID)
		}
		orders, struck, order.Pods = append(orders, o), append(struck, hold), append(order.Pods, hold)
	}
	if len(orders) == 0 {
		return rest
	}
	if err := l.hot.Execute(ctx, &order, hotPatience); err != nil {
		l.log.Error("the hot path does not answer, killing without it", "error", err)
		own := l.own
		if v.Mode.DryRun {
			own = l.ownLook
		}
		for i, p := range order.Pods {
			order.Strikes[i] = own.Strike(p, guard)
		}
	}
	for i, o := range orders {
		rec := l.record(v, &o)
		l.logOrder(&rec)
		l.execute.Follow(ctx, rec, o, struck[i], order.Strikes[i])
	}
	return rest
}

// urgent reports whether an order is one for the hot path: for a hard threshold
// of memory.
func urgent(o *evict.Order) bool {
	s, ok := signal.Parse(o.Cause)
	return ok && o.Hard && s.IsMemory()
}
