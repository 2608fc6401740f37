package main

import (
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/affinity"
)

// liveExplained is all that is known of a pod of a cluster, in JSON.
type liveExplained struct {
	Pod     string `json:"pod"`
	UID     string `json:"uid"`
	Node    string `json:"node,omitempty"`
	Pending bool   `json:"pending"` // not bound to a node
	// NodeFound is false if the Node of the pod does not exist, and if it has none.
	NodeFound bool `json:"nodeFound"`
	// Violates is evictd-controller's verdict, with its settings.
	Violates bool     `json:"violates"`
	Reasons  []string `json:"reasons"`
	// Unreadable has the mistakes of the annotation.
	Unreadable []string `json:"unreadable"`
	// Hold is nil if nothing that was read holds the eviction back, and if the pod does not violate.
	Hold     *liveHold           `json:"hold"`
	Settings string              `json:"settings"`
	Mistakes []string            `json:"mistakes"` // in the settings
	Lease    string              `json:"lease,omitempty"`
	NotRead  []string            `json:"notRead"`
	Events   []liveEvent         `json:"events"`
	Compared []affinityExplained `json:"compared"`

	eventsRead bool
}

// liveHold is a hold in JSON.
type liveHold struct {
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
	Remedy  string `json:"remedy,omitempty"`
}

// liveEvent is an event of evictd-controller in JSON.
type liveEvent struct {
	Last    time.Time `json:"last"`
	Count   int32     `json:"count"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
}

// livePage is the text output of evictctl affinity explain --live.
func livePage(x *liveExplained) *page {
	p := &page{}
	for i, e := range x.Compared {
		if i > 0 {
			p.line("")
		}
		printExplained(p, e)
	}
	if len(x.Compared) > 0 {
		printDifferences(p, x.Compared[0].Differences)
	} else {
		p.line("pod: %s (UID %s)", x.Pod, x.UID)
		p.line("node: %s", orDash(x.Node))
	}
	p.line("")
	printHold(p, x)
	p.line("settings: %s", x.Settings)
	for _, mistake := range x.Mistakes {
		p.line("mistake: %s", mistake)
	}
	if x.Lease != "" {
		p.line("lease: %s", x.Lease)
	}
	for _, what := range x.NotRead {
		p.line("not read: %s", what)
	}
	if len(x.Events) == 0 && x.eventsRead {
		p.line("events: none of evictd-controller: it runs with --affinity=off, or has not seen a violation")
	}
	var rows [][]string
	for _, e := range x.Events {
		rows = append(rows, []string{at(e.Last), strconv.Itoa(int(e.Count)), e.Reason, e.Message})
	}
	p.table([]string{"LAST", "COUNT", "REASON", "MESSAGE"}, rows)
	return p
}

// printHold adds whether the pod violates, and what keeps it from its eviction.
func printHold(p *page, x *liveExplained) {
	switch {
	case len(x.Unreadable) > 0:
		for _, problem := range x.Unreadable {
			p.line("annotation: %s: %s", affinity.Annotation, problem)
		}
		p.line("eviction: no: the annotation can't be read, and the pod is not evicted for it")
		return
	case x.Pending:
		p.line("eviction: no: the pod is Pending, not bound to a node")
		return
	case !x.NodeFound:
		p.line("eviction: no: there is no Node %s, so evictd-controller compares the pod with nothing", x.Node)
		return
	case !x.Violates:
		p.line("eviction: no: the pod does not violate what is enforced during execution")
		return
	}
	p.line("violation: %s", strings.Join(x.Reasons, "; "))
	switch {
	case x.Hold != nil:
		p.line("held: %s: %s", x.Hold.Name, x.Hold.Meaning)
		if x.Hold.Remedy != "" {
			p.line("to do: %s", x.Hold.Remedy)
		}
	case len(x.Mistakes) > 0:
		p.line("held: by the mistakes in the settings: no pod is evicted until they are corrected")
	default:
		p.line("held: nothing in these objects holds it back; evictd-controller may still wait for debounce, storm, rate, replicas, " +
			"loop or refusals, or only observe: see its events")
	}
}
