// Package act carries out orders: it kills, stops and tidies up.
//
// A hard eviction kills at once what the runtime names as a container's own
// cgroup, and nothing else: [evict.Guard] is asked before every kill, with the
// processes that the cgroup holds at that moment. Where a guarded process was moved
// into a container's cgroup, all others are signalled, one by one. Processes are
// signalled by
// pidfd, and only while the cgroup still lists them, so that a reused pid can
// not be hit. Then the runtime is told, and with a sandbox that no kubelet
// made, the sandbox is stopped too: that is what gives back its shared memory.
// A container whose cgroup could not be proven is stopped through the runtime
// only.
//
// What is urgent is prepared: a [Hold] has a pod's cgroups and largest processes
// open before anybody decides that it has to go, and a [Striker] kills it without
// asking for memory or waiting for anybody: what may hang, a [Reaper] does on
// threads of its own. The [Killer] then follows.
//
// [Killer] acts and [DryRun] only looks; both make the same checks. What
// becomes of an order comes back as [Progress].
package act
