// Package agent is the daemon: it wires readings, the decision, the actuator
// and what people see of them into one [Run].
//
// # Data flow
//
// Data go one way: kernel and runtime are observed, agent/evict decides, the
// actuator acts, and a record is made. What is on the left knows nothing of
// what is on its right.
//
//	bpf, kernel, cri     agent/lanes           agent/hot           agent/act
//	                     (an alarm)        ──▶ (confirm, choose) ──▶ (SIGKILL)
//	                                              ▲ table   │ kills
//	                     agent/memory, pods,      │         ▼
//	                     disks, tasks          ──▶ agent/loop    ──▶ agent/execute ──▶ agent/act
//	                     (observations)           (evict.Step)       (records)         (stop, reclaim)
//	                                              │ view             │ records
//	                                              ▼                  ▼
//	                                           agent/status, agent/control, agent/metrics, agent/state
//
// # Goroutines
//
// Run starts them all, in daemon.start, except where a room starts its own. What
// they share is immutable once published, atomic, or behind a lock; the hot path
// takes none that slow work holds.
//
//   - loop (agent/loop) alone changes the decision's state (evict.State). It
//     publishes a View after each turn and a table for the hot path after each
//     step; both are immutable. Its inputs are channels: alarms and kills of the
//     hot path ([hot.Desk]), the actuators' reports, ends of reclaims, changes of
//     the pods, filesystems and tasks, and reloads.
//   - hot path (agent/hot) is one locked thread, of real-time priority where that
//     is allowed. It waits for the descriptors of all lanes, decides by the last
//     table, and queues its kills for the loop in [hot.Desk]. Loop and hot path
//     take turns by its generation number: neither acts on a state that the other
//     has changed.
//     The watchdog is a second such thread, for when the loop does not turn.
//   - lanes (agent/lanes) opens, watches and reopens the lanes; the poll lane and
//     the goroutine that passes on its alarms are always there. Readers of the
//     pods' memory.stat (agent/memory) have a goroutine each, because a read can
//     block.
//   - the actuator (agent/act) has a goroutine for each eviction, threads that
//     release the memory of processes that die (reaper), and one of real-time
//     priority for pods of many processes. Their reports go through agent/execute,
//     which alone changes records.
//   - inventory, kubelets (agent/pods), filesystems, disk usage (agent/disks),
//     tasks, reclaim, cold memory and OOM scores observe or act at their own pace,
//     on goroutines or threads of their own that may hang; what is known of them
//     is read from what they published last.
//   - logind (agent/shutdown/logind) hears of shutdowns, and shutdown
//     (agent/shutdown/driver) alone changes the state of one. It decides by the
//     loop's View and goes through agent/execute.
//   - control socket, web server, state, service manager and log serve and write,
//     from the View and the records. They may hang, too.
//
// These hold everywhere:
//
//  1. Absent is not zero. A number that a kill depends on is a value or an
//     error. A signal that can't be read is skipped, reported and counted; the
//     others go on.
//  2. Hard never waits for soft; hard memory never waits for disk. A slow stop,
//     a hung runtime or a stuck filesystem delays nothing but itself.
//  3. One decision. The daemon, its dry run, the replay of scenarios and the
//     explanation call the same functions.
//  4. Confirm, act, settle. An alarm is confirmed by a fresh reading. What a
//     victim is expected to free (its resident anonymous memory) is subtracted
//     from the deficit until it is back, the victim is gone, or nothing has
//     moved for the settle timeout. Where evicting can't help, one pod goes per
//     back-off, and the record names who else holds the memory.
//  5. Never a wrong victim. What is killed is the cgroup that the runtime names
//     for one container, never one that holds evictd, pid 1, a runtime, a shim,
//     a kubelet or a second container, by what they are and not by name. The
//     sandbox's process goes through the runtime. What can't be proven is
//     stopped through the runtime. Ties are broken by a total order. Nobody goes
//     for what a pod holds that is not listed yet, as long as there is time to
//     list it.
//  6. Every lane may fail; the next best takes over and says so.
//  7. Dry run is the same run with another actuator. A would-be victim counts
//     as gone until the episode ends, and is reported once.
//  8. A restart loses nothing that matters, and believes nothing that no longer
//     holds.
//  9. Bad input gets a clear error and changes nothing.
//  10. Under the pressure that it handles, evictd itself keeps running: from
//     the alarm to the kill nothing is allocated, forked or logged, no lock is
//     taken that slow work holds, and memory is locked as it is touched.
//  11. A node has one owner. While a kubelet's sandboxes are there and nothing
//     can mark their pods Failed, evictd only watches, unless told otherwise;
//     and even then it never stops a kubelet's sandbox.
//  12. What grew decides how fast. A crossing of a hard memory threshold that
//     other memory than file cache brought is answered at once, however much
//     active file cache there is. One that file cache brought waits for ten
//     seconds, until reclaim stalls (of the node; for the pods' signal also at
//     the limit of all pods), or until other memory has grown.
//     Readings of different sources or times are never compared, and what is
//     waited for survives a restart.
//  13. evictd knows where it is: if it does not find itself in exactly one
//     cgroup of the tree that it reads, it does not act.
//  14. Nothing is released before it is dead.
//  15. No unprivileged user and no tenant can stop it, blind it or feed on it:
//     what others cause is bounded, and identity is proven by user, namespace and
//     inode, never by a name that any user can choose.
package agent
