package cluster

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/kube"
)

const (
	// maxEvents is how many events wait; further ones are dropped.
	maxEvents = 64
	// nodeEventInterval is the time between two events on the node.
	nodeEventInterval = time.Minute
	// maxNote, maxInstance and maxEventName are the API server's bounds of an event
	// (pkg/apis/core/validation/events.go), the last with room for a suffix.
	maxNote, maxInstance, maxEventName = 1024, 128, 230
)

// The reasons of events. The first two are the kubelet's.
const (
	reasonEvicted      = "Evicted"
	reasonThresholdMet = "EvictionThresholdMet"
	reasonWaiting      = "EvictionWaiting"
)

// annotationStarved is the annotation of an order with the resource for which the pod was
// evicted (pkg/kubelet/eviction/helpers.go).
const annotationStarved = "starved_resource"

// eventObject is an event of events.k8s.io/v1. Its Go package would add 0.2 MB to the binary.
type eventObject struct {
	APIVersion          string                 `json:"apiVersion"`
	Kind                string                 `json:"kind"`
	Metadata            eventMeta              `json:"metadata"`
	EventTime           metav1.MicroTime       `json:"eventTime"`
	ReportingController string                 `json:"reportingController"`
	ReportingInstance   string                 `json:"reportingInstance"`
	Action              string                 `json:"action"`
	Reason              string                 `json:"reason"`
	Regarding           corev1.ObjectReference `json:"regarding"`
	Note                string                 `json:"note"`
	Type                string                 `json:"type"`
}

type eventMeta struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// newEvent returns a warning about an object. The same subject has the same name, so that it
// is not emitted again after a restart: the API server then answers 409.
func newEvent(node, reason, note, subject string, about corev1.ObjectReference, now time.Time) eventObject {
	name := about.Name
	if len(name) > maxEventName {
		name = strings.TrimRight(name[:maxEventName], ".-")
	}
	hash := fnv.New64a()
	hash.Write([]byte(subject + "/" + reason))
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return eventObject{
		APIVersion: "events.k8s.io/v1", Kind: "Event",
		Metadata:  eventMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%016x", name, hash.Sum64())},
		EventTime: metav1.NewMicroTime(now), ReportingController: "evictd.io/evictd", ReportingInstance: cut(node, maxInstance),
		Action: "Evict", Reason: reason, Regarding: about, Note: cut(note, maxNote), Type: corev1.EventTypeWarning,
	}
}

// podEvent returns an event about the pod of an order.
func podEvent(node string, o *kube.Order, reason, note string, now time.Time) eventObject {
	e := newEvent(node, reason, note, o.ID, corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.UID),
	}, now)
	e.Metadata.Annotations = o.Annotations
	return e
}

// nodeEvent returns the event about the resource that the node lacks. As for the kubelet, the
// UID of the node is its name.
func nodeEvent(node, resource string, now time.Time) eventObject {
	return newEvent(node, reasonThresholdMet, "Attempting to reclaim "+resource, now.UTC().Format(time.RFC3339Nano),
		corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, now)
}

// cut returns at most n bytes of a text, without a part of a character at its end.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
