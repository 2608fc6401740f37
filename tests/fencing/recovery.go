package fencing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/fence"
)

// Recovered is the last detail of a NodeFence whose node is back.
var Recovered = string(fence.Recovery) + "/" + string(fence.Done) + "/" + string(fence.Recovered)

// recoveryStep is an event of a fence that ends with the node's return.
type recoveryStep struct {
	kind   Kind
	detail string
}

// recoverySteps are the events of such a fence, in their order.
var recoverySteps = []recoveryStep{
	{Lost, ""},
	{FenceCreated, ""},
	{Quarantined, ""},
	{CommandOff, ""},
	{FenceChanged, "Power-Management/Running/OffProven"},
	{FenceChanged, "Power-Management/Running/Releasing"},
	{OutOfService, ""},
	{PodRemoved, ""},
	{InService, ""},
	{CommandOn, ""},
	{Booted, ""},
	{FenceChanged, Recovered},
	{Unquarantined, ""},
}

// detachSteps are those of the volume. kube-controller-manager may detach it before the pod is removed: its garbage
// collector of pods marks a pod of such a node as Failed before it removes it, and a failed pod needs no volume.
var detachSteps = []recoveryStep{{OutOfService, ""}, {AttachmentDeleted, ""}, {InService, ""}}

// CheckRecovery returns an error unless a fence of a lost node went through all steps, in their order.
func CheckRecovery(events []Event, lost string) error {
	return errors.Join(checkSteps(events, lost, recoverySteps), checkSteps(events, lost, detachSteps))
}

func checkSteps(events []Event, lost string, steps []recoveryStep) error {
	rest := events
	for _, step := range steps {
		i := slices.IndexFunc(rest, func(e Event) bool {
			return e.Kind == step.kind && (e.Object == lost || e.Node == lost) && (step.detail == "" || step.detail == e.Detail) && !e.Ignored
		})
		if i < 0 {
			return fmt.Errorf("no event %q %s of %s, or only before the events that it follows", step.kind, step.detail, lost)
		}
		rest = rest[i+1:]
	}
	return nil
}

// CheckProof returns an error unless a NodeFence has two readings of off of its device that began after the machine was
// off, at least the interval apart.
func CheckProof(f *fence.Proof, off time.Time, interval time.Duration) error {
	if f == nil || f.How != fence.ByReadings || len(f.Readings) < 2 {
		return fmt.Errorf("proof %+v; want two readings", f)
	}
	first, last := f.Readings[0], f.Readings[len(f.Readings)-1]
	for _, r := range f.Readings {
		if r.Power != fence.PowerOff || r.Started.Time.Before(off) {
			return fmt.Errorf("reading %+v; want one of off, after the machine was off at %s", r, off)
		}
	}
	if gap := last.Started.Sub(first.Started.Time); gap < interval {
		return fmt.Errorf("readings %v apart; want %v", gap, interval)
	}
	return nil
}

// AwaitRecovery returns when a fence of a lost node has ended with its return, and the pod runs on another node. The
// timeline has the events of both then.
func (c *Cluster) AwaitRecovery(ctx context.Context, lost, other string) error {
	if err := c.Await(ctx, "the recovery of "+lost, func(s *Snapshot) bool {
		f := s.Fences[lost]
		return fenceDetail(&f) == Recovered && s.Ready[lost] && len(s.Taints[lost]) == 0 &&
			s.PodNode == other && s.PodRunning && slices.Equal(s.Attached, []string{other})
	}); err != nil {
		return err
	}
	// The API server shows a write before the audit log has it.
	return c.poll(ctx, "the recovery of "+lost+" in the audit log", func() (bool, error) {
		events, err := c.Timeline.Events()
		slices.Reverse(events)
		taint, _ := Find(events, Quarantined, On(lost))
		removed, _ := Find(events, Unquarantined, On(lost))
		runs, _ := Find(events, PodRuns, func(e *Event) bool { return e.Object == PodName })
		return err == nil && removed.At.After(taint.At) && runs.Node == other, err
	})
}

// PullPlug switches a machine off without its BMC's doing.
func (c *Cluster) PullPlug(name string) error {
	if err := c.BMCs[name].SetPower(false); err != nil {
		return err
	}
	c.Timeline.add(Event{At: time.Now(), Kind: CommandOff, Object: name, Node: name, By: "a person"})
	return nil
}
