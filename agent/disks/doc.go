// Package disks watches the node's filesystems: where the node keeps its own
// (nodefs), the container runtime its images (imagefs) and the writable layers of
// containers (containerfs), what each has left, and which of them are one.
//
// A filesystem may hang whoever asks it, without end. Every question is
// therefore asked by a goroutine that nobody waits for longer than a deadline,
// and is not asked again before it is answered: what hangs costs one thread, is
// told by [Watch.Statuses] and makes its own signals unreadable. The others, and
// the runtime's word on where its filesystems are, go on.
//
// How often a filesystem is read follows from how far it is above its thresholds
// and from how fast it has filled lately, so that one which fills at 1 GiB/s is
// seen to cross before it has gone half of what was left.
package disks
