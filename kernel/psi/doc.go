// Package psi reads pressure stall information, the time that tasks have waited
// for a resource, and arms triggers, which notify when they start to wait
// (Documentation/accounting/psi.rst, kernel/sched/psi.c).
//
// Kernels can be built without PSI, or need psi=1 on their command line. That is
// kernel.ErrUnavailable and never a pressure of 0.
//
// Pressure does not measure free memory: while there is clean cache to drop, a
// node may run low on memory without a stall.
package psi
