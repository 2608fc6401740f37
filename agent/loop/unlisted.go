package loop

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// updateUnaccounted updates how much of kubepods' memory no listed pod accounts for. Memory
// that a pod frees after it was read, and before the node is, makes the sample too low:
// samples are skipped while victims are in flight, and a low sample is verified by reading
// the pods again. A single low sample would make the known remainder look like an unlisted
// pod until three more lists have come.
func (l *Loop) updateUnaccounted(v *View) {
	if v.Snapshot.ListRequested.IsZero() || len(l.hotKills) > 0 || slices.ContainsFunc(l.state.Victims, inFlight) {
		return
	}
	bytes := v.unaccounted()
	if l.unaccounted.WouldLower(bytes) {
		now := time.Now()
		again, ok := l.inventory.MeasureUnchanged(now)
		if !ok {
			again = l.inventory.Measure(now)
		}
		bytes = max(bytes, (&View{Node: v.Node, Snapshot: again}).unaccounted())
	}
	l.unaccounted.Update(v.Snapshot.ListRequested, bytes)
}

// inFlight reports whether a victim was killed and has not freed what is expected of it. A pod
// that was refused does not count: no threshold waits for its memory, and a controller that
// replaces such pods would keep the loop at its shortest interval.
func inFlight(v evict.Victim) bool {
	return v.Status == evict.Unsettled && !v.Soft && v.Cause != evict.CauseAdmission
}

// mustRepeatForUnlistedPod reports whether the decision must be repeated, because a pod that
// is not listed yet, or one that has grown since it was read, may use what another is about
// to be evicted for. It waits for a new list of the pods if necessary. Disk signals don't
// need it: node-level reclaim comes first, and waits until the disk usage of all pods has been
// measured ([reclaim.Options.Unmeasured]).
func (l *Loop) mustRepeatForUnlistedPod(ctx context.Context, v *View) bool {
	return l.mustRepeatForMemory(ctx, v) || l.mustRepeatForTasks(ctx, v)
}

// mustRepeatForMemory is mustRepeatForUnlistedPod for memory. It reads nothing while the
// listed pods account for the memory of kubepods.
func (l *Loop) mustRepeatForMemory(ctx context.Context, v *View) bool {
	orders := v.orders(signal.Signal.IsMemory)
	if len(orders) == 0 || l.unaccounted.Bytes()+evict.UnaccountedMin > v.unaccounted() {
		return false
	}
	// The pods were read before the node, so one may have grown since. If the walk shows
	// no growth, the files decide: they are exact.
	again := View{Node: v.Node, Snapshot: l.inventory.Measure(time.Now())}
	if again.Snapshot.Walked && l.unaccounted.Bytes()+evict.UnaccountedMin <= again.unaccounted() {
		l.inventory.InvalidateReadings()
		again.Snapshot = l.inventory.Measure(time.Now())
	}
	if l.unaccounted.Bytes()+evict.UnaccountedMin > again.unaccounted() {
		return true
	}
	return l.awaitList(ctx, orders)
}

// unaccountedTasksMin is how many tasks no listed pod accounts for (apart from one for
// each sandbox) before a pod is taken to be missing from the list.
const unaccountedTasksMin = 256

// mustRepeatForTasks is mustRepeatForUnlistedPod for pid.available. The BPF walk does not
// count tasks, so every such decision is repeated with files that have just been read.
func (l *Loop) mustRepeatForTasks(ctx context.Context, v *View) bool {
	orders := v.orders(func(s signal.Signal) bool { return s == signal.PIDAvailable })
	if len(orders) == 0 {
		return false
	}
	all, ok := l.tasks.PodTasks() // before those of each
	l.inventory.InvalidateReadings()
	again := l.inventory.Measure(time.Now())
	unaccounted := all
	for i := range again.Pods {
		unaccounted -= again.Pods[i].Usage.PIDs + 1 // and the sandbox
	}
	least := slices.MinFunc(orders, func(a, b evict.Order) int { return cmp.Compare(a.Expected, b.Expected) }).Expected
	if ok && unaccounted > min(least, unaccountedTasksMin) {
		l.awaitList(ctx, orders)
	}
	return true
}

