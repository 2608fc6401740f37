package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxPause bounds how far ahead the end of a pause may be, so that a node is not left without fencing by mistake.
const maxPause = 24 * time.Hour

// pausedUntil returns until when a Node is not fenced because of planned work, zero if it is not paused. The error says
// why the annotation does not count.
func pausedUntil(n *corev1.Node, now time.Time) (time.Time, error) {
	value, ok := n.Annotations[annotationPaused]
	if !ok {
		return time.Time{}, nil
	}
	until, err := time.Parse(time.RFC3339, value)
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("annotation %s has the value %.64q, which is no RFC 3339 time such as %s: it "+
			"does not count, and the node can be fenced", annotationPaused, value, now.UTC().Add(time.Hour).Format(time.RFC3339))
	case until.After(now.Add(maxPause)):
		return time.Time{}, fmt.Errorf("annotation %s has the time %s, which is more than %.0f h ahead: it does not "+
			"count until then, and the node can be fenced", annotationPaused, value, maxPause.Hours())
	case !until.After(now):
		return time.Time{}, nil
	}
	return until, nil
}

// reportPause reports an annotation that does not count, once for each value.
func (r *reconciler) reportPause(n *corev1.Node) {
	_, err := pausedUntil(n, time.Now())
	value := n.Annotations[annotationPaused]
	r.mu.Lock()
	reported, ok := r.pauses[n.Name]
	known := ok && reported == value
	switch {
	case err == nil:
		delete(r.pauses, n.Name)
	case r.pauses == nil:
		r.pauses = map[string]string{n.Name: value}
	default:
		r.pauses[n.Name] = value
	}
	r.mu.Unlock()
	if err == nil || known {
		return
	}
	r.log.Warn("fencing of a node is not paused", "node", n.Name, "error", err)
	r.recorder.event(n, true, "FencingPauseInvalid", "Fence", err.Error())
}
