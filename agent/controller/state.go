package controller

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/nodefence"
	"github.com/evictd/evictd/agent/fence/plan"
)

// stateOf returns the state that a NodeFence has. They share no memory.
func stateOf(f *nodefence.NodeFence) fence.State {
	f = f.DeepCopy()
	return fence.State{
		UID: string(f.UID), Node: f.Node, Created: metav1.NewMicroTime(f.CreationTimestamp.Time),
		Progress: f.Progress, Detail: f.State,
	}
}

// withState returns a NodeFence with another state. Name, UID and resourceVersion stay, so that an update of it fails
// if the object is not the one that the state was computed from.
func withState(f *nodefence.NodeFence, s *fence.State) *nodefence.NodeFence {
	next := f.DeepCopy()
	next.Progress, next.State = s.Progress, s.Detail
	return next.DeepCopy()
}

// newNodeFence returns the NodeFence of a new fence. The API server gives it its UID.
func newNodeFence(s *fence.State) *nodefence.NodeFence {
	f := &nodefence.NodeFence{
		ObjectMeta: metav1.ObjectMeta{Name: nodefence.ObjectName(s.Node)},
		Node:       s.Node, Progress: s.Progress, State: s.Detail,
	}
	return f.DeepCopy()
}

// finished reports whether a fence has ended.
func finished(f *nodefence.NodeFence) bool { return !f.State.FinishedAt.IsZero() }

// expiry returns when a finished NodeFence is deleted: after history_ttl, and not before the storm policy can forget it.
func expiry(f *nodefence.NodeFence, config *plan.Config) time.Time {
	expires := f.State.FinishedAt.Add(config.HistoryTTL)
	state := fence.State{Detail: f.State}
	if needed := state.NeededUntil(); needed.After(expires) {
		return needed
	}
	return expires
}

// methodOf returns the method of an intent, nil if the plan does not have it.
func methodOf(s *fence.State, i *fence.Intent) *fence.Method {
	levels := s.Plan.PowerManagement
	switch i.Step {
	case fence.Isolation:
		levels = s.Plan.Isolation
	case fence.Recovery:
		levels = s.Plan.Recovery
	}
	if int(i.Level) >= len(levels) || int(i.Index) >= len(levels[i.Level].Methods) {
		return nil
	}
	m := &levels[i.Level].Methods[i.Index]
	if m.Name != i.Method || m.Action != i.Action {
		return nil
	}
	return m
}

// methodOfDevice returns a method of a device, nil if the plan has none. Methods of the power level in use come first.
func methodOfDevice(s *fence.State, device string) *fence.Method {
	var levels []fence.Level
	if power := s.Plan.PowerManagement; int(s.Level) < len(power) {
		levels = append(levels, power[s.Level])
	}
	for _, level := range slices.Concat(levels, s.Plan.PowerManagement, s.Plan.Isolation, s.Plan.Recovery) {
		for i := range level.Methods {
			if level.Methods[i].Device == device {
				return &level.Methods[i]
			}
		}
	}
	return nil
}

// releasable reports whether the saved state has what a release of pods and volumes needs. The decision is that of
// agent/fence; the controller checks it again because nothing else could undo a wrong release.
func releasable(s *fence.State) bool {
	return s.Phase == fence.Releasing && s.Proof != nil && !s.DryRun
}

// storageReleasable reports the same of a release of pods whose storage the node is cut off from.
func storageReleasable(s *fence.State) bool {
	return s.Step == fence.Isolation && s.Status == fence.Done && !s.DryRun && cutOff(s) && !s.Storage.Released.IsZero()
}

// dumpReleasable reports the same of a release of pods alone, whose node sends that its kernel dumps.
func dumpReleasable(s *fence.State) bool {
	k := s.Kdump
	return s.Plan.Kdump == fence.KdumpRelease && k != nil && k.Phase == fence.KdumpDumping && len(k.Heard) > 1 &&
		!k.Released.IsZero() && s.Step != fence.Recovery && s.Phase == "" && !s.DryRun
}

// cutOff reports whether the node is proven to be cut off from storage: which pods use it matters then.
func cutOff(s *fence.State) bool { return s.Storage != nil && !s.Storage.Proven.IsZero() }

// cleanable reports whether the pods of a node that was released may be deleted: it is proven off, and nothing was
// switched on since.
func cleanable(f *nodefence.NodeFence) bool {
	s := &f.State
	on := func(a fence.Act) bool { return a.Step == fence.PowerManagement && a.Action == fence.On }
	return f.Step == fence.PowerManagement && s.Phase == fence.Released && s.Proof != nil && !s.DryRun && s.OnRepeats == 0 &&
		!slices.ContainsFunc(s.Acts, on)
}