// awaitList requests a list of the pods and waits for it as long as the orders can wait. It
// reports whether a list has come. One that was requested earlier ends the wait only when
// the time is over: the missing pod may have started since.
func (l *Loop) awaitList(ctx context.Context, orders []evict.Order) bool {
	began := time.Now()
	listed, came := l.inventory.Changed(), false
	l.inventory.Refresh()
	for w := (listWait{began: began}); ; {
		left, known := l.fractionLeft(orders)
		wait, goOn := w.next(left, known, time.Now())
		if !goOn {
			return came
		}
		select {
		case <-ctx.Done():
			return false
		case <-listed:
			listed, came = l.inventory.Changed(), true
			if !l.inventory.LastAttempt().Before(began) {
				return true
			}
		case <-time.After(wait):
		}
	}
}

// fractionLeft returns how much of the orders' thresholds is still available, as the
// smallest fraction; known is false if a signal can't be read. The orders are all for
// memory, or all for tasks.
func (l *Loop) fractionLeft(orders []evict.Order) (left float64, known bool) {
	var now signal.Observations
	if slices.ContainsFunc(orders, func(o evict.Order) bool { return o.Cause == signal.PIDAvailable.String() }) {
		l.tasks.Read(time.Now(), &now)
	} else {
		l.memory.Read(time.Now(), &now)
	}
	left = 1
	for i := range orders {
		s, _ := signal.Parse(orders[i].Cause)
		o := &now[s]
		if o.Status != signal.Observed {
			return 0, false
		}
		// Of a threshold of 0, the fraction is 0 or 1.
		left = min(left, float64(max(0, o.Available))/float64(max(1, orders[i].Threshold)))
	}
	return left, true
}

// listWait decides how long a kill waits for a new list of the pods. A runtime may be slow
// to answer, above all on a node under pressure.
type listWait struct {
	began, checked time.Time
	wait           time.Duration // until the last check
	first, last    float64       // fractions left at the first and the last check
}

const (
	// A kill waits for listTimeout, and for listTimeoutAboveHalf while more than half of
	// the threshold is left. Once less is left it doesn't wait for listTimeout if maxFall
	// has been used since the wait began: at 3 GiB/s, 300 MiB are used in listTimeout, and
	// the kubelet's default threshold is 100 MiB. But it waits for typicalListTime, which
	// a runtime needs for a list, while more than a quarter is left: without the list a
	// pod that did not grow is killed, which gains little time.
	listTimeout, listTimeoutAboveHalf = 100 * time.Millisecond, time.Second
	typicalListTime                   = 20 * time.Millisecond
	maxFall                           = 1.0 / 16
	// minCheckInterval is the shortest time between two readings of what is left.
	minCheckInterval = time.Millisecond
)

// next takes the fraction that is left and returns the time until the next check; goOn is
// false when the kill should not wait any longer. The next check is due in half of the
// time in which the fraction would fall below a half at its present rate, else in twice
// the last wait.
func (w *listWait) next(left float64, known bool, now time.Time) (wait time.Duration, goOn bool) {
	waited := now.Sub(w.began)
	if waited > listTimeoutAboveHalf || waited >= listTimeout && !(known && left > 0.5) {
		return 0, false
	}
	w.wait = min(max(2*w.wait, minCheckInterval), settlingInterval)
	if !known {
		return w.wait, true
	}
	if w.checked.IsZero() {
		w.first, w.last = left, left
	}
	if left <= 0.5 && w.first-left >= maxFall && (waited >= typicalListTime || left <= 0.25) {
		return 0, false
	}
	if fallen := w.last - left; fallen > 0 && left > 0.5 {
		untilHalf := (left - 0.5) / fallen * float64(now.Sub(w.checked))
		w.wait = time.Duration(min(max(untilHalf/2, float64(minCheckInterval)), float64(settlingInterval)))
	}
	w.checked, w.last = now, left
	return w.wait, true
}

// orders returns the evictions for the signals that match.
func (v *View) orders(match func(signal.Signal) bool) []evict.Order {
	return slices.DeleteFunc(slices.Clone(v.Orders.Evict), func(o evict.Order) bool {
		s, ok := signal.Parse(o.Cause)
		return !ok || !match(s)
	})
}

// unaccounted returns how much of kubepods' memory no listed pod accounts for, in bytes.
func (v *View) unaccounted() int64 {
	unknown := v.Node.Kubepods - v.Snapshot.UsageGrowth
	for i := range v.Snapshot.Pods {
		unknown -= v.Snapshot.Pods[i].Usage.Memory
	}
	return unknown
}
