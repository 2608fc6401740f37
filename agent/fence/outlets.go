package fence

import (
	"fmt"
	"slices"
	"time"
)

// outletsOff reports a contradiction between outlets that read off and a BMC of the node that answers nevertheless: a
// BMC that shares the power of its machine can't answer without it, so the outlets are not those of the machine. The
// readings are those of a level whose devices have no UUID, such as plugs of a PDU; a device that compares the UUID
// reads the power of the machine itself, and needs no outlet. Device is the BMC, empty if none answers. It is certain
// after Settle (60 s): until then the capacitors of the power supplies feed the BMC, which takes 5 to 10 W of the some
// 30 J to 150 J that they hold, and an answer tells nothing yet. Nor does one to a reading that began before the outlets
// were read off: but a BMC that takes longer to answer than a PDU must be read again, and be silent, before the release.
//
// Of the answers, on contradicts every proof at once, without this rule. Off with the UUID of the node is no
// contradiction: the machine is off by two independent devices, whoever feeds the BMC. That a BMC which has just started
// may say off for a moment is seen in the next reading, which says on. What is left are answers that say neither: an
// error, such as that of a wrong password, an unknown power, and off of a machine whose UUID is not the node's or
// can't be compared. A BMC that the plan says to have power of its own is left out; one that is silent tells nothing.
func (r *run) outletsOff(readings []Reading) (device string, certain bool) {
	s := r.s
	var off time.Time
	seen := map[string]bool{}
	for _, x := range readings {
		if s.checked(x.Device) {
			return "", false
		}
		if !seen[x.Device] {
			off = latest(off, x.Ended.Time)
		}
		seen[x.Device] = true
	}
	if len(readings) == 0 {
		return "", false
	}
	for _, d := range s.powerDevices() {
		last := s.last(d)
		if last == nil || !last.Answered || !s.checked(d) || s.separatePower(d) {
			continue
		}
		device = d
		if !last.Started.Time.Before(off.Add(r.timings().Settle.Duration)) {
			return d, true
		}
	}
	return device, false
}

// separatePower reports whether the plan says that a BMC has power of its own.
func (s *State) separatePower(device string) bool {
	return slices.ContainsFunc(s.Plan.PowerManagement, func(l Level) bool {
		return slices.ContainsFunc(l.Methods, func(m Method) bool { return m.Device == device && m.SeparatePower })
	})
}

// answersUnpowered says that a BMC answers although the outlets are off, and what to do about it.
func answersUnpowered(device string) string {
	return fmt.Sprintf("device %s answers although the outlets are off: they are not those of the node's machine, or the BMC "+
		"has power of its own, which separate_power=yes in its fence-method says", device)
}
