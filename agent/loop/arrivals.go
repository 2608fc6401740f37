package loop

import (
	"slices"
	"strings"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
)

// arrivals returns the pods that have come to the node under memory pressure and have not
// started, if such pods are refused and evictd-kube reports that, or would in dry run.
func (l *Loop) arrivals(v *View) []evict.Pod {
	if !l.policy.RefuseArrivals || l.newPods == nil || !v.Mode.Reporting && !v.Mode.DryRun {
		return nil
	}
	since := l.policy.PressureSince(&l.state, v.Time)
	if since.IsZero() {
		return nil
	}
	return l.newPods(since, v.Time)
}

// refuseArrivals has the refused pods reported that have not started. Nothing of them is killed.
func (l *Loop) refuseArrivals(v *View) {
	for i := range v.Orders.Refuse {
		o := &v.Orders.Refuse[i]
		rec := l.record(v, o)
		rec.Lane, rec.Confirm, rec.RankingAge, rec.Candidates, rec.Result = "step", "", 0, nil, evict.ResultRefused
		l.log.Warn(execute.InDryRun(rec.DryRun, "refusing pod", "would refuse pod"), "pod", rec.Pod, "uid", rec.UID, "dry_run", rec.DryRun,
			"message", strings.TrimSpace(rec.Message))
		if rec.DryRun {
			rec.Result = evict.ResultDryRun
		}
		if err := l.execute.Refuse(rec, func() error { return l.refuse(o, rec.Decided) }); err != nil {
			l.log.Error("refused pod is not reported to the API server; its kubelet starts it", "pod", rec.Pod, "uid", rec.UID, "error", err)
		}
	}
}

// endsByItself reports whether a pod ends without evictd, so that its eviction is not reported.
func endsByItself(v *View, uid string) bool {
	return slices.ContainsFunc(v.Snapshot.Pods, func(p evict.Pod) bool { return p.UID == uid && p.Ending })
}
