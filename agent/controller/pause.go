package controller

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/selffence"
)

// maxPause bounds how far ahead the end of a pause may be, so that a node is not left without fencing by mistake.
const maxPause = 24 * time.Hour

// pauses are the annotations of a Node that have the time until which it is not fenced: that of a person, and that of
// an agent that shuts the node down.
var pauses = []string{annotationPaused, selffence.AnnotationPlannedShutdown}

// pausedUntil returns until when a Node is not fenced because of planned work, zero if it is not paused, and the
// annotation that says so last. The error says why an annotation does not count.
func pausedUntil(n *corev1.Node, now time.Time) (until time.Time, by string, err error) {
	for _, annotation := range pauses {
		value, ok := n.Annotations[annotation]
		if !ok {
			continue
		}
		end, failure := pauseEnd(annotation, value, now)
		err = errors.Join(err, failure)
		if end.After(until) {
			until, by = end, annotation
		}
	}
	return until, by, err
}

// pauseEnd returns the time in an annotation, zero if it has passed or does not count.
func pauseEnd(annotation, value string, now time.Time) (time.Time, error) {
	until, err := time.Parse(time.RFC3339, value)
	switch {
	case err != nil:
		return time.Time{}, fmt.Errorf("annotation %s has the value %.64q, which is no RFC 3339 time such as %s: it "+
			"does not count, and the node can be fenced", annotation, value, now.UTC().Add(time.Hour).Format(time.RFC3339))
	case until.After(now.Add(maxPause)):
		return time.Time{}, fmt.Errorf("annotation %s has the time %s, which is more than %.0f h ahead: it does not "+
			"count until then, and the node can be fenced", annotation, value, maxPause.Hours())
	case !until.After(now):
		return time.Time{}, nil
	}
	return until, nil
}

// reportPause reports annotations that do not count, once for each value.
func (r *reconciler) reportPause(n *corev1.Node) {
	_, _, err := pausedUntil(n, time.Now())
	var values [2]string
	for i, annotation := range pauses {
		values[i] = n.Annotations[annotation]
	}
	r.mu.Lock()
	reported, ok := r.pauses[n.Name]
	known := ok && reported == values
	switch {
	case err == nil:
		delete(r.pauses, n.Name)
	case r.pauses == nil:
		r.pauses = map[string][2]string{n.Name: values}
	default:
		r.pauses[n.Name] = values
	}
	r.mu.Unlock()
	if err == nil || known {
		return
	}
	r.log.Warn("fencing of a node is not paused", "node", n.Name, "error", err)
	r.recorder.event(n, true, "FencingPauseInvalid", "Fence", err.Error())
}
