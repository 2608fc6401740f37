// Package loop is the decision loop: it observes the node, has agent/evict decide,
// and gives the orders to agent/execute.
//
// A [Loop] runs on one goroutine, which owns its state. It takes a step at every
// alarm of the hot path, when a list of pods, a report of an actuator, a crossing of
// a disk or PID threshold or a new configuration arrives, and at its own interval. Its
// [Options] have everything that it uses. A [View] is what it observed and decided in
// one iteration; other goroutines read Views, never the Loop. Pods that a hard memory
// threshold evicts are killed on the hot path's thread, which decides by the table that
// each step publishes; the next step adopts the kills that the hot path decided.
package loop
