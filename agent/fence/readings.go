package fence

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// devices returns the devices of Power-Management whose methods have the action ("" for any), of levels 0 to last.
func (p *Plan) devices(action Action, last int) []string {
	var devices []string
	for i, l := range p.PowerManagement {
		for _, m := range l.Methods {
			if i <= last && m.Device != "" && (action == "" || m.Action == action) && !slices.Contains(devices, m.Device) {
				devices = append(devices, m.Device)
			}
		}
	}
	return devices
}

// powerDevices returns all devices of Power-Management. One of them that reads on contradicts a proof.
func (s *State) powerDevices() []string {
	return s.Plan.devices("", len(s.Plan.PowerManagement))
}

// takeReadings adds the new readings of power devices. For each device the state has at most the last reading on, the
// last unknown one, and the first and the last reading off after those.
func (r *run) takeReadings() {
	fresh := slices.Clone(r.in.Readings)
	slices.SortStableFunc(fresh, func(a, b Reading) int { return a.Ended.Compare(b.Ended.Time) })
	// The clock was set back, or that of the controller before was ahead: they tell nothing about the time from now on.
	r.s.Readings = slices.DeleteFunc(r.s.Readings, func(x Reading) bool { return x.Started.After(r.now) })
	devices := r.s.powerDevices()
	for _, x := range fresh {
		if slices.Contains(devices, x.Device) {
			r.takeReading(x)
		}
	}
	// While its Lease changed, the machine was not off. While the node is alive nothing is proven, and a device that is
	// slower to read than the Lease is renewed would never read off.
	if l := r.in.Lease; l.Known && l.Found && !r.alive() {
		r.s.Readings = slices.DeleteFunc(r.s.Readings, func(x Reading) bool {
			return x.Power == PowerOff && x.Started.Time.Before(l.UnchangedSince)
		})
	}
}

func (r *run) takeReading(x Reading) {
	s := r.s
	x.Started, x.Ended = microTime(x.Started.Time), microTime(x.Ended.Time)
	if x.Ended.IsZero() || x.Ended.After(r.now) {
		x.Ended = metav1.NewMicroTime(r.now)
	}
	x = r.identified(x)
	if x.Power == PowerOn {
		r.on = append(r.on, x)
		r.readIsOn(x)
		return
	}
	// A reading that began before the last act ended, or before a device was read on, tells nothing about the time
	// after.
	last := s.last(x.Device)
	switch {
	case !x.Started.After(s.LastAct.Time), last != nil && !x.Started.After(last.Started.Time):
		return
	case x.Power == PowerOff && !x.Started.After(s.LastOn.Time):
		return
	}
	if last != nil && last.Power == PowerUnknown && x.Power != PowerUnknown {
		r.back = append(r.back, x.Device)
	}
	if x.Power != PowerOff {
		x.Power = PowerUnknown
		s.drop(x.Device, PowerUnknown, PowerOff)
	} else {
		s.drop(x.Device, PowerOn)
		if first := s.first(x.Device); first != nil && first != s.last(x.Device) {
			*s.last(x.Device) = x
			return
		}
	}
	s.Readings = append(s.Readings, x)
}

// readIsOn adds a reading on. It invalidates all readings off that did not begin after it.
func (r *run) readIsOn(x Reading) {
	s := r.s
	if last := s.last(x.Device); last != nil && last.Power == PowerUnknown && x.Started.After(last.Started.Time) {
		r.back = append(r.back, x.Device)
	}
	if x.Ended.After(s.LastOn.Time) {
		s.LastOn = x.Ended
	}
	s.Readings = slices.DeleteFunc(s.Readings, func(o Reading) bool {
		return o.Power == PowerOff && !o.Started.After(x.Ended.Time)
	})
	if !x.Ended.After(s.LastAct.Time) {
		return
	}
	if last := s.last(x.Device); last != nil && last.Started.After(x.Ended.Time) {
		return
	}
	s.drop(x.Device, PowerOn, PowerUnknown)
	s.Readings = append(s.Readings, x)
}

// identified returns a reading whose machine was compared with the node: off of another machine is unknown.
func (r *run) identified(x Reading) Reading {
	if x.nameless() && x.Power != PowerOff || !r.s.checked(x.Device) {
		return x
	}
	match := SameMachine(x.UUID, r.s.Target.SystemUUID)
	if match == Yes {
		return x
	}
	r.mismatch(x, match)
	if x.Power == PowerOff {
		x.Power, x.Answered = PowerUnknown, true
		x.Error = "the device is not known to belong to this node"
	}
	return x
}

// nameless reports whether a device did not tell whose machine it is. A device that has no UUID did tell.
func (x *Reading) nameless() bool {
	return x.UUID == "" && (x.Error != "" || x.Power != PowerOn && x.Power != PowerOff)
}

// checked reports whether a method of the device compares the UUID.
func (s *State) checked(device string) bool {
	for _, l := range s.Plan.PowerManagement {
		for _, m := range l.Methods {
			if m.Device == device && m.Identity != CheckNone {
				return true
			}
		}
	}
	return false
}

