// Package act carries out eviction orders: it kills containers, stops them
// through the runtime, and stops sandboxes.
//
// A hard eviction kills only the cgroups that the runtime names for the pod's
// containers. Before each kill, the processes listed in the cgroup are checked
// against [evict.Guard]. If a guarded process was moved into a container's cgroup,
// all other processes are signalled one by one, unless the cgroup may not be this
// container's own; then none is (guardcheck.go). A process is signalled by
// pidfd, and only if the cgroup still lists its pid after the pidfd was opened,
// so that a reused pid is never hit. The runtime is then asked to stop the
// containers, and the sandbox if no kubelet made it: stopping the sandbox frees
// the pod's shared memory. A container whose cgroup is not proven is stopped
// through the runtime only.
//
// The pod of a Reported job belongs to a kubelet, which starts killed containers again and
// stops the pod itself once evictd-kube has reported the eviction. The runtime is not asked to
// stop it. Right after the kill its fence is set ([Fencer]), on another goroutine. Then its
// unlisted containers are killed: those whose cgroup is below the pod's, with the same checks.
// The sandbox's cgroup is the one with the process that the runtime names for the sandbox; if
// it is not found, no unlisted container is killed. A container whose cgroup is not proven,
// and a pod in its grace period, are left to the kubelet.
//
// When the node shuts down (Job.Shutdown), the kubelet can't always be told to stop a pod: a static
// pod has no object whose status it reads, and the API server may be away. The runtime is then
// asked to stop the containers, and the pod's fence is set when the first of them has ended. From
// then on the others can't fork.
//
// The hot path kills through descriptors that are already open. A [KillHandle] has the
// cgroups and the largest processes of a pod open before the pod is chosen. A
// [FastKiller] kills through it without allocating and without blocking. A [Reaper]
// does the parts that can block, on threads of its own. [Killer.Follow] then
// waits until the pod is gone.
//
// [Killer] kills. [DryRun] makes the same checks and changes nothing. Both report
// each stage that an order reaches as [Progress].
//
// # Files
//
//   - act.go: orders ([Job]), [Progress] and the [Actuator] interface. killer.go and
//     dryrun.go are its implementations. stopstages.go and ended.go are the parts of
//     [Killer] that stop pods through the runtime, reported.go is that for Reported jobs,
//     shutdown.go that for Shutdown jobs, and podcgroup.go kills unlisted containers.
//   - victim.go: kills a container by cgroup.kill and by pidfds that it opens, and waits
//     until the processes have exited. victimcheck.go checks the container before that;
//     freeze.go freezes one that forks too fast. guardcheck.go has the rules of the check.
//   - killhandle.go: the [KillHandle] of a pod. preopen.go opens its processes and lists.
//   - fastkiller.go: kills a pod through its handle. fdreserve.go keeps descriptors for it.
//   - reaper.go and prioritythread.go: the threads that kill.
package act
