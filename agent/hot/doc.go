// Package hot is the shortest way from an alarm to a SIGKILL, for hard memory
// thresholds: one locked thread that waits for all lanes, confirms by a fresh
// reading, lets an evict.Table decide, and kills through descriptors that were
// opened beforehand. From the alarm to the kill it allocates nothing, takes no
// lock that slow work holds, and writes no log.
//
// It has no rules of its own about who goes. What the table leaves to a whole
// step (a futile signal, a pod that is not listed, one that can't be held) goes
// to the decision loop at once, and so does every alarm after it was dealt with.
//
// Every hard memory kill rests on a generation of the [Desk]: it is claimed
// before anybody is killed, and can be claimed once. Whoever decided on what was
// true before somebody else's kill finds it taken and has to decide again, so
// that lanes which disagree, the loop and the thread at once, or the [Watchdog]
// beside them, end one pod and not two.
package hot
