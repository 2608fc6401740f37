package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/kube"
)

// SetNode implements kube.NodeHandler.
func (r *Reporter) SetNode(s *kube.NodeState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes.set(s)
	r.notify()
}

// scheduleNode tells evictd what has become of its state, and returns the next request about the
// Node. It moves next to when one becomes due. urgent is set if the report of an eviction waits for
// a taint.
func (r *Reporter) scheduleNode(now time.Time, next *time.Time) (a nodeAction, urgent bool) {
	n := &r.nodes
	clear(n.ordered)
	for _, t := range r.tasks {
		switch {
		case !kube.IsTaint(t.order.Taint) || t.taintKept:
		case t.reported():
			r.keepTaint(t, now)
		default:
			n.ordered[t.order.Taint] = true
			urgent = urgent || !t.tainted
		}
	}
	if n.busy {
		return a, urgent
	}
	a, clean := n.next(now, next)
	if n.state == nil {
		return a, urgent
	}
	n.done = n.done || clean
	answer := kube.NodeReport{Why: n.why(), Refused: n.refused(&a)}
	if n.done {
		answer.Number = n.state.Number
	}
	if answer == (kube.NodeReport{}) || n.answered && answer == n.last {
		return a, urgent
	}
	n.answered, n.last = true, answer
	r.answers.ReportNode(&answer)
	return a, urgent
}

// settled reports whether evictd's last state was written to the Node, or can't be.
func (r *Reporter) settled() bool {
	n := &r.nodes
	if n.state == nil {
		return true
	}
	var due time.Time
	a, clean := n.next(time.Now(), &due)
	return n.final() && (clean && n.done || n.refused(&a))
}

// keepTaint keeps the taint of an order that needs it no more for a while.
func (r *Reporter) keepTaint(t *task, now time.Time) {
	if t.order.Taint != "" && !t.taintKept {
		t.taintKept = true
		r.nodes.keepTaint(t.order.Taint, now)
		r.notify()
	}
}

// awaitsTaint reports whether a report that is due must wait until the Node has the taint of its
// order: a controller would make the pod again on this node. It moves next to when the wait ends.
func (r *Reporter) awaitsTaint(t *task, a action, now time.Time, next *time.Time) bool {
	key, n := t.order.Taint, &r.nodes
	if t.tainted || !kube.IsTaint(key) || a.kind != setPhase && a.kind != deletePod {
		return false
	}
	if t.taintWait.IsZero() {
		t.taintWait = now
		n.hasten(now)
		r.notify() // scheduleNode was called before
	}
	t.tainted = n.tainted(key, t.arrived.Add(-taintTrust)) || n.cannotTaint()
	if t.tainted {
		return false
	}
	end := t.taintWait.Add(taintOutage)
	switch {
	case r.unreachable || !r.answered.After(t.taintWait):
		t.taintDeadline = time.Time{} // the report could not succeed either
	case t.taintDeadline.IsZero():
		t.taintDeadline = now.Add(taintDeadline)
		fallthrough
	default:
		end = t.taintDeadline
	}
	switch {
	case t.taintLast && n.delayed(now):
		end = now
	case !now.Before(end) && !r.unreachable && !t.taintLast && n.hasten(now):
		t.taintLast = true
		end = now.Add(taintRetry)
		t.taintDeadline = end
		r.notify()
	}
	if now.Before(end) {
		if end.Before(*next) {
			*next = end
		}
		return true
	}
	t.tainted = true
	if t.answer != kube.AnswerDelayed { // else it was logged
		r.log.Warn("node does not have its taint yet; the eviction of the pod is reported without it, and its controller may make it again on this node",
			"pod", t.order.Namespace+"/"+t.order.Name, "taint", key, "after", now.Sub(t.taintWait).Round(time.Millisecond).String())
	}
	return false
}

// addNode adds a request about the Node to those that start now, if there is one and room for it.
func (r *Reporter) addNode(list []started, a nodeAction) []started {
	if a.step != noStep && !r.nodes.busy && r.inFlight < maxInFlight {
		list = append(list, r.startNode(a))
	}
	return list
}

// startNode returns a request about the Node.
func (r *Reporter) startNode(a nodeAction) started {
	n := &r.nodes
	n.busy = true
	r.inFlight++
	object, began := n.object, time.Now()
	return func(ctx context.Context, c *connection) {
		read, err := c.nodeRequest(ctx, r.node, object, &a)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inFlight--
		n.busy = false
		r.notify()
		if ctx.Err() == nil {
			r.finishNode(&a, read, c, err, began, time.Now())
		}
	}
}

