package kube

import (
	"errors"
	"maps"
)

// AffinityAdmission has the numbers of pods with the annotation evictd.io/required-during-execution that have come to
// the node since the start of evictd-kube, by what has become of them: one of [AffinityResults].
type AffinityAdmission map[string]uint64

// The results of the admission of a pod. All but the first three are pods that are left to the execution half of node
// affinity, in evictd-controller.
const (
	// AffinityMatched: the node matches.
	AffinityMatched = "matched"
	// AffinityRejected: the pod was marked Failed.
	AffinityRejected = "rejected"
	// AffinityWouldReject: it would have been, and evictd is in dry run or away.
	AffinityWouldReject = "would-reject"
	// AffinityInvalid: the annotation does not parse.
	AffinityInvalid = "invalid"
	// AffinityExclusive: the pod must not run twice, and only evictd could say that nothing of it runs.
	AffinityExclusive = "exclusive"
	// AffinityStarted: a container of it has been created.
	AffinityStarted = "started"
	// AffinityNode: the Node is not Ready, cordoned, fenced, drained or shut down.
	AffinityNode = "node"
	// AffinityWorkload: pods of its workload were rejected here before.
	AffinityWorkload = "workload"
	// AffinityRate: too many pods were rejected in the last minute, or too many wait.
	AffinityRate = "rate"
	// AffinityLate: it was not decided soon enough after the binding, or another client kept changing it.
	AffinityLate = "late"
	// AffinityRefused: the API server has refused to mark it Failed.
	AffinityRefused = "refused"
)

// AffinityResults are all results.
var AffinityResults = []string{
	AffinityMatched, AffinityRejected, AffinityWouldReject, AffinityInvalid, AffinityExclusive, AffinityStarted,
	AffinityNode, AffinityWorkload, AffinityRate, AffinityLate, AffinityRefused,
}

// affinityResults has the elements of AffinityResults.
var affinityResults = func() map[string]bool {
	known := map[string]bool{}
	for _, result := range AffinityResults {
		known[result] = true
	}
	return known
}()

// check validates the numbers: evictd-kube may be compromised.
func (a AffinityAdmission) check() error {
	for result := range a {
		if !affinityResults[result] {
			return errors.New("a state with an unknown result of affinity admission")
		}
	}
	return nil
}

// CountAffinity counts a pod that has come to the node. evictd gets the numbers with the next state. Before the first
// call, and without it, the numbers are absent: pods are then not rejected. With an empty result it only begins them.
func (f *Feed) CountAffinity(result string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.affinity == nil {
		f.affinity = AffinityAdmission{}
	}
	if result != "" {
		f.affinity[result]++
	}
}

// affinityNumbers returns a copy of the numbers for a message; nil if there are none.
func (f *Feed) affinityNumbers() AffinityAdmission { return maps.Clone(f.affinity) }
