package affinity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Difference is a place in a pod that the node affinity proposal and Kubernetes interpret in different ways. evictd
// follows Kubernetes.
type Difference struct {
	// Field is the path in the pod.
	Field string
	// Proposal and Kubernetes are the two meanings.
	Proposal, Kubernetes string
}

// Differences returns where the proposal and Kubernetes differ about a pod. The annotation has no such place: what they
// interpret in different ways is refused in it, except matchFields.
func Differences(pod *corev1.Pod) []Difference {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		return nil
	}
	var out []Difference
	const none = "matches no node"
	if s := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; s != nil {
		path := "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution." + termsField
		if len(s.NodeSelectorTerms) == 0 {
			out = append(out, Difference{
				path, "does not say what an empty list matches", none + ", and the API server refuses it",
			})
		}
		for i, t := range s.NodeSelectorTerms {
			at := fmt.Sprintf("%s[%d]", path, i)
			switch {
			case len(t.MatchExpressions)+len(t.MatchFields) == 0:
				out = append(out, Difference{at, "an empty term matches every node, a null one none", none})
			case len(t.MatchFields) > 0:
				out = append(out, Difference{at + "." + fieldsField, "does not have the field", "is ANDed with matchExpressions"})
			}
		}
	}
	for i, t := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		if len(t.Preference.MatchExpressions)+len(t.Preference.MatchFields) == 0 {
			at := preferredPath.Index(i).Child("preference").String()
			out = append(out, Difference{at, "an empty term matches every node with weight 0, a null one none", "adds 0"})
		}
	}
	return out
}
