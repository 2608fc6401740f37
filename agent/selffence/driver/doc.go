// Package driver runs self-fencing in evictd: it opens and feeds the watchdog as agent/selffence decides, and gives the
// marks of the Node object to evictd-kube.
//
// The feeding thread waits for nothing but its timer and the device. Everything else, including the file of the state,
// is done by another goroutine.
package driver
