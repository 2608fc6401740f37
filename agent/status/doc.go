// Package status is what people and programs see of the daemon.
//
// An [Observer] is called after each iteration of the decision loop. It publishes the
// view, sets the metrics, logs what has changed and notifies the service manager. A
// [Board] answers the control socket and the checks of readiness from the last view
// and from the other parts; it never asks the loop, and so answers at once whatever
// the loop does. [KernelKills] reports the processes that the kernel's OOM killer
// takes.
package status
