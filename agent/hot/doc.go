// Package hot kills for hard memory thresholds within milliseconds of an alarm.
// One locked thread waits for all lanes, confirms an alarm by a fresh reading,
// lets an [evict.Table] choose, and kills through descriptors that are already
// open. From the alarm to the kill it does not allocate, take a lock that slow
// work holds, or write a log, except if it has to open the kill handle of a victim
// that has none.
//
// It has no rules of its own about victims. Alarms that the table can't decide (a
// futile signal, a pod that is not listed, a victim whose kill handle can't be
// opened) go to the decision loop at once. So does every other alarm, after the
// thread has decided on it.
//
// Each hard memory kill is decided on one generation of the [Arbiter] and acquires
// that generation first. A generation can be acquired once. If another thread has
// killed since the observation, the decision is repeated with a new one. So one
// crossing kills one pod, even if several lanes raise an alarm, or the loop, the
// thread and the [Watchdog] decide at the same time.
package hot
