package status

import (
	"strings"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/loop"
)

// kubernetesStatus returns the status of evictd-kube and its facts.
func kubernetesStatus(facts *kube.Facts, now time.Time) *control.Kubernetes {
	s := facts.Status(now)
	k := &control.Kubernetes{
		Connected: s.Connected, Software: s.Software, Node: s.Node, Watching: s.Watching, Error: s.Error,
		AgeSeconds: control.Age(s.AsOf, now), Pods: s.Pods, Used: s.Used, Refusals: s.Refusals,
	}
	for _, r := range s.Refused {
		k.Refused = append(k.Refused, control.Refusal(r))
	}
	return k
}

// factsOf describes the facts about a pod; nil if there are none.
func factsOf(facts *kube.Facts, uid string, now time.Time) *control.Facts {
	if facts == nil {
		return nil
	}
	about, ok := facts.Describe(uid)
	if !ok {
		return nil
	}
	f := &control.Facts{Owner: about.Owner, AgeSeconds: control.Age(about.AsOf, now), Refused: about.Refused}
	switch {
	case about.Gone:
		f.Note = "the pod is no longer in the API"
	case about.Reduced:
		f.Note = "labels, tolerations, volumes or single containers are left out: they are not valid, or there is no room for them"
	}
	return f
}

// explainFacts adds to the details of exempt pods why their facts are not used: a pod without
// facts has an unknown priority, which may be why it is exempt.
func (b *Backend) explainFacts(v *loop.View, exempt []evict.Exempt) []evict.Exempt {
	if b.o.Facts == nil {
		return exempt
	}
	pods := make(map[string]*evict.Pod, len(v.Snapshot.Pods))
	for i := range v.Snapshot.Pods {
		pods[v.Snapshot.Pods[i].UID] = &v.Snapshot.Pods[i]
	}
	for i := range exempt {
		x := &exempt[i]
		if pod := pods[x.UID]; pod == nil || !pod.Kubelet || pod.Static {
			continue
		}
		if why := unusedFacts(b.o.Facts, x.UID); why != "" {
			x.Detail = strings.TrimPrefix(x.Detail+"; "+why, "; ")
		}
	}
	return exempt
}

// unusedFacts returns why a pod has no facts that evictd uses; "" if it has.
func unusedFacts(facts *kube.Facts, uid string) string {
	switch about, ok := facts.Describe(uid); {
	case !ok:
		return "no facts of the API server"
	case about.Refused != "":
		return "facts of the API server are refused: " + about.Refused
	}
	return ""
}
