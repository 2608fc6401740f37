package evict

import (
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// onFullDisk is a node whose nodefs.available is 10 GiB below the threshold and
// whose reclaims have been done.
func onFullDisk(t *testing.T, pods ...Pod) (l *timeline, next func() Orders) {
	l = newTimeline(t, hard(signal.NodeFsAvailable, "20Gi"))
	l.in.Policy.Layout = ImageFs // one reclaim before each choice
	l.in.Pods = pods
	l.observe(signal.NodeFsAvailable, 10*gi)
	at := time.Duration(0)
	return l, func() Orders {
		t.Helper()
		wantReclaim(t, "before the choice", l.step(at), ReclaimContainers)
		at += time.Millisecond
		return l.step(at, Outcome{})
	}
}

func logging(name string, bytes int64, options ...option) Pod {
	return aPod(name, append(options, func(p *Pod) { p.Containers[0].Usage.Logs = bytes })...)
}

func diskUnknown(p *Pod) { p.DiskUnknown = true }

// A pod of which nothing could be measured does not hide behind that: it ranks
// last among its equals and goes once it is the only one left.
func TestUnmeasuredDiskRanksLast(t *testing.T) {
	_, next := onFullDisk(t,
		logging("a", 100*gi, diskUnknown), logging("b", gi), logging("c", 0, withPriority(5)))
	o := next()
	wantVictims(t, "first", o, "b")
	if got, want := ranking(o.Ranking), []string{"b", "a", "c"}; !slices.Equal(got, want) || !o.Ranking[1].NoStats || o.Ranking[1].Usage != 0 {
		t.Errorf("ranking %v, unmeasured pod %+v; want %v and no usage", got, o.Ranking[1], want)
	}
	if len(o.Exempt) != 0 {
		t.Errorf("exempt %+v; want none", o.Exempt)
	}
	l, next := onFullDisk(t, logging("a", 100*gi, diskUnknown))
	o = next()
	wantVictims(t, "alone", o, "a")
	if o.Evict[0].Annotations != nil {
		t.Errorf("annotations %v for an unmeasured pod; want none", o.Evict[0].Annotations)
	}
	if pod := l.pod("a"); pod.usage(signal.MemoryAvailable, ImageFs) != pod.Usage.Memory {
		t.Error("the memory of a pod with unmeasured disk usage does not count")
	}
}
