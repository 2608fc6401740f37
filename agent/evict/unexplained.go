package evict

import "time"

// Unexplained is the memory that all pods together hold and none of them accounts
// for, as far as that is nothing new: what a completed pod has left in its tmpfs,
// what removed cgroups still hold, what is charged to the pods' cgroup itself. What
// comes on top of it may be a pod's that is not listed yet.
//
// It is the least of what was found right after each of the last complete lists.
// A pod that holds memory when a list is asked for is on that list. So one that is
// not listed yet can be in the last of these figures, if it began while the list
// was made, and is in none of those before: however much it grows, it is seen. A
// pod that ends leaves its memory unexplained for as many lists.
type Unexplained struct {
	asked time.Time // when the last list was asked for
	after [listsRemembered]int64
	lists int
}

// listsRemembered is how many lists must agree.
const listsRemembered = 3

// Lowers reports whether less would be known if a figure of so many bytes were
// taken in. One that is too low, once, has whoever is unexplained anyway taken for a
// newcomer until as many lists have come: it is worth another look.
func (u *Unexplained) Lowers(bytes int64) bool {
	return u.lists < listsRemembered || max(0, bytes) < u.Known()
}

// See takes in how much no pod accounts for, in bytes, by a list that was asked for
// at a time. Of the figures by one list the first counts, and any less.
func (u *Unexplained) See(asked time.Time, bytes int64) {
	if asked.IsZero() {
		return
	}
	if asked.Equal(u.asked) {
		last := &u.after[(u.lists-1)%listsRemembered]
		*last = min(*last, bytes)
		return
	}
	u.asked = asked
	u.after[u.lists%listsRemembered] = bytes
	u.lists++
}

// Known returns how much is nothing new, in bytes; 0 until there were lists enough
// to tell.
func (u *Unexplained) Known() int64 {
	if u.lists < listsRemembered {
		return 0
	}
	return max(0, min(u.after[0], u.after[1], u.after[2]))
}
