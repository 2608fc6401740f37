// Package probe detects which features this kernel, its cgroup hierarchies and the
// privileges of this process provide.
//
// It tries each feature and never compares versions, because kernels are patched
// and configured, and system calls in a container are filtered. A feature that
// can't be tried is [Unknown], neither supported nor unsupported. The results apply
// to the calling process; a process with other privileges, or in another namespace,
// can get others.
//
// Probing has no side effects: it signals and freezes no process, and closes
// everything that it opens before [Run] returns.
package probe
