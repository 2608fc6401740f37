package evict

import (
	"slices"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// State is what Step remembers from one Step to the next. The zero State is the initial
// one. It can be stored as JSON. Its times are of the clock that the caller passed to
// Step; a caller that stores the state across a restart converts them with EachTime.
type State struct {
	Timers              []Timer              `json:"timers,omitempty"`
	Conditions          []ConditionTimer     `json:"conditions,omitempty"`
	Victims             []Victim             `json:"victims,omitempty"`
	Backoffs            []Backoff            `json:"futile,omitempty"`
	Reclaim             *PendingReclaim      `json:"reclaim,omitempty"`
	DryRunVictims       []DryRunVictim       `json:"pretended,omitempty"`
	Revivals            []Revival            `json:"revivals,omitempty"`
	ContentionEvictions []ContentionEviction `json:"contended,omitempty"`
	// Ending are the pods that end without evictd, by UID.
	Ending []EndingPod `json:"ending,omitempty"`
	// Refusals are the pods that were refused because they arrived under memory pressure.
	Refusals []Refusal `json:"refusals,omitempty"`
	// LimitEvicted is when a kubelet's pod was last evicted for its own local-storage limit.
	LimitEvicted time.Time `json:"limitEvicted,omitzero"`
	// Readings are what crossings of hard memory thresholds are compared with. They are
	// not stored across a restart: a waiting crossing keeps its first reading in its
	// Timer.
	Readings []ThresholdReadings `json:"-"`
}

// ThresholdReadings are the recent readings of one threshold's signal.
type ThresholdReadings struct {
	Threshold ThresholdKey
	signal.Readings
}

// Timer is the state of a threshold that is met.
type Timer struct {
	Threshold ThresholdKey `json:"threshold"`
	Since     time.Time    `json:"since"`
	// Active is set if the threshold was acted on at the last Step: its grace period had
	// ended, or its crossing did not wait for file cache. The threshold then stays met
	// until the signal has risen by its minimum reclaim too.
	Active bool `json:"past,omitempty"`
	// Crossing is the first reading below a hard memory threshold.
	Crossing signal.MemoryReading `json:"crossing,omitzero"`
	// Covered is when pods that end without evictd were first subtracted from the deficit; zero
	// if they were not.
	Covered time.Time `json:"covered,omitzero"`
}

// ConditionTimer is a condition and when it was last true.
type ConditionTimer struct {
	Condition signal.Condition `json:"condition"`
	// Since is since when the condition is published, or was when it last was; zero if unknown.
	Since    time.Time `json:"since,omitzero"`
	LastSeen time.Time `json:"lastSeen"`
}

// VictimStatus is the progress of an evicted pod.
type VictimStatus string

// The statuses of a victim.
const (
	// Unsettled: the memory that it is expected to free is subtracted from the deficit.
	Unsettled VictimStatus = "unsettled"
	// Settled: it freed what was expected, or it is assumed to because usage is not
	// measured.
	Settled VictimStatus = "settled"
	// Stuck: it has processes left and has freed nothing during the settle timeout.
	Stuck VictimStatus = "stuck"
	// Failed: the order could not be carried out.
	Failed VictimStatus = "failed"
)

// Victim is a pod that was ordered to be evicted and is still listed.
type Victim struct {
	UID    string       `json:"uid"`
	Pod    string       `json:"pod"`
	Cause  string       `json:"cause"`
	Signal ThresholdKey `json:"signal"`
	// Soft is set if the pod was given a grace period, which ends at Due.
	Soft    bool      `json:"soft,omitempty"`
	Decided time.Time `json:"decided"`
	Due     time.Time `json:"due"`
	// Expected is the memory that the eviction was expected to free when the pod was
	// chosen, in bytes.
	Expected int64 `json:"expected"`
	// NotFreed is the pod's other memory at that time, which a kill may not free.
	NotFreed int64 `json:"beside,omitempty"`
	// Lowest is the least of the expected memory that the pod has used since.
	Lowest int64 `json:"lowest"`
	// ProgressAt is when the usage fell to Lowest.
	ProgressAt time.Time    `json:"fell"`
	Status     VictimStatus `json:"status"`
	// Kubelet and LastStart are copied from the pod.
	Kubelet   bool  `json:"kubelet,omitempty"`
	LastStart int64 `json:"lastStart,omitempty"`
	// OverLimit is set if no threshold caused the eviction, but a limit of the pod's own
	// or contention. Signal is then one that the pod's usage counts for, and decides nothing.
	OverLimit bool `json:"limit,omitempty"`
}

// Backoff is the state of a signal that evicting pods does not relieve: the back-off
// before the next victim, and the number of victims that freed too little.
type Backoff struct {
	Signal signal.Signal `json:"signal"` // the first signal of its group
	Until  time.Time     `json:"until"`
	Delay  time.Duration `json:"delay"` // the length of the back-off that ends at Until
	// NoVictim is set if no pod was chosen when the signal was last found futile. There is
	// no delay then.
	NoVictim bool `json:"none,omitempty"`
	// Soft is set if a soft threshold started the back-off. It does not delay hard
	// thresholds.
	Soft bool `json:"soft,omitempty"`
	// PoorReturns counts the most recent consecutive victims that freed less than half of what
	// was expected.
	PoorReturns int `json:"poor,omitempty"`
}

// PendingReclaim is a node-level reclaim that was ordered and whose Outcome Step waits for.
type PendingReclaim struct {
	Threshold ThresholdKey `json:"threshold"`
	Stage     int          `json:"stage"` // index into the layout's stages for the signal
}

// DryRunVictim is a pod that dry run would have evicted and counts as gone until the
// episode ends.
type DryRunVictim struct {
	UID    string        `json:"uid"`
	Cause  string        `json:"cause"`  // of the order
	Signal signal.Signal `json:"signal"` // whose episode it belongs to
	// OverLimit is set if the episode is not the signal's: it is that of Contention if that
	// is set, else that of the pod's own limit.
	OverLimit  bool             `json:"limit,omitempty"`
	Contention signal.Condition `json:"contention,omitempty"`
}

// Revival is a pod that was evicted and that its kubelet started again, or may.
type Revival struct {
	UID   string        `json:"uid"`
	Gone  bool          `json:"gone"` // evicted and not listed again yet
	Until time.Time     `json:"until"`
	Delay time.Duration `json:"delay"`
}

// EachTime calls f for every time in the state; f may change it in place. The state
// must not be shared.
func (s *State) EachTime(f func(*time.Time)) {
	optional := func(t *time.Time) {
		if !t.IsZero() {
			f(t)
		}
	}
	for i := range s.Timers {
		f(&s.Timers[i].Since)
		optional(&s.Timers[i].Crossing.Time)
		optional(&s.Timers[i].Covered)
	}
	for i := range s.Conditions {
		f(&s.Conditions[i].LastSeen)
		optional(&s.Conditions[i].Since)
	}
	for i := range s.Ending {
		f(&s.Ending[i].Seen)
		f(&s.Ending[i].EndsBy)
	}
	for i := range s.Refusals {
		f(&s.Refusals[i].At)
	}
	for i := range s.Victims {
		v := &s.Victims[i]
		f(&v.Decided)
		f(&v.Due)
		f(&v.ProgressAt)
	}
	for i := range s.Backoffs {
		f(&s.Backoffs[i].Until)
	}
	for i := range s.Revivals {
		f(&s.Revivals[i].Until)
	}
	for i := range s.ContentionEvictions {
		f(&s.ContentionEvictions[i].Acted)
	}
	optional(&s.LimitEvicted)
}

// Clone returns a copy that shares nothing with s.
func (s State) Clone() State {
	s.Timers = slices.Clone(s.Timers)
	s.Conditions = slices.Clone(s.Conditions)
	s.Victims = slices.Clone(s.Victims)
	s.Backoffs = slices.Clone(s.Backoffs)
	s.DryRunVictims = slices.Clone(s.DryRunVictims)
	s.Revivals = slices.Clone(s.Revivals)
	s.ContentionEvictions = slices.Clone(s.ContentionEvictions)
	s.Ending = slices.Clone(s.Ending)
	s.Refusals = slices.Clone(s.Refusals)
	s.Readings = slices.Clone(s.Readings)
	if s.Reclaim != nil {
		r := *s.Reclaim
		s.Reclaim = &r
	}
	return s
}

func (s *State) timer(k ThresholdKey) *Timer {
	for i := range s.Timers {
		if s.Timers[i].Threshold == k {
			return &s.Timers[i]
		}
	}
	return nil
}

// readings returns the readings of a threshold. It adds an empty entry if there is
// none.
func (s *State) readings(k ThresholdKey) *signal.Readings {
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

// group returns s, or MemoryAvailable for both memory signals, which are acted on as
// one.
func group(s signal.Signal) signal.Signal {
	if s.IsMemory() {
		return signal.MemoryAvailable
	}
	return s
}

// ineligible returns why a pod can't be chosen now, unlike Policy.exempt for a reason
// that passes: it is being evicted, in dry run it counts as gone, or it was started
// again after an eviction a short time ago. It returns "" if it can be chosen.
func (s *State) ineligible(uid string, now time.Time) (reason, detail string) {
	if s.victim(uid) != nil {
		return ReasonTerminating, ""
	}
	if r := s.revivalBackoff(uid, now); r != nil {
		return ReasonProtected, "came back after its eviction and is left alone for " + r.Until.Sub(now).Round(time.Second).String()
	}
	if s.isDryRunVictim(uid) {
		return ReasonTerminating, "would have been evicted"
	}
	return "", ""
}

// isIneligible reports whether ineligible returns a reason. It does not allocate.
func (s *State) isIneligible(uid string, now time.Time) bool {
	return s.victim(uid) != nil || s.revivalBackoff(uid, now) != nil || s.isDryRunVictim(uid)
}

// revivalBackoff returns the revival because of which a pod is not evicted now, or nil.
func (s *State) revivalBackoff(uid string, now time.Time) *Revival {
	for i := range s.Revivals {
		if r := &s.Revivals[i]; r.UID == uid && now.Before(r.Until) {
			return r
		}
	}
	return nil
}

func (s *State) isDryRunVictim(uid string) bool {
	return slices.ContainsFunc(s.DryRunVictims, func(v DryRunVictim) bool { return v.UID == uid })
}

// backingOff reports whether the next victim of a futile signal has to wait. A hard
// threshold does not wait for a back-off that a soft one started.
func (s *State) backingOff(g signal.Signal, hard bool, now time.Time) bool {
	for i := range s.Backoffs {
		if b := &s.Backoffs[i]; b.Signal == g && now.Before(b.Until) && !(hard && b.Soft) {
			return true
		}
	}
	return false
}

// poorReturns reports whether the last victims of a group did not free what was
// expected: two are stuck, or three in a row freed less than half.
func (s *State) poorReturns(g signal.Signal) bool {
	stuck := 0
	for i := range s.Victims {
		if v := &s.Victims[i]; v.Status == Stuck && !v.OverLimit && group(v.Signal.Signal) == g {
			stuck++
		}
	}
	poor := false
	for i := range s.Backoffs {
		poor = poor || s.Backoffs[i].Signal == g && s.Backoffs[i].PoorReturns >= poorReturnsLimit
	}
	return stuck >= stuckLimit || poor
}

// noteSettleResult updates the count of poor returns with the end of the wait for a
// victim.
func (s *State) noteSettleResult(v *Victim, end settleResult) {
	switch {
	case end == returnedEnough:
		s.noteReturn(v, false)
	case end == becameStuck:
		s.noteReturn(v, v.Lowest > v.Expected/2)
	}
}

// noteReturn updates the count of consecutive victims, of the group of the victim's signal,
// that freed less than half of what was expected. What a pod frees that was evicted for its
// own limit or for contention says nothing about the pods that are evicted for the signal, so
// it does not change the count.
func (s *State) noteReturn(v *Victim, poor bool) {
	if v.OverLimit {
		return
	}
	g := group(v.Signal.Signal)
	if poor {
		s.backoff(g).PoorReturns++
		return
	}
	for i := range s.Backoffs {
		if s.Backoffs[i].Signal == g {
			s.Backoffs[i].PoorReturns = 0
		}
	}
}

// backoff returns the group's Backoff. It adds one if there is none.
func (s *State) backoff(g signal.Signal) *Backoff {
	for i := range s.Backoffs {
		if s.Backoffs[i].Signal == g {
			return &s.Backoffs[i]
		}
	}
	s.Backoffs = append(s.Backoffs, Backoff{Signal: g})
	return &s.Backoffs[len(s.Backoffs)-1]
}
