package status

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/loop"
	"github.com/evictd/evictd/agent/shutdown"
	"github.com/evictd/evictd/agent/shutdown/driver"
)

// Shutdown implements control.Source. It returns the progress of a shutdown, or the
// plan for the running pods.
func (b *Backend) Shutdown() control.Shutdown {
	c := b.shutdownStatus()
	v, state, lock := b.o.View(), b.o.Shutdown.State(), b.o.DelayLock.Status()
	switch {
	case v == nil:
	case c.Phase != phaseIdle:
		c.Groups = groupsUnderWay(state)
	case lock.Inhibited:
		c.Groups = groupsPlanned(v, b.o.Shutdown.Schedule(v).FitInto(lock.Limit))
	default:
		c.Groups = groupsPlanned(v, b.o.Shutdown.Schedule(v))
	}
	return c
}

// phaseIdle is the name of shutdown.Idle in the API.
const phaseIdle = "idle"

// shutdownStatus returns the result of Shutdown without the groups.
func (b *Backend) shutdownStatus() control.Shutdown {
	state, lock := b.o.Shutdown.State(), b.o.DelayLock.Status()
	c := control.Shutdown{
		At: time.Now(), Phase: phaseIdle, Manual: state.Manual, Began: state.Began, Ended: state.Ended, Canceled: state.Canceled,
		NeedsSeconds: lock.Needs.Seconds(), Inhibited: lock.Inhibited, LogindError: lock.Error, Last: b.o.LastShutdown,
	}
	if lock.Connected {
		c.LimitSeconds = new(lock.Limit.Seconds())
	}
	v := b.o.View()
	if v == nil {
		c.Why, c.DryRun = control.List[string]{driver.ErrNotYet.Error()}, true
		return c
	}
	c.Why, c.DryRun = b.o.Shutdown.SkipReasons(v), len(v.Mode.ReasonsExceptKubelet) > 0
	c.NeedsSeconds = v.Config.ShutdownSchedule().Delay().Seconds()
	for i := range state.Pods {
		switch state.Pods[i].Status {
		case shutdown.Gone:
			c.Stopped++
		case shutdown.StoppedInDryRun:
			c.WouldStop++
		default:
			c.Running++
		}
	}
	if state.Active() {
		c.Phase = string(state.Phase)
		if state.Phase == shutdown.Stopping && state.Current < len(state.Schedule) {
			c.Current = new(state.Current)
		}
	}
	return c
}

// groupsUnderWay returns the groups of the shutdown in progress.
func groupsUnderWay(state *shutdown.State) (list control.List[control.ShutdownGroup]) {
	for _, g := range state.Schedule {
		list = append(list, control.ShutdownGroup{Priority: g.Priority, TimeSeconds: g.Time.Seconds()})
	}
	for _, p := range byWave(state.Pods) {
		list[p.Group].Pods = append(list[p.Group].Pods, control.ShutdownPod{
			Pod: p.Pod, Last: p.Wave > 0, Status: string(p.Status), GraceSeconds: p.Grace.Seconds(), Refused: p.Refused,
		})
	}
	return list
}

// groupsPlanned returns the groups of a shutdown that would begin now. Each pod has
// the grace period that it would get if no pod stopped early.
func groupsPlanned(v *loop.View, schedule shutdown.Schedule) (list control.List[control.ShutdownGroup]) {
	state, graces := plan(v, schedule)
	for _, g := range schedule {
		list = append(list, control.ShutdownGroup{Priority: g.Priority, TimeSeconds: g.Time.Seconds()})
	}
	for _, p := range byWave(state.Pods) {
		list[p.Group].Pods = append(list[p.Group].Pods, control.ShutdownPod{
			Pod: p.Pod, Last: p.Wave > 0, Status: "planned", GraceSeconds: graces[p.UID].Seconds(),
		})
	}
	return list
}

// plan simulates, with shutdown.Step, a shutdown in which every pod uses its whole
// grace period. It returns the final state and the grace period of each pod.
func plan(v *loop.View, schedule shutdown.Schedule) (shutdown.State, map[string]time.Duration) {
	in := shutdown.Inputs{Event: shutdown.Begin, Schedule: schedule}
	for i := range v.Snapshot.Pods {
		if p := &v.Snapshot.Pods[i]; !p.Essential {
			in.Pods = append(in.Pods, *p)
		}
	}
	graces := map[string]time.Duration{}
	state, orders := shutdown.Step(shutdown.State{}, in, v.Time)
	for {
		for _, stop := range orders.Stop {
			graces[stop.UID] = stop.Grace
		}
		if state.Phase != shutdown.Stopping || orders.Wake.IsZero() {
			return state, graces
		}
		state, orders = shutdown.Step(state, shutdown.Inputs{Pods: in.Pods}, orders.Wake)
	}
}

// byWave returns the pods of a shutdown in the order in which those of a group stop.
func byWave(pods []shutdown.PodState) []shutdown.PodState {
	return slices.SortedStableFunc(slices.Values(pods), func(a, b shutdown.PodState) int { return cmp.Compare(a.Wave, b.Wave) })
}

// BeginShutdown implements control.Source.
func (b *Backend) BeginShutdown(ctx context.Context) error {
	return b.o.Shutdown.Command(ctx, shutdown.Begin)
}

// CancelShutdown implements control.Source.
func (b *Backend) CancelShutdown(ctx context.Context) error {
	return b.o.Shutdown.Command(ctx, shutdown.Cancel)
}
