package affinity

// Advice is what a hold means, and what a person can do.
type Advice struct {
	// Meaning is a sentence, or several. Remedy is empty if there is nothing to do.
	Meaning, Remedy string
}

// Advice explains a hold with the words of the table in README.md.
func (h Hold) Advice() Advice { return advice[h] }

// advice has an entry for each hold.
var advice = map[Hold]Advice{
	HoldStatic:      {"A mirror pod of a kubelet's static pod.", "Remove its manifest from the node."},
	HoldDaemonSet:   {"Its DaemonSet would create it on this node again.", "Change the DaemonSet's own node selector."},
	HoldCompleted:   {"It is Succeeded or Failed.", ""},
	HoldTerminating: {"It is being deleted.", ""},
	HoldBare: {
		"No controller would replace it.",
		`Delete it, annotate it with evictd.io/evict-bare: "true", or set bare_pods=evict.`,
	},
	HoldNodeNotReady: {"The node is not Ready: its labels may be out of date.", "Repair the node."},
	HoldNodeStale:    {"The node's Lease is not renewed: its labels may be out of date.", "Repair the node."},
	HoldNodeFenced:   {"The node has a fence that has not ended, or the quarantine taint.", "Left to the fence."},
	HoldNodeGone:     {"The Node object is deleted.", ""},
	HoldNodeDrained: {
		"The node is cordoned, drained or shut down.",
		"Left to that. Uncordon the node if nothing drains it.",
	},
	HoldDebounce: {
		"The violation is younger than the debounce. It begins again after a restart of the controller, when " +
			"the node is Ready and uncordoned again, and when pod or node were found changed.",
		"Wait.",
	},
	HoldStorm: {
		"Pods violate on more than 20 % of the nodes (rounded down, at least one), or no node has a label that " +
			"the pod requires.",
		"Restore the labels, or set storm_confirmed to the id in the event.",
	},
	HoldNotCompared: {
		"More than 100,000 comparisons with nodes in one step; its turn is in one of the next.",
		"Wait.",
	},
	HoldNoNodeFits: {
		"No other Ready, uncordoned node matches its nodeSelector, affinity and annotation and has only taints " +
			"that it tolerates.",
		"Label or add a node, or set when_no_node_fits=evict.",
	},
	HoldWorkloadInFlight: {
		"Another pod of the workload is being evicted, or one that violates is terminating, for " +
			"progress_timeout at most. An evicted pod counts until it is gone, also if its label comes back, " +
			"or if the request had an error and the pod terminates.",
		"Wait.",
	},
	HoldWorkloadNotReady: {
		"The workload has no PodDisruptionBudget, and a replica is missing or not Ready.",
		"Repair it, or give it a PodDisruptionBudget.",
	},
	HoldWorkloadUnknown: {"The replicas of the workload could not be read.", "See the controller's log."},
	HoldNodeInFlight: {
		"Another pod of the node is being evicted, or, after a start of the controller, terminates, as for WorkloadInFlight.",
		"Wait.",
	},
	HoldRate: {
		"The evictions per minute of the cluster are used up, 16 have no answer, or the API server throttled one.",
		"Wait, or raise the rate.",
	},
	HoldLoop: {
		"The replacement was bound to a node that violates already: 1 min, doubling to 1 h. Pods without " +
			"a controller are known again by their generateName or name; of those with other names, all of a " +
			"namespace that were bound to one node that they do not match have one back-off. From the sixth " +
			"eviction of a pod and its replacements in an hour on, the same: the label changes too often.",
		"Run the scheduler extender or the webhook; keep the label stable.",
	},
	HoldRefused: {
		"The eviction API refused, or the eviction was not sent because pod or node had changed: 5 s, " +
			"doubling to 5 min, or to 80 s if it was not sent; 5 min at once if several PodDisruptionBudgets " +
			"select the pod.",
		"See the event.",
	},
	HoldDryRun: {"Nothing else holds it back, and the controller only observes.", "Set --affinity=enforce."},
}
