// Package scenario replays a timeline of observations from a file against a
// configuration, to show which pods would have been evicted, when and why.
//
// The decisions are made by [evict.Step], as in the daemon. This package parses the
// file strictly ([Parse] returns all errors at once, with file, line and field),
// passes its observations to Step, simulates the orders as the file specifies (a pod
// is gone when the file says so, a node-level reclaim frees what the file says), and
// prints the results as JSON lines or as text. It uses no clock, kernel or container
// runtime: the same file always gives the same output.
//
// A step can say which pods are deleted in it, with their grace periods, by others than evictd
// (deleted: {default/web: 30s}). They count as in flight for some time, and are no
// victims of soft thresholds then ([evict.EndingPod]).
//
// A node shutdown is replayed in the same way ([ParseShutdown]), with
// [shutdown.Step]. Its file, of kind ShutdownScenario, has a configuration, pods as
// in a scenario with two more fields, and steps:
//
//	inhibitDelayMax: 5s             # how long the shutdown may be delayed; absent = as long as the groups need
//	config:
//	  shutdownGracePeriod: 30s
//	  shutdownGracePeriodCriticalPods: 10s
//	pods:
//	- namespace: default
//	  name: web                     # no two pods of a file have the same name or UID
//	  stopsAfter: 3s                # after the stop request; absent = never by itself
//	  daemonSet: false
//	steps:                          # in time order
//	- {at: 0s, begin: true}
//	- {at: 2s, add: [{namespace: default, name: new}]}
//	- {at: 9s, cancel: true}
//
// The JSON form is a public interface. All keys are always present and in a fixed
// order; lists are never null.
package scenario
