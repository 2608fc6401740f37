package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/plan"
)

// The conditions of a Node with a fence-config.
const (
	conditionConfigured corev1.NodeConditionType = "EvictdFenceConfigured"
	conditionReachable  corev1.NodeConditionType = "EvictdFenceDeviceReachable"
)

const (
	// conditionInterval is the time between two looks at the conditions of all nodes, in the cache.
	conditionInterval = 10 * time.Second
	// conditionWrites bounds the Nodes that are written in one look: a first configuration concerns all of them.
	conditionWrites = 10
)

// nodeConditions writes the conditions of the Nodes that are configured, when they change, and removes them from the
// others. They are no act: dry run writes them, too.
type nodeConditions struct {
	config *configuration
	probes *probes
	cached client.Reader
	writer client.StatusClient
	log    *slog.Logger
	// failed is the last error, which is reported once.
	failed string
}

// Start implements manager.Runnable. It runs while this process is the leader.
func (c *nodeConditions) Start(ctx context.Context) error {
	for {
		c.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(conditionInterval):
		}
	}
}

// look writes the conditions that have changed, of so many Nodes as may be written at once.
func (c *nodeConditions) look(ctx context.Context) {
	config, problems, shown, loaded := c.config.all()
	if !loaded {
		return
	}
	nodes := &corev1.NodeList{}
	if err := c.cached.List(ctx, nodes); err != nil {
		return // the cache has not started
	}
	written := 0
	for i := range nodes.Items {
		n := &nodes.Items[i]
		patch := conditionPatch(n, c.wanted(n, &config, problems, shown), time.Now())
		if patch == nil {
			continue
		}
		if err := c.write(ctx, n.Name, patch); err != nil {
			if apierrors.IsInvalid(err) {
				continue // it concerns this Node alone
			}
			return // another try follows with the next look
		}
		if written++; written == conditionWrites {
			return
		}
	}
}

func (c *nodeConditions) write(ctx context.Context, node string, patch []byte) error {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	err := client.IgnoreNotFound(c.writer.Status().Patch(ctx, o, client.RawPatch(types.StrategicMergePatchType, patch)))
	switch {
	case err == nil:
		c.failed = ""
	case ctx.Err() == nil && err.Error() != c.failed:
		c.failed = err.Error()
		c.log.Warn("could not write the fencing conditions of a Node; another try follows", "node", node, "error", err)
	}
	return err
}

// wanted returns the conditions that a Node should have, none if it is not configured.
func (c *nodeConditions) wanted(n *corev1.Node, config *plan.Config, problems []plan.Problem, shown drills) []corev1.NodeCondition {
	found, planned := config.Plans[n.Name]
	if !planned {
		if !slices.Contains(config.Refused, n.Name) {
			return nil
		}
		return []corev1.NodeCondition{condition(conditionConfigured, corev1.ConditionFalse, "Invalid",
			"the node has no plan and is not fenced: "+mistakes(n.Name, problems))}
	}
	configured := condition(conditionConfigured, corev1.ConditionTrue, "Planned", "the node has a plan, "+found.Hash)
	if drilled := found.Drilled(nodeFacts(n), shown.digests(n.Name)); len(drilled.LeftOut) > 0 {
		configured.Reason, configured.Message = "NotDrilled", clipped(strings.Join(drilled.LeftOut, "; "))
		if len(drilled.PowerManagement) == 0 {
			configured.Status = corev1.ConditionFalse
		}
	}
	return []corev1.NodeCondition{configured, c.reachable(n, &found)}
}

// reachable returns the condition of a node's devices. While they are not all probed, and none has failed, that of an
// earlier leader stays.
func (c *nodeConditions) reachable(n *corev1.Node, p *fence.Plan) corev1.NodeCondition {
	complete, failures := c.probes.ofNode(n.Name)
	switch {
	case len(probedDevices(p)) == 0:
		return condition(conditionReachable, corev1.ConditionUnknown, "NotProbed", "no device of the plan is probed")
	case len(failures) > 0:
		return condition(conditionReachable, corev1.ConditionFalse, "Unusable", clipped(strings.Join(failures, "; ")))
	case complete:
		return condition(conditionReachable, corev1.ConditionTrue, "Answered", "each device has answered its last probe as the node's")
	}
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == conditionReachable })
	if i >= 0 {
		return n.Status.Conditions[i]
	}
	return condition(conditionReachable, corev1.ConditionUnknown, "NotProbed", "the devices are not yet probed")
}

func condition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message}
}

// clipped bounds a message as the note of an event is.
func clipped(message string) string {
	if len(message) <= maxNote {
		return message
	}
	return strings.ToValidUTF8(message[:maxNote-3], "") + "..."
}

// mistakes lists those of a node's own objects, or of the others if it has none: those of templates.
func mistakes(node string, problems []plan.Problem) string {
	var own, others []string
	for _, p := range problems {
		switch {
		case p.Warning:
		case ofNode(p.Object, node):
			own = append(own, p.String())
		default:
			others = append(others, p.String())
		}
	}
	if len(own) == 0 {
		own = others
	}
	return clipped(strings.Join(own, "; "))
}

// ofNode reports whether an object, such as "ConfigMap evictd/fence-config-n1", is the configuration of a node or one of
// its methods. A method of a node whose name ends in "-" and this name counts, too.
func ofNode(object, node string) bool {
	name := object[strings.LastIndexAny(object, " /")+1:]
	return name == "fence-config-"+node || strings.HasPrefix(name, "fence-method-") && strings.HasSuffix(name, "-"+node)
}

// ours reports whether a condition is one of those that are written here.
func ours(c corev1.NodeCondition) bool {
	return c.Type == conditionConfigured || c.Type == conditionReachable
}

// conditionPatch returns a strategic merge patch, nil if nothing changes. Conditions of others are not in it: the API
// server merges the list by type.
func conditionPatch(n *corev1.Node, wanted []corev1.NodeCondition, now time.Time) []byte {
	var changes []map[string]any
	for _, w := range wanted {
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == w.Type })
		if i >= 0 {
			is := n.Status.Conditions[i]
			if is.Status == w.Status && is.Reason == w.Reason && is.Message == w.Message {
				continue
			}
		}
		change := map[string]any{"type": w.Type, "status": w.Status, "reason": w.Reason, "message": w.Message, "lastHeartbeatTime": metav1.NewTime(now)}
		if i < 0 || n.Status.Conditions[i].Status != w.Status {
			change["lastTransitionTime"] = metav1.NewTime(now)
		}
		changes = append(changes, change)
	}
	for _, is := range n.Status.Conditions {
		if ours(is) && !slices.ContainsFunc(wanted, func(w corev1.NodeCondition) bool { return w.Type == is.Type }) {
			changes = append(changes, map[string]any{"type": is.Type, "$patch": "delete"})
		}
	}
	if changes == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": changes}})
	if err != nil {
		panic(fmt.Sprintf("marshal conditions: %v", err)) // they have only strings and times
	}
	return patch
}
