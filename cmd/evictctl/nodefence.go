package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
)

// nodeFences is the resource of NodeFences, with its group: another program may have one of the same name.
const nodeFences = "nodefences.ha.k8s.io"

// nodeFence is a NodeFence object. It has the fields that evictctl reads.
type nodeFence struct {
	Metadata       metav1.ObjectMeta `json:"metadata"`
	Node           string            `json:"node"`
	fence.Progress `json:",inline"`
	State          fence.Detail `json:"state"`
}

// state returns the state of the fence.
func (f *nodeFence) state() fence.State {
	return fence.State{
		UID: string(f.Metadata.UID), Node: f.Node, Created: metav1.NewMicroTime(f.Metadata.CreationTimestamp.Time),
		Progress: f.Progress, Detail: f.State,
	}
}

// stage describes step, status and phase.
func (f *nodeFence) stage() string {
	text := string(f.Step) + "/" + string(f.Status)
	switch {
	case f.State.Result != "":
		text = string(f.State.Result)
	case f.State.Phase != "":
		text += " " + string(f.State.Phase)
	}
	if f.State.DryRun {
		text += ", dry run"
	}
	return text
}

// since returns when the stage began; zero if the object does not have it.
func (f *nodeFence) since() time.Time {
	if !f.State.FinishedAt.IsZero() {
		return f.State.FinishedAt.Time
	}
	return f.State.Since.Time
}

// holds returns the conditions that are true, with their reasons, in order.
func (f *nodeFence) holds() []string {
	var names []string
	for _, c := range f.State.Conditions {
		if c.Status == metav1.ConditionTrue {
			names = append(names, c.Type+" ("+c.Reason+")")
		}
	}
	slices.Sort(names)
	return names
}

// listFences returns all NodeFences by node: those that have not ended first.
func listFences(ctx context.Context, k *kubectl) ([]nodeFence, error) {
	var list struct {
		Items []nodeFence `json:"items"`
	}
	if err := k.get(ctx, &list, nodeFences); err != nil {
		return nil, err
	}
	ended := func(f *nodeFence) int {
		if f.State.FinishedAt.IsZero() {
			return 0
		}
		return 1
	}
	slices.SortFunc(list.Items, func(a, b nodeFence) int {
		return cmp.Or(cmp.Compare(ended(&a), ended(&b)), strings.Compare(a.Node, b.Node))
	})
	return list.Items, nil
}

// fenceOf returns the NodeFence of a node.
func fenceOf(ctx context.Context, k *kubectl, node string) (*nodeFence, error) {
	list, err := listFences(ctx, k)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Node == node {
			return &list[i], nil
		}
	}
	return nil, fmt.Errorf("node %s has no NodeFence: it was not fenced lately; evictctl fence list shows those that are there", node)
}
