// Package reclaim frees space on the node's filesystems before a pod has to go:
// it removes dead sandboxes and containers with their logs, and images that
// nothing uses, the least recently used first.
//
// Under pressure it removes as much as the deficit needs, oldest first, and not
// all there is; where all there is does not suffice, it removes that. (Of a
// minimum that is either reclaimed or not touched at all, as the seed on
// node-pressure eviction has it, neither the kubelet nor this package knows.)
// Space often comes back after the runtime has said that something is removed:
// what is left to do is concluded from the filesystem's own numbers, once they
// have stopped to grow.
//
// An order is answered within ten seconds, whatever the runtime and the filesystems
// do. A call that hangs is left alone and made again later, and what an order has not
// come to by then is removed in the background, as long as it is needed.
//
// What a kubelet made is the kubelet's memory of what has already run: none of
// its sandboxes and containers is ever removed here.
package reclaim