// finishNode records the outcome of a request about the Node.
func (r *Reporter) finishNode(a *nodeAction, read *nodeObject, c *connection, err error, began, now time.Time) {
	n := &r.nodes
	alone := a.step != readNode && r.answered.After(began) // the API server has answered others since
	r.noteAnswer(err, now)
	if err == nil {
		r.recovered(now)
		if a.step == readNode && n.uid != "" && n.uid != read.uid {
			r.log.Warn("the Node object was replaced by another one", "node", r.node)
		}
		n.achieved(a, read, began, now)
		r.logNode(a)
		return
	}
	result := nodeOutcomeOf(err)
	cause := result
	if result == conflict || result == podGone && a.step != readNode {
		r.log.Debug("another client has changed the Node; reading it again", "node", r.node, "error", oneLine(err.Error()))
		n.overtaken(a.step, now)
		if n.parts[a.step].races < maxRaces {
			return
		}
		cause, result = conflict, refused
	}
	var answer apierrors.APIStatus
	n.unreachable = !errors.As(err, &answer)
	if result == forbidden {
		r.recheckRights(now)
	}
	reason := c.explainNode(r.node, cause, err)
	if c.renew(reason) {
		n.unreachable, alone = true, false // until there are new credentials
	}
	level := slog.LevelWarn
	if r.unreachable { // that is logged once
		level = slog.LevelDebug
	}
	r.unreachable = r.unreachable || n.unreachable && !alone
	if n.failed(a.step, result, oneLine(reason.Error()), retryAfter(err), now) {
		r.log.Log(context.Background(), level, "could not write evictd's conditions and taints to the Node; trying again", "node", r.node, "error", reason)
	}
	for _, t := range r.tasks {
		if !t.tainted && t.taintWait.After(began) { // which could not hasten it
			n.hasten(now)
		}
	}
}

// logNode logs what was written to the Node, but no heartbeats.
func (r *Reporter) logNode(a *nodeAction) {
	switch a.step {
	case writeTaints:
		r.log.Info("changed evictd's taints of the Node", "node", r.node, "added", a.taints.added, "removed", a.taints.removed)
	case writeConditions:
		level := slog.LevelDebug
		var list []string
		for _, c := range a.conditions {
			list = append(list, string(c.Type)+"="+string(c.Status))
			if !c.LastTransitionTime.Before(&c.LastHeartbeatTime) {
				level = slog.LevelInfo
			}
		}
		r.log.Log(context.Background(), level, "wrote evictd's conditions of the Node", "node", r.node, "conditions", strings.Join(list, " "))
	}
}

// nodeRequest makes a request about the Node. It returns the Node if it was read.
func (c *client) nodeRequest(ctx context.Context, name string, object *nodeObject, a *nodeAction) (*nodeObject, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var kind types.PatchType
	var patch any
	request := c.rest.Get()
	switch a.step {
	case readNode:
		result := request.MaxRetries(0).Resource("nodes").Name(name).Do(ctx)
		if err := result.Error(); err != nil { // which Raw does not decode
			return nil, err
		}
		content, err := result.Raw()
		if err != nil {
			return nil, err
		}
		return decodeNode(content)
	case writeTaints:
		kind, patch = types.JSONPatchType, a.taints.patch
	case writeConditions:
		kind, patch = types.StrategicMergePatchType, object.conditionPatch(a.conditions)
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	request = c.rest.Patch(kind).MaxRetries(0).Resource("nodes").Name(name)
	if a.step == writeConditions {
		request.SubResource("status")
	}
	return nil, request.SetHeader("Accept", metadataOnly).Body(body).Do(ctx).Error()
}

// nodeOutcomeOf returns what an error of a request about the Node means. The API server answers 422
// to a JSON patch that it can't apply, because a test fails or a path does not exist: without a
// cause, unlike its validation and most policies. A taint that another client has added is there
// twice then.
func nodeOutcomeOf(err error) outcome {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) && !unstructured(answer.Status()) {
		s := answer.Status()
		if s.Code == http.StatusUnprocessableEntity && !denied(&s) {
			if s.Details == nil || len(s.Details.Causes) == 0 {
				return conflict
			}
			for _, c := range s.Details.Causes {
				if c.Type == metav1.CauseTypeFieldValueDuplicate && strings.HasPrefix(c.Field, "spec.taints") {
					return conflict
				}
			}
		}
	}
	return outcomeOf(err)
}

// explainNode returns an error of a request about the Node with its remedy.
func (c *client) explainNode(node string, result outcome, err error) error {
	switch result {
	case conflict:
		return fmt.Errorf("other clients have changed the Node %q before each of %d writes, or a webhook refuses them: %w: find out who writes its taints, with kubectl get node %s -o yaml --show-managed-fields", node, maxRaces, err, node)
	case podGone:
		return fmt.Errorf("API server %s has no Node %q: evictd-kube waits for its kubelet to register it", c.files.server, node)
	case refused, tooLarge:
		return fmt.Errorf("API server %s refuses evictd's conditions or taints: %w: let its admission policies admit those of deploy/kubernetes", c.files.server, err)
	}
	return c.files.explain(err)
}
