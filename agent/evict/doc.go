// Package evict decides which pods a node gives up when it runs short, and
// holds the nouns that the rest of the agent shares.
//
// Its entry is [Step]: state, observations and pods in; new state and orders
// out. The daemon, its dry run, the replay of scenarios and the explanation of
// today's ranking all call the same functions. Nothing here does I/O, reads a
// clock, starts a goroutine or depends on the order of a map: the same input
// always gives the same output.
//
// Hard memory thresholds can't wait for a Step. A [Table] follows from each and
// decides on them alone, by the same functions and without allocating, between
// one Step and the next; what it had killed is [Fired], which the next Step
// adopts as its own.
//
// Behaviour is the kubelet's eviction manager's (pkg/kubelet/eviction) except
// where this package says otherwise:
//
//   - victims are as many as the deficit needs instead of one at a time, and
//     what victims on their way are expected to bring is subtracted first;
//   - where evicting can't help enough, one pod goes per back-off;
//   - a pod on its way out is not chosen again, and a soft victim's grace ends
//     when a hard threshold of its signal is met;
//   - a pod without statistics comes last among its equals, not first;
//   - a hard memory threshold that file cache brought below waits ten seconds, or
//     until other memory grows;
//   - hard memory thresholds never wait for disk.
package evict
