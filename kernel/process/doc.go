// Package process names processes by descriptor, signals them, and reads what
// the kernel says of them. It also sets what a process may set for itself
// (scheduling, the memory lock), and the oom_score_adj of another.
//
// A PID can be reused; a pidfd can not. To kill a process, open it first, check
// that it is still the one that was meant, and signal through the descriptor
// (pidfd_open(2), Linux 5.3). A process that has ended is [ErrGone].
//
// Scheduling and the memory lock are returned as the kernel granted them; a limit
// or a capability that is missing is an error that names it. The package does not
// decide which process may be signalled.
package process
