// Package psi reads pressure stall information, for how long tasks have waited
// for a resource, and arms triggers that tell when they begin to
// (Documentation/accounting/psi.rst, kernel/sched/psi.c).
//
// Kernels may be built without it, or need psi=1 on their command line: that
// is kernel.ErrUnavailable, never a pressure of 0.
//
// Pressure is no measure of free memory: where there is clean cache to drop, a
// node may run low without any stall.
package psi
