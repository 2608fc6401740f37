package evict

import "time"

// UnaccountedBaseline is the baseline of unaccounted memory: memory of kubepods that no listed
// pod accounts for, as far as it is not new. It consists of files that completed pods
// left in tmpfs, memory still charged to removed cgroups, and memory charged to
// kubepods itself. Unaccounted memory beyond the baseline may be that of an unlisted
// pod.
//
// The baseline is the minimum of the unaccounted memory after each of the last three
// complete lists. A pod that uses memory when a list is requested is in that list. A
// pod that starts while the list is made may be missing from it, and then raises the
// last sample only, not the earlier ones. So the baseline does not contain its memory,
// however much it grows. A pod that ends leaves its remaining memory unaccounted until
// three more lists have been made.
type UnaccountedBaseline struct {
	requested time.Time // when the last list was requested
	samples   [listsRemembered]int64
	lists     int
}

// listsRemembered is how many lists must agree.
const listsRemembered = 3

// WouldLower reports whether a sample of this many bytes would lower the baseline. A single
// low sample would flag the known remainder as an unlisted pod until three more lists
// arrive, so callers verify it first.
func (u *UnaccountedBaseline) WouldLower(bytes int64) bool {
	return u.lists < listsRemembered || max(0, bytes) < u.Bytes()
}

// Update adds a sample of the unaccounted memory, in bytes, computed with the list that
// was requested at that time. For each list, the lowest sample counts.
func (u *UnaccountedBaseline) Update(requested time.Time, bytes int64) {
	if requested.IsZero() {
		return
	}
	if requested.Equal(u.requested) {
		last := &u.samples[(u.lists-1)%listsRemembered]
		*last = min(*last, bytes)
		return
	}
	u.requested = requested
	u.samples[u.lists%listsRemembered] = bytes
	u.lists++
}

// Bytes returns the baseline in bytes; 0 until there are samples for three lists.
func (u *UnaccountedBaseline) Bytes() int64 {
	if u.lists < listsRemembered {
		return 0
	}
	return max(0, min(u.samples[0], u.samples[1], u.samples[2]))
}
