package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// State is what Step remembers from one step to the next. The zero State knows
// nothing. It can be kept as JSON; its times mean something only to the clock
// that Step was given, so whoever keeps it across a restart moves them with
// EachTime.
type State struct {
	Timers     []Timer          `json:"timers,omitempty"`
	Conditions []ConditionTimer `json:"conditions,omitempty"`
	Victims    []Victim         `json:"victims,omitempty"`
	Futile     []Backoff        `json:"futile,omitempty"`
	Reclaim    *Reclaiming      `json:"reclaim,omitempty"`
	Pretended  []Pretended      `json:"pretended,omitempty"`
	Revivals   []Revival        `json:"revivals,omitempty"`
	Contended  []Contended      `json:"contended,omitempty"`
	// Readings are what crossings of hard memory thresholds are compared with.
	// They are not kept across a restart: what a wait needs of them is in its Timer.
	Readings []ThresholdReadings `json:"-"`
}

// ThresholdReadings are the remembered readings of one threshold's signal.
type ThresholdReadings struct {
	Threshold Key
	signal.Readings
}

// Timer is a threshold that is met.
type Timer struct {
	Threshold Key       `json:"threshold"`
	Since     time.Time `json:"since"`
	// Past tells that the grace period had passed at the last step, so that
	// the threshold stays met until its minimum reclaim is back too.
	Past bool `json:"past,omitempty"`
	// Crossing is the first reading below a hard memory threshold.
	Crossing signal.MemoryReading `json:"crossing,omitzero"`
}

// ConditionTimer is a condition and when it was last seen to hold.
type ConditionTimer struct {
	Condition signal.Condition `json:"condition"`
	LastSeen  time.Time        `json:"lastSeen"`
}

// VictimStatus tells how far an evicted pod has gone.
type VictimStatus string

// What a victim's status can be.
const (
	// Unsettled: what it is expected to bring still counts.
	Unsettled VictimStatus = "unsettled"
	// Settled: it brought what was expected, or was waited for long enough.
	Settled VictimStatus = "settled"
	// Stuck: it has processes left and has not given anything back for the
	// whole settle timeout.
	Stuck VictimStatus = "stuck"
	// Failed: the order could not be carried out at all.
	Failed VictimStatus = "failed"
)

// Victim is a pod that was ordered to go and is still listed.
type Victim struct {
	UID    string `json:"uid"`
	Pod    string `json:"pod"`
	Cause  string `json:"cause"`
	Signal Key    `json:"signal"`
	// Soft tells that the pod was given a grace period, which Due ends.
	Soft    bool      `json:"soft,omitempty"`
	Decided time.Time `json:"decided"`
	Due     time.Time `json:"due"`
	// Expected is what the pod was expected to bring when it was chosen, in
	// bytes of memory, and Beside what it used beside that, which a kill may
	// not bring; Lowest is the least of the expected that it has held since,
	// and Fell when it came to that.
	Expected int64        `json:"expected"`
	Beside   int64        `json:"beside,omitempty"`
	Lowest   int64        `json:"lowest"`
	Fell     time.Time    `json:"fell"`
	Status   VictimStatus `json:"status"`
	// Kubelet and LastStart are the pod's.
	Kubelet   bool  `json:"kubelet,omitempty"`
	LastStart int64 `json:"lastStart,omitempty"`
	// Limit tells that the pod exceeded its own limit: Signal is then only
	// where its usage lies.
	Limit bool `json:"limit,omitempty"`
}

// Backoff is a signal for which evicting pods does not help enough.
type Backoff struct {
	Signal signal.Signal `json:"signal"` // the first of its group
	Until  time.Time     `json:"until"`
	Delay  time.Duration `json:"delay"` // the one that ends at Until
	// None tells that no pod was chosen when the signal was last found futile, so that
	// there is no delay.
	None bool `json:"none,omitempty"`
	// Soft says that a soft threshold began it: it holds up no hard one.
	Soft bool `json:"soft,omitempty"`
	// Poor counts the last victims in a row that returned less than half of
	// what was expected.
	Poor int `json:"poor,omitempty"`
}

// Reclaiming is a node-level reclaim that was asked for.
type Reclaiming struct {
	Threshold Key  `json:"threshold"`
	Stage     int  `json:"stage"` // of the layout's stages for the signal
	Waiting   bool `json:"waiting"`
}

// Pretended is a pod that dry run counts as gone.
type Pretended struct {
	UID    string        `json:"uid"`
	Signal signal.Signal `json:"signal"` // whose episode it belongs to
	// Limit tells that the episode is the pod's own, over its limit, or that of
	// Contention where that is set.
	Limit      bool             `json:"limit,omitempty"`
	Contention signal.Condition `json:"contention,omitempty"`
}

// Revival is a pod that a kubelet brought back after its eviction.
type Revival struct {
	UID   string        `json:"uid"`
	Gone  bool          `json:"gone"` // evicted and not seen again yet
	Until time.Time     `json:"until"`
	Delay time.Duration `json:"delay"`
}

