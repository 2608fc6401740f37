// Package probe finds out what this kernel, its cgroup trees and the privileges
// of this process allow.
//
// It tries each thing and never compares versions: kernels are patched and
// configured, and what runs in a container is filtered. Every answer is one of
// three, since what could not be tried is neither there nor missing. Answers hold
// for the process that asks: a daemon with other privileges, or in another
// namespace, has others.
//
// Probing leaves nothing behind: it signals and freezes nobody, and what it
// opens is closed when [Run] returns.
package probe
