// Package process opens processes by pidfd, signals them and reads their state
// from procfs. It also sets the scheduling and the memory lock of this process, and
// the oom_score_adj of others.
//
// A pid can be reused; a pidfd can't. To kill a process, open it, check that it is
// the intended one, and signal it through the pidfd (pidfd_open(2), Linux 5.3).
// Calls for a process that has ended fail with [ErrGone].
//
// Functions that set scheduling or the memory lock return what the kernel granted.
// If a limit or a capability is missing, the error names it. The package does not
// decide which process may be signalled.
package process
