package shutdown

import (
	"slices"
	"time"
)

// Phase is how far a shutdown has come.
type Phase string

// The phases.
const (
	Idle     Phase = ""         // the node is not going down
	Stopping Phase = "stopping" // pods are being stopped
	// Ended: all that could be stopped has been, or the time is up. The node
	// goes down, and new pods are still refused.
	Ended Phase = "ended"
)

// State is what Step remembers from one step to the next. The zero State knows
// nothing. It can be kept as JSON; its times mean something only to the clock
// that Step was given, so whoever keeps it across a restart moves them with
// EachTime, and then gives Step [Resume].
type State struct {
	Phase Phase `json:"phase,omitempty"`
	// Began and Over are of the last shutdown: when it was heard of, and when
	// its last pod had gone, its time was up, or it was called off. Over is zero
	// while it goes on.
	Began time.Time `json:"began,omitzero"`
	Over  time.Time `json:"over,omitzero"`
	// Manual tells that an operator began it, and not the service manager.
	Manual bool `json:"manual,omitempty"`
	// CalledOff tells that the last shutdown was.
	CalledOff bool `json:"calledOff,omitempty"`

	// Schedule is that of the shutdown that goes on. Current is the group whose
	// turn it is, which began at Turn; beyond the last group nobody is waited
	// for but those that are overdue. Second tells that the second wave of the
	// current group has been asked to stop.
	Schedule Schedule  `json:"schedule,omitempty"`
	Current  int       `json:"current,omitempty"`
	Turn     time.Time `json:"turn,omitzero"`
	Second   bool      `json:"second,omitempty"`
	// Listed tells that the pods that ran at the beginning are known, so that
	// any other is a newcomer.
	Listed bool `json:"listed,omitempty"`
	// Resuming tells that those asked by an earlier run are to be asked again.
	Resuming bool     `json:"resuming,omitempty"`
	Pods     []Member `json:"pods,omitempty"`
}

// Status is how far a pod has come.
type Status string

// What a pod's status can be.
const (
	Waiting Status = "waiting" // for its turn
	Asked   Status = "asked"   // to stop
	Killed  Status = "killed"  // ordered to go, and not seen to have gone yet
	Gone    Status = "gone"
	// Pretended: it was told and, in a dry run, left alone.
	Pretended Status = "pretended"
)

// Member is a pod of a shutdown.
type Member struct {
	UID   string `json:"uid"`
	Pod   string `json:"pod"`
	Group int    `json:"group"` // in the schedule
	// Last tells that it is of the group's second wave.
	Last bool `json:"last,omitempty"`
	// Refused tells that it came when the shutdown had begun.
	Refused bool `json:"refused,omitempty"`
	// Returning tells that it had been refused before, so that nobody waits for it.
	Returning bool   `json:"returning,omitempty"`
	Status    Status `json:"status"`
	// Grace is what it was told to be given when it was Asked, in whole seconds;
	// Due is the end of what it was given indeed, and Limit when it is killed
	// directly if it is still there.
	Grace time.Duration `json:"graceNanoseconds,omitempty"`
	Due   time.Time     `json:"due,omitzero"`
	Limit time.Time     `json:"limit,omitzero"`
	// LastStart is the pod's when it was Asked: with a younger container it has
	// come back.
	LastStart int64 `json:"lastStart,omitempty"`
}

// there reports whether the pod is still to go.
func (m *Member) there() bool { return m.Status != Gone && m.Status != Pretended }

// Clone returns a State that shares nothing with s that Step changes.
func (s State) Clone() State {
	s.Pods, s.Schedule = slices.Clone(s.Pods), slices.Clone(s.Schedule)
	return s
}

// EachTime calls f with every time of the state that is set.
func (s *State) EachTime(f func(*time.Time)) {
	times := []*time.Time{&s.Began, &s.Over, &s.Turn}
	for i := range s.Pods {
		times = append(times, &s.Pods[i].Due, &s.Pods[i].Limit)
	}
	for _, t := range times {
		if !t.IsZero() {
			f(t)
		}
	}
}

// Active reports whether the node is going down, so that new pods are refused.
func (s *State) Active() bool { return s.Phase != Idle }

// End returns when the group of that index ends at the latest.
func (s *State) End(group int) time.Time {
	return s.Began.Add(s.Schedule[:group+1].Total())
}

// Deadline returns when the last group ends at the latest.
func (s *State) Deadline() time.Time { return s.Began.Add(s.Schedule.Total()) }
