// Package evict decides which pods to evict from a node under resource pressure,
// and defines the types that the rest of the agent shares ([Pod], [Order],
// [Outcome], [Record]).
//
// Its entry point is [Step]: state, observations and pods in; new state and orders
// out. The daemon, its dry run, the replay of scenarios and evictctl explain call the
// same functions. The package does no I/O, reads no clock, starts no goroutine and
// does not depend on map order: the same input always gives the same output.
//
// Hard memory thresholds can't wait for the next Step. After each Step, NewTable makes a
// [Table], with which the hot path decides on them between one Step and the next. It
// uses the same functions and does not allocate. The next Step takes over the hot path's
// kills ([HotKill]) as if it had ordered them.
//
// The behaviour is that of the kubelet's eviction manager (pkg/kubelet/eviction), with
// these differences:
//
//   - A decision evicts as many pods as the deficit needs, not one at a time. Memory that
//     earlier victims are still expected to free is subtracted from the deficit first.
//   - If evicting can't relieve a signal, one pod is evicted per back-off.
//   - A pod that is being evicted is not chosen again. Its grace period ends early if a
//     hard threshold of its signal is met.
//   - A pod that ends without evictd, because it is being deleted, counts as in flight for a
//     short time (EndingPod): for a hard threshold only while such pods cover all of the deficit.
//     While it counts it is no victim of soft thresholds; then it has what is left of a victim's
//     grace period. It is ranked as any other: that it ends anyway does not place it before pods of
//     lower priority, which may be why the node lacks memory, and its preStop hooks and connections
//     matter as much.
//   - A pod without statistics ranks last among its equals, not first.
//   - If file cache caused a hard memory threshold to be crossed, the eviction waits for
//     10 s, or until other memory grows.
//   - Hard memory thresholds never wait for disk signals.
//   - Next to a kubelet, a disk or PID threshold is left to it if its own hard one is not below,
//     for some minutes ([KubeletTimeout]).
package evict
