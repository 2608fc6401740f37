// Package status reports the state of evictd to operators and other programs.
//
// The decision loop calls an [Observer] after each iteration. It publishes the view,
// sets the metrics, logs changes and notifies the service manager. A [Backend] serves
// the control socket and the readiness checks from the last view and from the other
// parts; it never waits for the loop. [KernelOOMKills] reports the processes that the
// kernel's OOM killer kills. [Notification] collects the metrics of the lanes.
package status
