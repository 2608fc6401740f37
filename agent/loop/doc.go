// Package loop is the decision loop: it observes the node, has agent/evict decide,
// and gives the orders to agent/execute.
//
// A [Loop] runs on one goroutine, which owns its state, and takes a step at every
// alarm of the hot path, when a list of pods, a report of an actuator, a crossing of
// a disk or a new configuration arrives, and at its own interval. All that it needs
// is in its [Options]. A [View] is what it knew and decided in one iteration; others
// read Views, and never the loop. Pods that hard memory thresholds evict are killed
// on the hot path's thread, which decides by the table that each step publishes;
// kills that it made by itself are adopted by the next step.
package loop
