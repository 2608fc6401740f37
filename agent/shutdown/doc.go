// Package shutdown decides, when the node shuts down, when each pod is stopped and
// how much time it gets.
//
// Its entry is [Step], as in agent/evict: state, events and running pods in; new
// state and orders out. The daemon and the replay of scenarios call the same
// function. The package does no I/O, reads no clock and starts no goroutine;
// agent/shutdown/logind talks to the service manager.
//
// The behaviour is that of the kubelet (pkg/kubelet/nodeshutdown): pods are stopped
// group by group, lowest priorities first, all of a group at once. Each pod gets
// its own grace period or the time left of its group, whichever is shorter. A group
// without pods costs no time. Intentional differences:
//
//   - Time that a group does not use goes to the groups after it; the kubelet drops
//     it. A group ends at the sum of the times up to it.
//   - Within a group, pods of DaemonSets and critical pods are stopped when the
//     others are gone, at the latest at half of the group's time: the others may
//     need them (network, logging) while they stop. Static pods follow in the same way:
//     one of them may be the API server, to which a kubelet's pods are reported.
//   - A pod that exists after its time is killed directly, so that a runtime that
//     hangs does not delay the shutdown.
//   - A canceled shutdown stops no further pod; the kubelet continues.
//   - A shutdown survives a restart of the agent.
//   - The shutdown waits for pods that start during it, but not for pods that are
//     started more than once: a client could do that forever.
//   - An operator's shutdown that the service manager takes over continues, within
//     the time that the service manager allows from then on.
//   - If less time is allowed than the groups need, each group gets its share; the
//     kubelet disables graceful shutdown.
package shutdown