// EachTime calls f for every time in the state, to be changed in place. The
// state must not be shared.
func (s *State) EachTime(f func(*time.Time)) {
	for i := range s.Timers {
		f(&s.Timers[i].Since)
		if c := &s.Timers[i].Crossing; !c.Time.IsZero() {
			f(&c.Time)
		}
	}
	for i := range s.Conditions {
		f(&s.Conditions[i].LastSeen)
	}
	for i := range s.Victims {
		v := &s.Victims[i]
		f(&v.Decided)
		f(&v.Due)
		f(&v.Fell)
	}
	for i := range s.Futile {
		f(&s.Futile[i].Until)
	}
	for i := range s.Revivals {
		f(&s.Revivals[i].Until)
	}
	for i := range s.Contended {
		f(&s.Contended[i].Acted)
	}
}

// Clone returns a copy that shares nothing with s.
func (s State) Clone() State {
	s.Timers = slices.Clone(s.Timers)
	s.Conditions = slices.Clone(s.Conditions)
	s.Victims = slices.Clone(s.Victims)
	s.Futile = slices.Clone(s.Futile)
	s.Pretended = slices.Clone(s.Pretended)
	s.Revivals = slices.Clone(s.Revivals)
	s.Contended = slices.Clone(s.Contended)
	s.Readings = slices.Clone(s.Readings)
	if s.Reclaim != nil {
		r := *s.Reclaim
		s.Reclaim = &r
	}
	return s
}

func (s *State) timer(k Key) *Timer {
	for i := range s.Timers {
		if s.Timers[i].Threshold == k {
			return &s.Timers[i]
		}
	}
	return nil
}

// readings returns the remembered readings of a threshold, making them where there
// are none.
func (s *State) readings(k Key) *signal.Readings {
	for i := range s.Readings {
		if s.Readings[i].Threshold == k {
			return &s.Readings[i].Readings
		}
	}
	s.Readings = append(s.Readings, ThresholdReadings{Threshold: k})
	return &s.Readings[len(s.Readings)-1].Readings
}

func (s *State) victim(uid string) *Victim {
	for i := range s.Victims {
		if s.Victims[i].UID == uid {
			return &s.Victims[i]
		}
	}
	return nil
}

// group returns the signal under which the two memory signals are one.
func group(s signal.Signal) signal.Signal {
	if s.IsMemory() {
		return signal.MemoryAvailable
	}
	return s
}

// busy returns why a pod is not to be chosen although nothing about it speaks
// against it: it is on its way out, or has just come back.
func (s *State) busy(uid string, now time.Time) (reason, detail string) {
	if s.victim(uid) != nil {
		return ReasonTerminating, ""
	}
	if r := s.heldOff(uid, now); r != nil {
		return ReasonProtected, "came back after its eviction and is left alone for " + r.Until.Sub(now).Round(time.Second).String()
	}
	if s.pretends(uid) {
		return ReasonTerminating, "would have been evicted"
	}
	return "", ""
}

// isBusy reports whether busy has a reason. It allocates nothing.
func (s *State) isBusy(uid string, now time.Time) bool {
	return s.victim(uid) != nil || s.heldOff(uid, now) != nil || s.pretends(uid)
}

// heldOff returns the revival for which a pod is left alone, nil for none.
func (s *State) heldOff(uid string, now time.Time) *Revival {
	for i := range s.Revivals {
		if r := &s.Revivals[i]; r.UID == uid && !r.Gone && now.Before(r.Until) {
			return r
		}
	}
	return nil
}

func (s *State) pretends(uid string) bool {
	return slices.ContainsFunc(s.Pretended, func(p Pretended) bool { return p.UID == uid })
}

// backingOff reports whether a futile signal's next victim has to wait. One for
// a hard threshold does not wait because a soft one was in vain.
func (s *State) backingOff(g signal.Signal, hard bool, now time.Time) bool {
	for i := range s.Futile {
		if b := &s.Futile[i]; b.Signal == g && now.Before(b.Until) && !(hard && b.Soft) {
			return true
		}
	}
	return false
}

// disappointed reports whether victims of the group do not return what is
// expected of them.
func (s *State) disappointed(g signal.Signal) bool {
	stuck := 0
	for i := range s.Victims {
		if v := &s.Victims[i]; v.Status == Stuck && !v.Limit && group(v.Signal.Signal) == g {
			stuck++
		}
	}
	poor := false
	for i := range s.Futile {
		poor = poor || s.Futile[i].Signal == g && s.Futile[i].Poor >= poorRun
	}
	return stuck >= mostStuck || poor
}

// conclude notes what a victim's end tells of the next ones.
func (s *State) conclude(v *Victim, end ending) {
	switch {
	case end == gotEnough:
		s.returned(group(v.Signal.Signal), false)
	case end == gotStuck && !v.Limit:
		s.returned(group(v.Signal.Signal), v.Lowest > v.Expected/2)
	}
}

// returned notes whether a victim of the group gave back less than half of what
// was expected.
func (s *State) returned(g signal.Signal, poor bool) {
	if poor {
		s.backoff(g).Poor++
		return
	}
	for i := range s.Futile {
		if s.Futile[i].Signal == g {
			s.Futile[i].Poor = 0
		}
	}
}

// backoff returns the group's entry, making it where there is none.
func (s *State) backoff(g signal.Signal) *Backoff {
	for i := range s.Futile {
		if s.Futile[i].Signal == g {
			return &s.Futile[i]
		}
	}
	s.Futile = append(s.Futile, Backoff{Signal: g})
	return &s.Futile[len(s.Futile)-1]
}
