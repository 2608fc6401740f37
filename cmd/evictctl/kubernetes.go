package main

import (
	"fmt"

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
