package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/control"
)

// kubernetesLine describes the connection to evictd-kube and its facts.
func kubernetesLine(k *control.Kubernetes) string {
	text := "evictd-kube is not connected"
	switch {
	case k.Connected && k.Watching:
		text = fmt.Sprintf("evictd-kube %s watches the pods of node %s", k.Software, k.Node)
	case k.Connected:
		text = fmt.Sprintf("evictd-kube %s does not watch the pods of node %s", k.Software, k.Node)
	}
	if k.Error != "" {
		text += ": " + k.Error
	}
	text += fmt.Sprintf("; facts about %d pods, %d of them in use, %s", k.Pods, k.Used, factsAge(k.AgeSeconds))
	if k.Refusals > 0 {
		text += fmt.Sprintf("; %d refused since the start", k.Refusals)
	}
	return text
}

// reportsLine describes the reports of evictions to the API server.
func reportsLine(k *control.Kubernetes) string {
	o := k.Orders
	if o == nil || o.Begun+o.Rejected == 0 && o.Pending == 0 && k.CannotReport != "" {
		return "evictions are not reported: " + orDash(k.CannotReport)
	}
	text := fmt.Sprintf("%d since the start, %d pending", o.Begun, o.Pending)
	if o.UnansweredSeconds != nil {
		text += fmt.Sprintf(", %d without a final answer for up to %s", o.Unanswered, seconds(*o.UnansweredSeconds))
	}
	text += counts([]optionalCount{
		{o.Undone, ", %d undone by the kubelet and written again"}, {o.TimedOut, ", %d given up"}, {o.Rejected, ", %d rejected for lack of room"},
	})
	text += fmt.Sprintf("; fences: %d set", o.Fences)
	text += counts([]optionalCount{
		{uint64(o.FencesUnlifted), ", %d can't be lifted"}, {o.FencesLifted, ", %d lifted"}, {o.FencesFailed, ", %d failed"},
		{o.FencesChanged, ", %d changes by other programs"},
		{o.Revived, "; pods that ran again: %d"}, {uint64(o.Forbidden), "; pods exempt after a refused report: %d"},
	})
	if k.CannotReport != "" {
		text += "; evictd-kube can't report: " + k.CannotReport
	}
	return text
}

// nodeObjectLine describes the conditions and taints on the Node object.
func nodeObjectLine(n *control.NodeObject, now time.Time) string {
	switch {
	case n == nil:
		return "no conditions are maintained"
	case !n.Decided:
		return "not decided yet; conditions and taints stay as they are"
	}
	var isTrue, differ []string
	maintained := false
	for _, c := range n.Conditions {
		maintained = maintained || c.Status != "Unknown"
		if c.Status == "True" {
			isTrue = append(isTrue, fmt.Sprintf("%s for %s", c.Type, between(c.Since, now)))
		}
		if c.Written != "" && c.Written != c.Status {
			differ = append(differ, c.Type+" is "+c.Written)
		}
	}
	text := "no conditions are maintained"
	if maintained {
		text = "no condition is true"
	}
	if len(isTrue) > 0 {
		text = strings.Join(isTrue, ", ")
	}
	if n.UnwrittenSeconds != nil {
		text += ", not written for " + seconds(*n.UnwrittenSeconds)
		if len(differ) > 0 {
			text += " (there " + strings.Join(differ, ", ") + ")"
		}
	}
	if n.Why != "" {
		text += ": " + n.Why
	}
	return text
}

// affinityLine describes the pods with a node affinity during execution that have come to the node.
func affinityLine(results map[string]uint64) string {
	var texts []string
	for _, result := range slices.Sorted(maps.Keys(results)) {
		texts = append(texts, fmt.Sprintf("%d %s", results[result], result))
	}
	if len(texts) == 0 {
		return "no pods with a node affinity during execution have come to the node"
	}
	return "pods that came to the node: " + strings.Join(texts, ", ")
}

// optionalCount is a count with its format.
type optionalCount struct {
	n      uint64
	format string
}

// counts formats the counts that are not 0.
func counts(list []optionalCount) (text string) {
	for _, c := range list {
		if c.n > 0 {
			text += fmt.Sprintf(c.format, c.n)
		}
	}
	return text
}

var orderHeads = []string{"REPORTING", "FOR", "ANSWER", "POD"}

// orderRows returns one row for each order without a final answer, the oldest first.
func orderRows(k *control.Kubernetes, now time.Time) [][]string {
	if k == nil || k.Orders == nil {
		return nil
	}
	var rows [][]string
	for _, o := range k.Orders.Oldest {
		if o.Final {
			continue
		}
		pod := o.Pod
		for _, more := range []string{o.Exclusive, o.Why} {
			if more != "" {
				pod += "; " + more
			}
		}
		rows = append(rows, []string{o.Stage, between(o.Since, now), orDash(o.Answer), pod})
	}
	if more := k.Orders.Unanswered - len(rows); more > 0 {
		rows = append(rows, []string{"", "", "", fmt.Sprintf("and %d more", more)})
	}
	return rows
}

func factsAge(age *float64) string {
	if age == nil {
		return "of unknown age"
	}
	return seconds(*age) + " old"
}

// factsText describes the facts about a candidate; "" without facts.
func factsText(f *control.Facts) string {
	switch {
	case f == nil:
		return ""
	case f.Refused != "":
		return "facts of the API server are refused: " + f.Refused
	}
	text := "facts of the API server, " + factsAge(f.AgeSeconds) + "; owner " + orDash(f.Owner)
	if f.Note != "" {
		text += "; " + f.Note
	}
	return text
}
