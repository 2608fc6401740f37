// Package reclaim frees space on the node's filesystems before a pod is evicted: it
// removes dead sandboxes and containers with their logs, and unused images, least
// recently used first.
//
// Under pressure it removes as much as the deficit needs, oldest first. There is no
// minimum: if all that can be removed does not cover the deficit, it is removed
// nevertheless. Runtimes often free space after they have answered a removal, so
// the remaining deficit is read from the filesystem once its available space no
// longer grows.
//
// An order is answered within ten seconds, whatever the runtime and the filesystems
// do, or within forty if the space of evicted pods is not free by then. A call that
// hangs is left running and retried later. Objects that the order could not remove in
// time are removed in the background until its target is reached.
//
// Sandboxes and containers of a kubelet are never removed: the kubelet reads from
// them what has already run.
package reclaim
