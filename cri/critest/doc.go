// Package critest is a container runtime for tests: a CRI v1 server on a real unix
// socket, with pods that exist only in memory.
//
// It answers as containerd 1.6 does (see [Server.Imitate] for others), the verbose
// information included, down to the order of its fields. A test adds and removes
// pods, makes single calls fail, hang, be slow or answer garbage, takes the server
// down and up again on the same path, and reads what was called, in order.
//
// Nothing here touches a process or a cgroup. A running container without a PID of
// its own is given [NoProcess], a pid that no Linux kernel hands out, so that code
// under test which signals it harms nobody.
package critest
