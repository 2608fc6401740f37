// Package logind delays a shutdown of the node and receives its events, through
// systemd-logind (org.freedesktop.login1(5)).
//
// A [Conn] is one connection to the system bus, with the few calls to logind and
// systemd that evictd needs. A [DelayLock] has a delay inhibitor lock while one is
// wanted. If the bus or logind is missing or restarts, it reconnects and takes the
// lock again. If logind allows less time than needed, the DelayLock writes a drop-in to
// logind's configuration, verifies the limit, reports the file that overrides it,
// and removes the drop-in when it stops. It lists logind's inhibitors, a list that
// every local user can make long, only to find out whether a kubelet has one. Each
// change of PreparingForShutdown is sent as an [Event]. So is its value after each
// new connection, because signals in between are lost.
//
// With an [FDStore] the lock survives a crash: the next run takes it over, also
// during a shutdown, when logind grants no new lock.
//
// Shutdowns that logind does not announce can't be delayed: systemctl --force, halt
// -f, kexec, a kernel panic and power loss. A shutdown that ignores inhibitors does
// not wait either.
package logind
