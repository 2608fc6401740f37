// Package disks watches the node's filesystems and measures the disk usage of pods.
// The filesystems are nodefs (the kubelet's directory), imagefs (the container
// runtime's images) and containerfs (writable layers of containers). The package
// reports what each has left, and which of them are the same filesystem.
//
// A system call on a filesystem may block forever. Each call therefore runs on a
// goroutine of its own, has a deadline, and is not repeated before it has returned.
// A filesystem that hangs costs one thread, is reported by [Watch.Statuses] and
// makes only its own signals unreadable. The other filesystems, and the query of
// the runtime for its filesystems, go on.
//
// The read interval of a filesystem follows from its distance to the next threshold
// and from how fast it has filled recently. A filesystem that fills at 1 GiB/s is
// read again before it has lost half of that distance.
package disks
