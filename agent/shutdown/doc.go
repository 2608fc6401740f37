// Package shutdown decides, when the node goes down, which pods are stopped
// when and how long each is given.
//
// Its entry is [Step], as in agent/evict: state, what happened and what runs
// in; new state and orders out. The daemon and the replay of scenarios call the
// same function. Nothing here does I/O, reads a clock or starts a goroutine;
// agent/shutdown/logind is what talks to the service manager.
//
// Behaviour is the kubelet's (pkg/kubelet/nodeshutdown): pods are stopped group
// by group, those of the lowest priorities first, all of a group at once, each
// within its own grace period or what the group has left, whichever is shorter;
// a group without pods costs no time. Intentional differences:
//
//   - time that a group leaves over goes to the groups after it, where the
//     kubelet lets it go unused: a group ends at the sum of the times up to it;
//   - inside a group, DaemonSets' and critical pods are asked to stop when the
//     others are gone, at the latest at half of the group's time: the others
//     may need them (the network, the log) on their way out;
//   - what is still there at its end is killed directly, so that a runtime that
//     hangs holds nothing up;
//   - a shutdown that is called off stops no further pod, where the kubelet
//     finishes;
//   - a shutdown survives a restart of the agent;
//   - pods that come meanwhile are waited for, but those that are brought back
//     once more are not: somebody may do that for ever;
//   - an operator's shutdown that the service manager takes over goes on where it
//     was, within the time that is allowed from then on;
//   - where less time is allowed than the groups need, each gets its share of
//     it, where the kubelet switches the whole of it off.
package shutdown
