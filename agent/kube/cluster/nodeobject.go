package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
)

// nodeObject is the part of the Node object that evictd-kube reads. The whole one often has 100 KB,
// most of it images.
type nodeObject struct {
	uid string
	// taints are those of everybody, in their order and as the API server encodes them; nil if the
	// object has no list.
	taints []json.RawMessage
	// conditions are those of evictd, by their types.
	conditions map[string]corev1.NodeCondition
}

// decodeNode decodes a Node object.
func decodeNode(content []byte) (*nodeObject, error) {
	var n struct {
		Metadata struct{ UID string }
		Spec     struct{ Taints []json.RawMessage }
		Status   struct{ Conditions []json.RawMessage }
	}
	if err := json.Unmarshal(content, &n); err != nil {
		return nil, fmt.Errorf("decode the Node: %w", err)
	}
	o := &nodeObject{uid: n.Metadata.UID, taints: n.Spec.Taints, conditions: map[string]corev1.NodeCondition{}}
	for _, raw := range n.Status.Conditions {
		var c corev1.NodeCondition
		if err := json.Unmarshal(raw, &c); err != nil {
			continue // those of others are not needed, and evictd's is written again
		}
		if _, own := kube.NodeConditions[string(c.Type)]; own {
			o.conditions[string(c.Type)] = c
		}
	}
	return o, nil
}

// ownTaint returns the key of a taint if it is one that evictd-kube maintains; "" for others. A
// taint with evictd's key and another effect is another's.
func ownTaint(raw json.RawMessage) string {
	var t corev1.Taint
	if json.Unmarshal(raw, &t) != nil || t.Effect != corev1.TaintEffectNoSchedule || !kube.IsTaint(t.Key) {
		return ""
	}
	return t.Key
}

// patchOperation is an operation of a JSON patch (RFC 6902).
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// taintChange is what has to be done for the taints of a Node.
type taintChange struct {
	patch          []patchOperation // empty if nothing has to be done
	after          []json.RawMessage
	added, removed []string
}

// changeTaints returns the change after which a Node has the wanted taints, and no other ones of
// evictd if remove is set. Others' taints keep their order.
//
// The patch tests what it replaces: the UID of the Node, and each taint that it removes, or that
// there is no list. It does not test the resource version, which every write of the kubelet changes,
// and loses no taint without that: it adds at the end of the list that there is when the API server
// applies it. The API server refuses a second taint of the same key and effect.
func (o *nodeObject) changeTaints(want map[string]bool, remove bool, now time.Time) (c taintChange) {
	c.patch = []patchOperation{{"test", "/metadata/uid", o.uid}}
	found := map[string]bool{}
	var removals [][]patchOperation
	for i, raw := range o.taints {
		key := ownTaint(raw)
		if key == "" || want[key] && !found[key] || !want[key] && !remove {
			found[key] = true
			c.after = append(c.after, raw)
			continue
		}
		path := "/spec/taints/" + strconv.Itoa(i)
		removals = append(removals, []patchOperation{{"test", path, raw}, {Op: "remove", Path: path}})
		c.removed = append(c.removed, key)
	}
	slices.Reverse(removals) // so that none changes the index of another
	c.patch = append(c.patch, slices.Concat(removals...)...)
	for _, key := range taintKeys() {
		if want[key] && !found[key] {
			c.added = append(c.added, key)
		}
	}
	if len(c.added) > 0 && o.taints == nil {
		c.patch = append(c.patch, patchOperation{"test", "/spec/taints", json.RawMessage("null")}, patchOperation{"add", "/spec/taints", []any{}})
	}
	for _, key := range c.added {
		taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule, TimeAdded: new(metav1.NewTime(now))}
		c.patch = append(c.patch, patchOperation{"add", "/spec/taints/-", taint})
		raw, _ := json.Marshal(&taint) // can't fail: texts and a time of this century
		c.after = append(c.after, raw)
	}
	if len(c.added)+len(c.removed) == 0 {
		c.patch = nil
	}
	if len(c.after) == 0 { // the API server leaves an empty list out
		c.after = nil
	}
	return c
}

// taintKeys returns the keys of evictd's taints, sorted.
func taintKeys() (keys []string) {
	for _, c := range kube.NodeConditions {
		keys = append(keys, c.Taint)
	}
	slices.Sort(keys)
	return keys
}

// The reasons of evictd's conditions with the status Unknown, and their messages.
var (
	notMaintained = [2]string{"EvictdDryRun", "evictd is in dry run and does not maintain its conditions of the node"}
	stopped       = [2]string{"EvictdStopped", "evictd was stopped"}
	gone          = [2]string{"EvictdGone", "evictd does not run, does not measure, or can't be reached by evictd-kube"}
)

// changeConditions returns the conditions to write so that a Node has those of a state, sorted by
// type: those that differ, or all that are maintained if heartbeat is set. Conditions of evictd that
// the Node has and the state has not become Unknown. A nil state is that of an evictd that is gone.
func (o *nodeObject) changeConditions(s *kube.NodeState, heartbeat bool, now time.Time) (list []corev1.NodeCondition) {
	unknown, wanted := gone, map[string]kube.NodeCondition{}
	if s != nil {
		unknown = notMaintained
		if s.Stopped {
			unknown = stopped
		}
		for _, c := range s.Conditions {
			wanted[c.Type] = c
		}
	}
	at := metav1.NewTime(now.Truncate(time.Second)) // the precision of the API
	for kind, text := range kube.NodeConditions {
		was, exists := o.conditions[kind]
		c := corev1.NodeCondition{Type: corev1.NodeConditionType(kind), LastHeartbeatTime: at, LastTransitionTime: at}
		w, maintained := wanted[kind]
		switch {
		case maintained && w.Status:
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, text.TrueReason, text.TrueMessage
		case maintained:
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, text.FalseReason, text.FalseMessage
		case exists:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, unknown[0], unknown[1]
		default:
			continue
		}
		// A time before the present status would contradict the Node, and one in the future its readers.
		since := metav1.NewTime(w.Since.Truncate(time.Second))
		if maintained && !since.After(now) && !since.Before(&was.LastTransitionTime) && !since.IsZero() {
			c.LastTransitionTime = since
		}
		if was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
		same := was.Status == c.Status && was.Reason == c.Reason && was.Message == c.Message
		if !same || heartbeat && maintained {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b corev1.NodeCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	return list
}

// nodeStatusPatch is a strategic merge patch of a Node's status. The API server refuses it if the
// UID is not that of the Node, and merges the conditions by their types.
type nodeStatusPatch struct {
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Conditions []corev1.NodeCondition `json:"conditions"`
	} `json:"status"`
}

// conditionPatch returns the patch that writes conditions.
func (o *nodeObject) conditionPatch(list []corev1.NodeCondition) *nodeStatusPatch {
	var p nodeStatusPatch
	p.Metadata.UID, p.Status.Conditions = o.uid, list
	return &p
}
