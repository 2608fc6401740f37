package shutdown

import (
	"slices"
	"time"
)

// Phase is the phase of a shutdown.
type Phase string

// The phases.
const (
	Idle     Phase = ""         // no shutdown
	Stopping Phase = "stopping" // pods are being stopped
	// Ended: all pods are gone, or the time is up. The node shuts down, and new
	// pods are still stopped.
	Ended Phase = "ended"
)

// State is the state that [Step] passes from one step to the next. The zero State is
// that of a node that is not shutting down. It can be saved as JSON. Its times are those
// of the clock passed to Step, so a caller that restores it after a restart must convert
// them with [State.EachTime], and then pass [Resume] to Step.
type State struct {
	Phase Phase `json:"phase,omitempty"`
	// Began and Ended are the times of the last shutdown. Ended is when its last pod
	// was gone, its time was up, or it was canceled; zero while Phase is Stopping.
	Began time.Time `json:"began,omitzero"`
	Ended time.Time `json:"over,omitzero"`
	// Manual reports that an operator started it, and not the service manager.
	Manual bool `json:"manual,omitempty"`
	// Canceled reports that the last shutdown was canceled.
	Canceled bool `json:"calledOff,omitempty"`
	// Fences reports that the pods of a kubelet are fenced, so that it does not start them again.
	Fences bool `json:"fences,omitempty"`

	// Schedule is the schedule of the shutdown in progress. Current is the index of
	// the group that is being stopped. After the last group, Current is the number of
	// groups, and Step waits only for pods that are not gone yet. Wave is the last wave of
	// the current group that was asked to stop, and WaveBegan is when that was.
	Schedule  Schedule  `json:"schedule,omitempty"`
	Current   int       `json:"current,omitempty"`
	Wave      int       `json:"wave,omitempty"`
	WaveBegan time.Time `json:"turn,omitzero"`
	// Listed reports that the pods were listed since the beginning, so that a pod
	// that is not in Pods is new.
	Listed bool `json:"listed,omitempty"`
	// Resuming reports that the pods that an earlier run asked to stop must be asked
	// again, once they are listed.
	Resuming bool       `json:"resuming,omitempty"`
	Pods     []PodState `json:"pods,omitempty"`
}

// Status is the status of a pod in a shutdown.
type Status string

// The statuses.
const (
	Waiting Status = "waiting" // for its group
	Asked   Status = "asked"   // to stop
	Killed  Status = "killed"  // a kill was ordered; the pod still exists
	Gone    Status = "gone"
	// StoppedInDryRun: in dry run, would have been asked to stop.
	StoppedInDryRun Status = "pretended"
)

// PodState is a pod of a shutdown.
type PodState struct {
	UID   string `json:"uid"`
	Pod   string `json:"pod"`
	Group int    `json:"group"` // index in the schedule
	// Wave is the pod's wave within the group ([WaveOf]).
	Wave int `json:"wave,omitempty"`
	// Refused reports that the pod started, or was restarted, after the shutdown had
	// begun. Its group does not wait for it, but the end of the shutdown does.
	Refused bool `json:"refused,omitempty"`
	// Restarted reports that the pod was restarted after it had been refused. The
	// shutdown does not wait for it.
	Restarted bool   `json:"returning,omitempty"`
	Status    Status `json:"status"`
	// Grace is the grace period passed to the runtime when the pod was asked to
	// stop, in whole seconds. Due is the end of the pod's time, and Limit when it
	// is killed directly.
	Grace time.Duration `json:"graceNanoseconds,omitempty"`
	Due   time.Time     `json:"due,omitzero"`
	Limit time.Time     `json:"limit,omitzero"`
	// LastStart is the start of the pod's youngest container when the pod was asked
	// to stop. A younger container means that the pod was restarted.
	LastStart int64 `json:"lastStart,omitempty"`
}

// remains reports whether the pod still has to stop.
func (p *PodState) remains() bool { return p.Status != Gone && p.Status != StoppedInDryRun }

// Clone returns a copy of s that shares nothing that Step modifies.
func (s State) Clone() State {
	s.Pods, s.Schedule = slices.Clone(s.Pods), slices.Clone(s.Schedule)
	return s
}

// EachTime calls f with each time of the state that is set.
func (s *State) EachTime(f func(*time.Time)) {
	times := []*time.Time{&s.Began, &s.Ended, &s.WaveBegan}
	for i := range s.Pods {
		times = append(times, &s.Pods[i].Due, &s.Pods[i].Limit)
	}
	for _, t := range times {
		if !t.IsZero() {
			f(t)
		}
	}
}

// Active reports whether a shutdown is in progress or has ended without
// cancellation, so that new pods are stopped.
func (s *State) Active() bool { return s.Phase != Idle }

// End returns the latest end of a group, which is given by its index.
func (s *State) End(group int) time.Time {
	return s.Began.Add(s.Schedule[:group+1].Total())
}

// Deadline returns the latest end of the last group.
func (s *State) Deadline() time.Time { return s.Began.Add(s.Schedule.Total()) }
