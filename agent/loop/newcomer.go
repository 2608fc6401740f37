package loop

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// sum takes in how much of what all pods hold none of the known accounts for. What a
// pod gives back after it was read, and before the node is, is missing from that:
// nothing counts while victims are on their way, and a low figure only if the pods,
// read once more, still make it one.
func (l *Loop) sum(v *View) {
	if v.Snapshot.Asked.IsZero() || len(l.kills) > 0 || slices.ContainsFunc(l.state.Victims, onTheWay) {
		return
	}
	bytes := v.unexplained()
	if l.unexplained.Lowers(bytes) {
		now := time.Now()
		again, ok := l.inventory.Still(now)
		if !ok {
			again = l.inventory.Measure(now)
		}
		bytes = max(bytes, (&View{Node: v.Node, Snapshot: again}).unexplained())
	}
	l.unexplained.See(v.Snapshot.Asked, bytes)
}

// onTheWay reports whether a victim was killed and has not brought what is expected
// of it.
func onTheWay(v evict.Victim) bool { return v.Status == evict.Unsettled && !v.Soft }

// newcomer reports whether a pod is about to be evicted for what one holds that is
// not listed yet, or has come to hold since it was read, and that is known by now.
// For disks it has nothing to do: node-level reclaim goes first, and is not done before
// the disk usage of all pods has been measured ([reclaim.Options.Unmeasured]).
func (l *Loop) newcomer(ctx context.Context, v *View) bool {
	return l.memoryNewcomer(ctx, v) || l.taskNewcomer(ctx, v)
}

// memoryNewcomer is newcomer for memory. Where the known pods explain what all pods
// use it costs nothing.
func (l *Loop) memoryNewcomer(ctx context.Context, v *View) bool {
	about := v.orders(signal.Signal.IsMemory)
	if len(about) == 0 || l.unexplained.Known()+evict.Stranger > v.unexplained() {
		return false
	}
	// The pods were read before the node: a pod may have grown meanwhile. If a walk
	// says that none has, their files have the last word.
	again := View{Node: v.Node, Snapshot: l.inventory.Measure(time.Now())}
	if again.Snapshot.Walked && l.unexplained.Known()+evict.Stranger <= again.unexplained() {
		l.inventory.Forget()
		again.Snapshot = l.inventory.Measure(time.Now())
	}
	if l.unexplained.Known()+evict.Stranger > again.unexplained() {
		return true
	}
	return l.awaitList(ctx, about)
}

// strangeTasks is how many tasks all pods may have beyond those that the known ones
// account for, and one for each, before somebody is missing from the list.
const strangeTasks = 256

// taskNewcomer is newcomer for pid.available. No walk tells of tasks: who is about to
// go for them is decided once more by files that have just been read.
func (l *Loop) taskNewcomer(ctx context.Context, v *View) bool {
	about := v.orders(func(s signal.Signal) bool { return s == signal.PIDAvailable })
	if len(about) == 0 {
		return false
	}
	all, ok := l.tasks.Pods() // before those of each
	l.inventory.Forget()
	again := l.inventory.Measure(time.Now())
	strange := all
	for i := range again.Pods {
		strange -= again.Pods[i].Usage.PIDs + 1 // and the sandbox
	}
	least := slices.MinFunc(about, func(a, b evict.Order) int { return cmp.Compare(a.Expected, b.Expected) }).Expected
	if ok && strange > min(least, strangeTasks) {
		l.awaitList(ctx, about)
	}
	return true
}

// awaitList asks for a list and waits for it as long as the orders can wait. It
// reports whether any has come. One that was asked for before is not enough: who is
// missing may have begun since.
func (l *Loop) awaitList(ctx context.Context, about []evict.Order) bool {
	began := time.Now()
	listed, came := l.inventory.Changed(), false
	l.inventory.Refresh()
	for w := (listWait{began: began}); ; {
		left, known := l.shareLeft(about)
		wait, goOn := w.look(left, known, time.Now())
		if !goOn {
			return came
		}
		select {
		case <-ctx.Done():
			return false
		case <-listed:
			listed, came = l.inventory.Changed(), true
			if !l.inventory.Tried().Before(began) {
				return true
			}
		case <-time.After(wait):
		}
	}
}

// shareLeft returns what is left of what the orders' thresholds keep back, as the least
// share of one of them; known is false where one can't be read. The orders are all for
// memory, or all for tasks.
func (l *Loop) shareLeft(orders []evict.Order) (left float64, known bool) {
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
		// A threshold of 0 keeps nothing back: then nothing is left of it, or all.
		left = min(left, float64(max(0, o.Available))/float64(max(1, orders[i].Threshold)))
	}
	return left, true
}

// listWait decides how long a kill waits for a new list of the pods. A runtime can be
// slow to answer, above all when a pod is out of hand.
type listWait struct {
	began, seen time.Time
	wait        time.Duration // the last one
	first, last float64       // shares that were left
}

const (
	// A kill waits for shortLook, and for longLook while more than half of what the
	// threshold keeps back is left. Once less is left it goes ahead before shortLook, too,
	// if fallShare has been used up since the wait began: 300 MiB in shortLook at
	// 3 GiB/s, where the kubelet's default threshold is 100 MiB. It waits for usualList,
	// which a runtime needs for a list, as long as more than a quarter is left: without
	// the list an innocent pod is killed, which gains little time against such a pod.
	shortLook, longLook = 100 * time.Millisecond, time.Second
	usualList           = 20 * time.Millisecond
	fallShare           = 1.0 / 16
	// leastLook is the shortest time between two readings of what is left.
	leastLook = time.Millisecond
)

// look takes in what is left, and returns when to look again; goOn is false when the kill
// waits no longer. It looks again in half of the time after which less than half is left
// if it goes on falling as fast, else in twice the time of the last wait.
func (w *listWait) look(left float64, known bool, now time.Time) (wait time.Duration, goOn bool) {
	waited := now.Sub(w.began)
	if waited > longLook || waited >= shortLook && !(known && left > 0.5) {
		return 0, false
	}
	w.wait = min(max(2*w.wait, leastLook), settling)
	if !known {
		return w.wait, true
	}
	if w.seen.IsZero() {
		w.first, w.last = left, left
	}
	if left <= 0.5 && w.first-left >= fallShare && (waited >= usualList || left <= 0.25) {
		return 0, false
	}
	if fallen := w.last - left; fallen > 0 && left > 0.5 {
		half := (left - 0.5) / fallen * float64(now.Sub(w.seen))
		w.wait = time.Duration(min(max(half/2, float64(leastLook)), float64(settling)))
	}
	w.seen, w.last = now, left
	return w.wait, true
}

// orders returns the evictions for signals that are such.
func (v *View) orders(such func(signal.Signal) bool) []evict.Order {
	return slices.DeleteFunc(slices.Clone(v.Orders.Evict), func(o evict.Order) bool {
		s, ok := signal.Parse(o.Cause)
		return !ok || !such(s)
	})
}

// unexplained is how much of what all pods hold none of the known accounts for, in
// bytes.
func (v *View) unexplained() int64 {
	unknown := v.Node.Kubepods - v.Snapshot.Moved
	for i := range v.Snapshot.Pods {
		unknown -= v.Snapshot.Pods[i].Usage.Memory
	}
	return unknown
}
