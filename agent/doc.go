// Package agent is the daemon. It makes all parts of evictd, connects them, and runs them
// in [Run].
//
// # Data flow
//
// Data flows from left to right: evictd observes the kernel and the runtime, agent/evict
// decides, agent/execute stores a record of each eviction, and the actuators carry it out.
// Node-level reclaims go from agent/loop to agent/reclaim. On a Kubernetes node evictd-kube
// sends facts about the pods (agent/kube), which agent/pods applies. It reports evictions to the
// API server, and maintains the conditions of the last View on the Node object. tests/imports_test.go
// states which package may import which.
//
//	bpf, kernel, cri     agent/lanes           agent/hot            agent/act
//	                     (alarm)           ──▶ (confirm, choose) ──▶ (SIGKILL)
//	                                              ▲ table   │ kills
//	                     agent/memory, pods,      │         ▼
//	                     disks, tasks          ──▶ agent/loop    ──▶ agent/execute ──▶ agent/act
//	                     (observations)           (evict.Step)       (records)         (stop, kill)
//	                                              │ view             │ records
//	                                              ▼                  ▼
//	                                           agent/status, agent/control, agent/metrics, agent/state
//
// # Goroutines
//
// daemon.start starts them all, except those that a package starts itself. What they share
// is immutable once published, atomic, or protected by a mutex. The hot path takes no mutex
// that slow work locks.
//
//   - loop (agent/loop): the only writer of the decision's state ([evict.State]). It
//     publishes a View after each iteration, and a table for the hot path after each step;
//     both are immutable. Its inputs are channels: alarms and kills of the hot path
//     ([hot.Arbiter]), reports of the actuators and of node-level reclaim, changes of the pods,
//     filesystems and tasks, and reloads.
//   - hot path (agent/hot): one OS thread, SCHED_FIFO if allowed. It waits for the
//     descriptors of all lanes, decides by the last table, and queues its kills for the loop
//     in [hot.Arbiter]. The arbiter numbers generations. A thread acquires the generation of
//     its observation before it kills, which fails after a kill by another thread: the loop
//     and the hot path never act on a state that the other has changed. The watchdog is a
//     second such thread. It decides when the loop has not iterated for too long.
//   - lanes (agent/lanes): one goroutine opens, checks and reopens the lanes. The poll lane
//     and the goroutine that forwards its alarms always run. Each reader of pods'
//     memory.stat (agent/memory) has a real-time thread of its own, because a read can
//     block, and the thread of the hot path or of the watchdog waits for it.
//   - actuators (agent/act): a goroutine for each eviction and for the fence of its pod, threads
//     that release the memory of dying processes (reaper), and a real-time thread for pods
//     with many processes.
//     agent/execute takes their reports and updates the records by them.
//   - inventory and kubelets (agent/pods), filesystems and disk usage (agent/disks), tasks,
//     reclaim, proactive reclaim and OOM scores: each on its own goroutines or threads, which
//     may hang in a system call or a call of the runtime. Others read their last published
//     result.
//   - logind (agent/shutdown/logind) receives shutdowns of the node. shutdown
//     (agent/shutdown/driver) is the only writer of a shutdown's state. It decides by the
//     loop's View and acts through agent/execute.
//   - memory (agent/self) locks evictd's memory, and the collector runs Go's GC.
//   - socket for evictd-kube (agent/kube): a goroutine for the session, and one that saves the
//     facts about pods. The inventory reads the facts under a mutex that no I/O locks. Another
//     goroutine follows the orders to evictd-kube, and one the fences of evicted pods
//     (agent/kube/evictions). The loop and the shutdown set the node's conditions under a mutex
//     that no I/O locks ([kube.Node]). At a clean stop these run up to 5 s longer than the others.
//   - control socket, web server, state writer, service manager and log: they serve and
//     write the View and the records. They may hang, too.
//
// # Invariants
//
//  1. Absent is not zero. A number that a kill depends on is a value or an error. A signal
//     that can't be read is skipped, reported and counted; the other signals remain.
//  2. Hard never waits for soft; hard memory never waits for disk. A slow stop, a hung
//     runtime or a stuck filesystem delays nothing else.
//  3. One decision. The daemon, its dry run, the replay of scenarios and the explanation
//     call the same functions.
//  4. Confirm, act, settle. An alarm is confirmed by a fresh reading. The memory that a
//     victim is expected to free (its resident anonymous memory) is subtracted from the
//     deficit until it is back, the victim is gone, or there was no progress for the settle
//     timeout. That of pods that others delete is subtracted for as long at most, and for a hard
//     threshold only while half of it is left. If evicting is futile, one pod is evicted per back-off, and the record names
//     what else uses the resource.
//  5. Never a wrong victim. evictd kills the cgroup that the runtime names for one
//     container, never one that contains evictd, pid 1, a runtime, a shim, a kubelet or a
//     second container. Those are identified by what they are, not by name. The sandbox's
//     process is stopped through the runtime, and so is a container whose cgroup can't be
//     proven. Ties are broken by a total order. No pod is killed for the memory of one that
//     is not listed yet, while there is time to list it.
//  6. Every lane may fail. The next best one takes over, and evictd reports that.
//  7. Dry run is the same run with another actuator. A dry-run victim counts as gone until
//     the episode ends, and is reported once.
//  8. After a restart evictd continues with the saved timers, victims, records and node
//     shutdown, except timers and victims of another boot, and grace timers if it was not
//     running for ten seconds or more.
//  9. Bad input gets a clear error and changes nothing.
//  10. evictd keeps running under the pressure that it handles: between alarm and kill it
//     does not allocate, fork, log or take a mutex that slow work locks, and its memory is
//     mlocked (mlockall with MCL_ONFAULT).
//  11. A node has one owner. While a kubelet has sandboxes, evictd evicts only those of its
//     pods whose eviction evictd-kube can report to the API server, and is in dry run if
//     evictd-kube may not report or is not there, unless it is configured otherwise. It stops
//     them at a shutdown of the node only if the kubelet is known not to, unless it is
//     configured otherwise. It never stops a kubelet's sandbox. It leaves disk and PID signals
//     to a kubelet that is known to evict for them first, for at most some minutes of a shortage.
//  12. A crossing of a hard memory threshold is answered at once, however much active file
//     cache there is, unless file cache caused it; then it waits for ten seconds, until
//     reclaim stalls (of the node; for the pods' signal also at the limit of all pods), or
//     until other memory has grown. Only readings of one source are compared, and a waiting
//     crossing survives a restart.
//  13. evictd is in dry run if it does not find itself in exactly one cgroup of the tree that
//     it reads.
//  14. A record has the result "killed" or "stopped" only if no process of the pod's
//     containers is left.
//  15. No unprivileged user and no tenant can stop, blind or exhaust evictd. What others
//     cause is bounded, and identity is proven by UID, namespace and inode, never by a name
//     that any user can choose.
//  16. A pod of a kubelet that evictd has killed does not run again before the API server
//     knows, except in these cases, which are logged: its fence could not be set, the API
//     server refuses the report, kube.fenceTimeout has passed, evictd stops, or it crashed
//     before it had saved the order. A fence is marked before it is set, and lifted when its
//     order ends before the pod's cgroup is removed. Fences of an evictd that crashed stay
//     until the next start. While the node shuts down, pods that can't be reported are
//     fenced without an order, a clean stop lifts no fence, and a canceled shutdown lifts
//     those without an order.
package agent
