// Package critest is a container runtime for tests: a CRI v1 server on a real unix
// socket, with pods that exist only in memory.
//
// It behaves as containerd 1.6 does (see [Server.SetFlavor] for other runtimes),
// including the verbose information and the order of its fields. A test can add and
// remove pods, make calls fail, hang, respond late or return malformed data, stop and
// restart the server on the same path, and read the calls in order.
//
// The package does not touch processes or cgroups. A running container without a PID
// gets [UnusedPID], a pid that no Linux kernel assigns, so that code under test that
// signals it signals no process.
package critest
