package loop

import (
	"context"
	"slices"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/hot"
	"github.com/evictd/evictd/agent/signal"
)

// hotKillInputs returns the hot path's kills as inputs of a step.
func hotKillInputs(kills []hot.Kill) []evict.HotKill {
	var list []evict.HotKill
	for i := range kills {
		k := &kills[i]
		list = append(list, evict.HotKill{
			Pod: victimAsKilled(k), Threshold: k.Threshold, Observation: k.Observation,
			Deficit: k.Deficit, Expected: k.Expected, Time: k.Decided, DryRun: k.DryRun,
		})
	}
	return list
}

// victimAsKilled returns the pod with the usage that it was killed for. The growth since
// the table is added to its container if it has only one.
func victimAsKilled(k *hot.Kill) *evict.Pod {
	pod := *k.Pod
	grown := k.Memory - pod.Usage.Memory
	pod.Usage.Memory, pod.Usage.Freeable = k.Memory, k.Freeable
	if len(pod.Containers) == 1 && len(pod.InitContainers) == 0 {
		pod.Containers = slices.Clone(pod.Containers)
		pod.Containers[0].Usage.Memory = max(0, pod.Containers[0].Usage.Memory+grown)
	}
	return &pod
}

// refusals returns the outcomes of the kills that were refused because of an essential
// process (act.KillResult.Refused).
func refusals(kills []hot.Kill) (list []evict.Outcome) {
	for i := range kills {
		if k := &kills[i]; k.Result.Refused() {
			list = append(list, evict.Outcome{UID: k.Pod.UID, Err: k.Result.Err})
		}
	}
	return list
}

// adoptHotKills adds the records of the hot path's kills, as if the step had ordered
// them, and makes the executor follow their victims to the end.
func (l *Loop) adoptHotKills(ctx context.Context, v *View, kills []hot.Kill) {
	if len(v.Orders.Adopted) == 0 {
		return
	}
	guard := l.inventory.Guard()
	for i := range v.Orders.Adopted { // one per kill, in the order of the kills
		k, order := &kills[i], v.Orders.Adopted[i]
		s := k.Threshold.Signal
		l.noteCrossing(s, k)
		rec := l.record(v, &order)
		rec.DryRun, rec.Decided, rec.Confirmed, rec.Chosen, rec.RankingAge = k.DryRun, k.Decided, k.Confirmed, k.Chosen, k.RankingAge
		rec.Lane, rec.Confirm = k.Alarm.Lane, "fresh reading on the hot path"
		if k.Unprepared {
			rec.Confirm += ", pod not prepared"
		}
		rec.Candidates = slices.Clone(k.Candidates())
		handle := k.Handle.(*act.KillHandle)
		l.killHandles.remove(order.UID, k.Handle)
		l.logOrder(&rec)
		l.execute.Follow(ctx, rec, l.killedJob(order, v, guard, handle, k.DryRun), handle, k.Result)
		handle.Unref()
	}
}

// noteCrossing notes the crossing for which the hot path killed a pod: it may be over before
// the loop reads the signal.
func (l *Loop) noteCrossing(s signal.Signal, k *hot.Kill) {
	c := &l.crossing[s]
	if c.seen.IsZero() {
		if a := &k.Alarm; a.LastAbove.After(c.lastAbove) && !a.LastAbove.After(k.Decided) {
			c.lastAbove = a.LastAbove
		}
		c.seen = k.Alarm.Seen
		if c.seen.Before(c.lastAbove) || c.seen.After(k.Decided) {
			c.seen = k.Decided
		}
		// Two lanes may see one crossing microseconds apart.
		if c.lastAbove.After(c.seen) {
			c.lastAbove = c.seen
		}
		l.episode[s] = c.seen
	}
}

// killUrgent kills the victims of a step's urgent orders on the hot path's thread. It
// returns the other orders, and those whose pod has no handle that can be opened.
func (l *Loop) killUrgent(ctx context.Context, v *View, guard *evict.Guard) (rest []evict.Order) {
	request := hot.KillRequest{Guard: guard, DryRun: v.Mode.DryRun}
	var orders []evict.Order
	var handles []*act.KillHandle
	for _, o := range v.Orders.Evict {
		if !urgent(&o) {
			rest = append(rest, o)
			continue
		}
		handle := l.killHandles.take(o.UID)
		if handle == nil {
			var err error
			if handle, err = l.killHandles.openHandle(o.UID, &v.Snapshot, guard); err != nil {
				rest = append(rest, o)
				continue
			}
			l.killHandles.take(o.UID) // openHandle has cached it, but the executor closes it
		}
		orders, handles, request.Handles = append(orders, o), append(handles, handle), append(request.Handles, handle)
	}
	if len(orders) == 0 {
		return rest
	}
	if err := l.hot.Execute(ctx, &request, hot.ThreadTimeout); err != nil {
		if ctx.Err() == nil { // else evictd ends
			l.log.Error("hot path does not answer; the loop kills without it", "error", err)
		}
		killer := l.ownKiller
		if v.Mode.DryRun {
			killer = l.ownDryRun
		}
		for i, h := range request.Handles {
			request.Results[i] = killer.Kill(h, guard)
		}
	}
	for i, o := range orders {
		rec := l.record(v, &o)
		l.logOrder(&rec)
		l.execute.Follow(ctx, rec, l.killedJob(o, v, guard, handles[i], v.Mode.DryRun), handles[i], request.Results[i])
	}
	return rest
}

// urgent reports whether an order is for a hard memory threshold, and so for the hot path.
func urgent(o *evict.Order) bool {
	s, ok := signal.Parse(o.Cause)
	return ok && o.Hard && s.IsMemory()
}
