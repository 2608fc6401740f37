// Package scenario replays a timeline of observations, written in a file,
// against a configuration: what would have been evicted, when and why.
//
// The decisions are those of [evict.Step], the daemon's own; this package
// decides nothing. It reads the file strictly ([Parse]: everything that is
// wrong comes back at once, with file, line and field), gives Step what the
// file says was observed, carries out in the file's terms what Step orders
// (a pod goes when the file says so, a node-level reclaim brings what the file
// says it brought), and prints what came of it, as JSON lines or for people.
// There is no clock, no kernel and no runtime in it: the same file always
// prints the same.
//
// A shutdown of the node is replayed by the same rules ([ParseShutdown]), with
// [shutdown.Step]. Its file, of kind ShutdownScenario, holds a configuration,
// pods as in a scenario with two more fields, and steps:
//
//	inhibitDelayMax: 5s             # how long the shutdown may be held up; absent = as long as the groups need
//	config:
//	  shutdownGracePeriod: 30s
//	  shutdownGracePeriodCriticalPods: 10s
//	pods:
//	- namespace: default
//	  name: web                     # no two pods of a file have the same name or UID
//	  stopsAfter: 3s                # after it was asked to; absent = never by itself
//	  daemonSet: false
//	steps:                          # in time order
//	- {at: 0s, begin: true}
//	- {at: 2s, add: [{namespace: default, name: new}]}
//	- {at: 9s, cancel: true}
//
// The JSON form is a public interface. Its keys are always there and in one
// order; lists are never null.
package scenario
