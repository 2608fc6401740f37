package controller

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// maxNote bounds the note of an event, in bytes. The API server refuses more than 1 KiB.
const maxNote = 1000

// recorder writes events.
type recorder struct{ events.EventRecorder }

// event reports something about an object.
func (r recorder) event(about runtime.Object, warning bool, reason, action, note string) {
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-3], "") + "..."
	}
	r.Eventf(about, nil, kind, reason, action, "%s", note)
}
