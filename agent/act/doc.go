// Package act carries out orders: it kills, stops and tidies up.
//
// A hard eviction kills at once what the runtime names as a container's own
// cgroup, and nothing else: [Guard] is asked before every kill, with the
// processes that the cgroup holds at that moment. Processes are signalled by
// pidfd, and only while the cgroup still lists them, so that a reused pid can
// not be hit. Then the runtime is told, and with a sandbox that no kubelet
// made, the sandbox is stopped too: that is what gives back its shared memory.
// A container whose cgroup could not be proven is stopped through the runtime
// only.
//
// [Killer] acts and [DryRun] only looks; both make the same checks. What
// becomes of an order comes back as [Progress].
package act
