package fencing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/tests/controlplane"
)

// auditPolicy logs the writes of which a Timeline is made.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: None
    verbs: [get, list, watch]
  - level: RequestResponse
    resources:
      - {group: "", resources: [nodes, pods, pods/binding, pods/status]}
      - {group: storage.k8s.io, resources: [volumeattachments]}
      - {group: ha.k8s.io, resources: [nodefences]}
  - level: None
`

// The taints of a node that is fenced.
const (
	quarantineTaint   = "evictd.io/fencing"
	outOfServiceTaint = corev1.TaintNodeOutOfService
)

// auditEvent is an entry of the API server's audit log.
type auditEvent struct {
	AuditID   string
	Verb      string
	User      struct{ Username string }
	UserAgent string
	ObjectRef struct{ Resource, Subresource, Name, Namespace string }

	ResponseStatus           struct{ Code int }
	RequestObject            json.RawMessage
	ResponseObject           json.RawMessage
	RequestReceivedTimestamp time.Time
	StageTimestamp           time.Time
}

// auditReader turns the entries of the audit log into events.
type auditReader struct {
	file   string
	offset int64
	rest   []byte                    // an incomplete line
	taints map[string][]corev1.Taint // by node
	fences map[string]string         // step, status and phase, by name
	pods   map[string]string         // the node, by name
}

// read returns the events of the entries since the last call.
func (r *auditReader) read() ([]Event, error) {
	f, err := os.Open(r.file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.NewSectionReader(f, r.offset, 1<<62))
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	r.offset += int64(len(content))
	content = append(r.rest, content...)
	end := bytes.LastIndexByte(content, '\n') + 1
	r.rest = slices.Clone(content[end:])
	var events []Event
	for line := range bytes.Lines(content[:end]) {
		var a auditEvent
		if err := json.Unmarshal(line, &a); err != nil {
			return nil, fmt.Errorf("read the audit log: %w: %.200s", err, line)
		}
		if a.ResponseStatus.Code >= http.StatusMultipleChoices {
			continue
		}
		more, err := r.events(&a)
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %s %s: %w", a.ObjectRef.Resource, a.ObjectRef.Name, err)
		}
		for _, e := range more {
			e.At, e.Done, e.By = a.RequestReceivedTimestamp, a.StageTimestamp, a.by()
			events = append(events, e)
		}
	}
	return events, nil
}

// by returns the component that made the request. The names of the programs have the version at the end, and the
// controllers of kube-controller-manager have names of their own:
//
//	kube-controller-manager-1.36.3/v1.36.3 (linux/amd64) kubernetes/1a2b3c/pod-garbage-collector-controller
func (a *auditEvent) by() string {
	program, _, _ := strings.Cut(a.UserAgent, "/")
	switch program {
	case controlplane.ControllerManager:
		return path.Base(a.UserAgent)
	case controlplane.Scheduler:
		return "kube-scheduler"
	}
	return a.User.Username[strings.LastIndexByte(a.User.Username, ':')+1:]
}

func (r *auditReader) events(a *auditEvent) ([]Event, error) {
	switch a.ObjectRef.Resource {
	case "nodes":
		return r.nodeEvents(a)
	case "pods":
		return r.podEvents(a)
	case "nodefences":
		return r.fenceEvents(a)
	case "volumeattachments":
		return attachmentEvents(a)
	}
	return nil, nil
}

// nodeEvents returns the changes of a node's taints.
func (r *auditReader) nodeEvents(a *auditEvent) (events []Event, err error) {
	var n corev1.Node
	if err := json.Unmarshal(a.ResponseObject, &n); err != nil || n.Name == "" {
		return nil, err
	}
	before := r.taints[n.Name]
	r.taints[n.Name] = n.Spec.Taints
	for _, t := range []struct {
		key            string
		added, removed Kind
	}{{quarantineTaint, Quarantined, Unquarantined}, {outOfServiceTaint, OutOfService, InService}} {
		had, has := hasTaint(before, t.key), hasTaint(n.Spec.Taints, t.key)
		switch {
		case has && !had:
			events = append(events, Event{Kind: t.added, Object: n.Name, Node: n.Name})
		case had && !has:
			events = append(events, Event{Kind: t.removed, Object: n.Name, Node: n.Name})
		}
	}
	return events, nil
}

func hasTaint(taints []corev1.Taint, key string) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == key })
}

// podEvents returns what was done to a pod.
func (r *auditReader) podEvents(a *auditEvent) ([]Event, error) {
	name := a.ObjectRef.Name
	switch a.ObjectRef.Subresource {
	case "binding":
		var b corev1.Binding
		if err := json.Unmarshal(a.RequestObject, &b); err != nil {
			return nil, err
		}
		r.pods[name] = b.Target.Name
		return []Event{{Kind: PodBound, Object: name, Node: b.Target.Name}}, nil
	case "status":
		if a.by() != r.pods[name] { // not the kubelet
			return nil, nil
		}
		var p corev1.Pod
		if err := json.Unmarshal(a.RequestObject, &p); err != nil || p.Status.Phase != corev1.PodRunning {
			return nil, err
		}
		return []Event{{Kind: PodRuns, Object: name, Node: r.pods[name]}}, nil
	case "":
	default:
		return nil, nil
	}
	// The response to a deletion is the pod, too. Its successor, with the same name, may be bound already.
	var p corev1.Pod
	if err := json.Unmarshal(a.ResponseObject, &p); err != nil {
		return nil, err
	}
	switch a.Verb {
	case "create":
		return []Event{{Kind: PodCreated, Object: p.Name}}, nil
	case "delete":
		var options metav1.DeleteOptions
		if len(a.RequestObject) > 0 {
			if err := json.Unmarshal(a.RequestObject, &options); err != nil {
				return nil, err
			}
		}
		if options.GracePeriodSeconds != nil && *options.GracePeriodSeconds == 0 {
			return []Event{{Kind: PodRemoved, Object: name, Node: p.Spec.NodeName}}, nil
		}
		return []Event{{Kind: PodDeleted, Object: name, Node: p.Spec.NodeName}}, nil
	}
	return nil, nil
}

// fenceEvents returns the changes of a NodeFence.
func (r *auditReader) fenceEvents(a *auditEvent) ([]Event, error) {
	if a.Verb == "delete" {
		delete(r.fences, a.ObjectRef.Name)
		return []Event{{Kind: FenceDeleted, Object: a.ObjectRef.Name}}, nil
	}
	var f nodefence.NodeFence
	if err := json.Unmarshal(a.ResponseObject, &f); err != nil || f.Name == "" {
		return nil, err
	}
	now := fenceDetail(&f)
	before, known := r.fences[f.Name]
	r.fences[f.Name] = now
	switch {
	case !known:
		return []Event{{Kind: FenceCreated, Object: f.Name, Node: f.Node, Detail: now}}, nil
	case before != now:
		return []Event{{Kind: FenceChanged, Object: f.Name, Node: f.Node, Detail: now}}, nil
	}
	return nil, nil
}

// fenceDetail returns step, status and phase of a NodeFence, and why it has ended.
func fenceDetail(f *nodefence.NodeFence) string {
	parts := []string{string(f.Step), string(f.Status)}
	if f.State.Phase != "" && f.Step == fence.PowerManagement {
		parts = append(parts, string(f.State.Phase))
	}
	if f.State.Result != "" {
		parts = append(parts, string(f.State.Result))
	}
	return strings.Join(parts, "/")
}

// attachmentEvents returns what was done to a VolumeAttachment. It is gone when it is deleted and its last finalizer is
// removed.
func attachmentEvents(a *auditEvent) (events []Event, err error) {
	var v storagev1.VolumeAttachment
	if err := json.Unmarshal(a.ResponseObject, &v); err != nil {
		return nil, err
	}
	if kind := map[string]Kind{"create": AttachmentCreated, "delete": AttachmentDeleted}[a.Verb]; kind != "" {
		events = append(events, Event{Kind: kind, Object: volumeHandle, Node: v.Spec.NodeName})
	}
	if v.Spec.NodeName != "" && len(v.Finalizers) == 0 && (a.Verb == "delete" || v.DeletionTimestamp != nil) {
		events = append(events, Event{Kind: AttachmentGone, Object: volumeHandle, Node: v.Spec.NodeName})
	}
	return events, nil
}