// drop removes the readings of a device with one of the powers.
func (s *State) drop(device string, powers ...Power) {
	s.Readings = slices.DeleteFunc(s.Readings, func(x Reading) bool {
		return x.Device == device && slices.Contains(powers, x.Power)
	})
}

// last returns the newest reading of a device, nil if there is none.
func (s *State) last(device string) *Reading { return lastOf(s.Readings, device) }

// first returns the oldest reading off of a device, nil if there is none.
func (s *State) first(device string) *Reading { return firstOff(s.Readings, device) }

// lastOf returns the newest reading of a device in a list, nil if there is none.
func lastOf(list []Reading, device string) *Reading {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Device == device {
			return &list[i]
		}
	}
	return nil
}

// firstOff returns the oldest reading off of a device in a list, nil if there is none.
func firstOff(list []Reading, device string) *Reading {
	for i := range list {
		if list[i].Device == device && list[i].Power == PowerOff {
			return &list[i]
		}
	}
	return nil
}

// away reports whether a device did not answer since the last act, or during an act of this attempt. A BMC that starts
// says off: the readings then must span Settle.
func (s *State) away(device string) bool {
	for _, x := range s.Readings {
		if x.Device == device && x.Power == PowerUnknown {
			return true
		}
	}
	for _, a := range s.Acts {
		if a.Outcome.Kind == Unknown && int(a.Level) < len(s.Plan.PowerManagement) && a.Step == PowerManagement {
			if m := s.Plan.PowerManagement[a.Level].Methods; int(a.Index) < len(m) && m[a.Index].Device == device {
				return true
			}
		}
	}
	return false
}

// read orders a reading of each power device that has none after the time, and of each whose last one is as old as the
// interval.
func (r *run) read(devices []string, after time.Time, interval time.Duration) {
	s, on := r.s, r.s.LastOn.Time
	if l := r.in.Lease; l.Known && l.Found && !r.alive() {
		on = latest(on, l.UnchangedSince)
	}
	switch {
	case r.counts(latest(after, s.LastAct.Time), on):
		r.readFrom(s.Readings, devices, after, interval)
	case s.Phase == Releasing:
		// On contradicts the proof whatever the clock says. Off is dropped, and not saved: the step after it is not at once.
		r.readFrom(r.in.Readings, devices, time.Time{}, interval)
	}
}

// counts reports whether a reading off that begins now is taken: after a time, and not before the last reading on. The clock
// may have been set back: each reading would be dropped, and followed by another one at once.
func (r *run) counts(after, on time.Time) bool {
	if r.now.After(after) && !r.now.Before(on) {
		return true
	}
	r.wake(latest(after, on).Add(minWake))
	return false
}

// readFrom orders readings as read does, of devices whose last readings are in a list.
func (r *run) readFrom(list []Reading, devices []string, after time.Time, interval time.Duration) {
	for _, d := range devices {
		last := lastOf(list, d)
		if last != nil && last.Started.After(after) {
			if due := last.Ended.Add(interval); r.now.Before(due) {
				r.wake(due)
				continue
			}
		}
		r.orders.Read = append(r.orders.Read, d)
		r.wake(r.now.Add(r.timings().ProofInterval.Duration))
	}
}

// offTwice returns two readings off of each device of a level in use, ProofInterval apart, during which the Lease did
// not change; nil if there is no such level, or a device of the node was read on since.
func (r *run) offTwice() []Reading {
	s, l := r.s, r.in.Lease
	// Between two renewals the Lease of a node that runs does not change either: it must be unchanged for Grace.
	if r.in.Node.Ready == ReadyTrue || !stale(l, r.timings(), r.now) {
		return nil
	}
	for _, x := range s.Readings {
		if x.Power == PowerOn {
			return nil
		}
	}
	for i := range s.Plan.PowerManagement {
		if i > int(s.Level) {
			break
		}
		proof := r.levelOff(s.Plan.PowerManagement[i])
		if bmc, _ := r.outletsOff(proof); bmc != "" {
			r.unpowered = bmc
		} else if proof != nil {
			return proof
		}
	}
	return nil
}

// levelOff returns the proof that all plugs of a level are off, nil if they are not proven off.
func (r *run) levelOff(level Level) []Reading {
	var proof []Reading
	for _, m := range level.Methods {
		if m.Action != Off || slices.ContainsFunc(proof, func(x Reading) bool { return x.Device == m.Device }) {
			continue
		}
		first, last := r.s.first(m.Device), r.s.last(m.Device)
		span := r.timings().ProofInterval.Duration
		if r.s.away(m.Device) {
			span = max(span, r.timings().Settle.Duration)
		}
		if first == nil || last.Started.Sub(first.Ended.Time) < span || first == last {
			return nil
		}
		proof = append(proof, *first, *last)
	}
	return proof
}

// powers describes what the devices report.
func (s *State) powers() string {
	var words []string
	for _, d := range s.powerDevices() {
		word := d + ": not read"
		if last := s.last(d); last != nil {
			word = fmt.Sprintf("%s: %s", d, last.Power)
			if last.Error != "" {
				word += " (" + last.Error + ")"
			}
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}
