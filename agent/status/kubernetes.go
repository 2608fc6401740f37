package status

import (
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/kube"
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
