// Package logind holds a shutdown of the node up, and hears of it, through
// systemd-logind (org.freedesktop.login1(5)).
//
// A [Conn] is one connection to the system bus, with the few calls that are
// wanted of logind and systemd. A [Guard] keeps a delay inhibitor lock for as
// long as one is wanted, whatever becomes of the bus and of logind meanwhile:
// where either is not there it tries again for ever. Where logind
// allows less time than is needed, it writes a drop-in to logind's configuration,
// verifies the limit, names the file that overrides it, and removes the drop-in in
// the end. Logind's list of inhibitors, which every local user can make long, says
// only whether a kubelet has one. Every change of whether the node is about to go down comes
// out as an [Event], and so does how things stand after each new connection,
// since what was told meanwhile is lost.
//
// Where a [Keeper] is given, the lock outlives a crash: the next run takes it
// over, in the middle of a shutdown, too, when logind gives nobody another.
//
// What logind does not tell of can't be held up: systemctl --force, halt -f,
// kexec, a kernel panic and the loss of power; nor does whoever ignores
// inhibitors wait.
package logind
