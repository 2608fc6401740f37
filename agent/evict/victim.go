package evict

import "time"

// newVictim enters a pod that is ordered to go into the books. It
// allocates nothing.
func newVictim(pod *entry, k Key, o *Order, now time.Time) Victim {
	due := now
	if !o.Hard {
		due = now.Add(o.Grace)
	}
	return Victim{
		UID: pod.UID, Pod: o.Pod, Cause: o.Cause, Signal: k, Soft: !o.Hard, Decided: now, Due: due,
		Expected: pod.freeable, Beside: max(0, pod.memory-pod.freeable), Lowest: pod.freeable, Fell: due, Status: Unsettled,
		Kubelet: pod.Kubelet, LastStart: pod.LastStart,
	}
}

// holds returns how much of the expected a victim still holds, in bytes, where
// it uses memory of which freeable is what a kill brings. The kernel takes a
// huge page off the anonymous ones as soon as it is unmapped, but frees those of
// a whole mapping together later (mm/mmu_gather.c): until then they are used.
func (v *Victim) holds(memory, freeable int64) int64 {
	return max(freeable, min(v.Lowest, memory-v.Beside))
}

// harden ends a victim's grace, and reports whether there was one to end.
func (v *Victim) harden(measured bool, now time.Time) bool {
	if !v.Soft {
		return false
	}
	switch v.Status {
	case Failed, Stuck: // what could not be stopped can be killed
		v.Status = Unsettled
	case Settled:
		if !measured {
			return false // it is believed to have gone
		}
	}
	v.Soft, v.Due, v.Fell = false, now, now
	return true
}

// expired reports whether the victim, which is still there, has been left alone
// for long enough to be chosen again.
func (v *Victim) expired(measured bool, now time.Time) bool {
	return v.Status == Failed && now.Sub(v.Fell) >= failedFor ||
		v.Status == Stuck && now.Sub(v.Fell) >= stuckFor ||
		v.Status == Settled && measured && now.Sub(v.Fell) >= stuckFor && now.Sub(v.Due) >= stuckFor
}

// ending is how the wait for a victim came to its end.
type ending uint8

const (
	goesOn    ending = iota // it has not, or had before
	gotEnough               // what was expected is back
	gotStuck                // nothing has come back for too long
	gaveUp                  // it is believed to have brought all, as nothing is measured
)

// progress settles a victim that has brought enough or was waited for long
// enough. held is what it holds now, in bytes, if known tells so.
func (v *Victim) progress(held int64, known, measured bool, timeout time.Duration, now time.Time) ending {
	if v.Status != Unsettled && v.Status != Settled {
		return goesOn
	}
	end := goesOn
	if known {
		if v.Lowest-held >= min(progressBytes, max(1, v.Expected/progressShare)) {
			v.Lowest, v.Fell = held, now
		}
		if v.Status == Unsettled && v.Expected > 0 && held*10 <= v.Expected*(10-enoughReturned) {
			v.Status, end = Settled, gotEnough
		}
	}
	if v.Status == Settled {
		return end
	}
	from := v.Due
	if v.Fell.After(from) {
		from = v.Fell
	}
	if now.Sub(from) < timeout {
		return goesOn
	}
	v.Status = Settled
	if !measured {
		return gaveUp
	}
	v.Status = Stuck
	return gotStuck
}

// counts reports whether what the victim still holds is on its way back: while
// it is unsettled, and once it is settled as long as it goes on falling.
func (v *Victim) counts(measured bool, timeout time.Duration, now time.Time) bool {
	return v.Status == Unsettled || v.Status == Settled && measured && now.Sub(v.Fell) < timeout
}
