// Package cluster is evictd-kube's side of the API server. [Watch] watches the pods of one node
// and puts the facts about them into a [kube.Feed], and [Reporter] reports evictions and writes
// evictd's conditions and taints to the Node object. It uses client-go's rest and cache.Reflector
// with a scheme of its own, because the generated clientset and the informers add 50 MB to the
// binary. cmd/evictd does not link it.
//
// # Watching
//
// [Watch] returns only when its context ends. Each failure is one line with the file, the
// cause and the remedy. The line is logged once and sent to evictd. Watch tries again with a
// back-off of 0.8 s to 30 s with jitter (client-go's reflector). evictd keeps its facts
// during that time.
//
// Credentials may change at any time: client-go reads a token file again every minute and
// after a 401, and client certificates when they change. After an error that only new
// credentials can end, Watch reads the whole configuration again, with the CA: a kubeconfig
// can contain credentials itself. It does so after such an error of its own requests, and of those
// of the [Reporter], the [Rejector], [Marks], [PeerNodes] and [Configz].
//
// Tenants decide how large pods are, up to 1.5 MB. If the API server sends the list as a
// watch, evictd-kube decodes one pod at a time and keeps only its facts. Otherwise it needs
// about 300 MB for a list of 100 pods of 1 MB, once.
//
// Watch reads the node before it lists the pods or reports anything. With a wrong node name the
// list would be empty instead of an error, and evictd would regard all pods as deleted; so it would
// with a node of that name in another cluster, whose boot ID is another one.
//
// # The kubelet's configuration
//
// [Configz] reads it from the kubelet's own server, because through the API server's proxy it would
// need the right to all that the kubelet serves (nodes/proxy), with which anybody can run commands in
// every pod. It needs get on nodes and on nodes/configz. The address is that of the Node object
// (InternalIP, status.daemonEndpoints). The server is verified before anything is sent: see
// agent/kube, and [kubeletIdentity.verify]. No redirect is followed and no proxy is used, and an
// answer has at most 1 MiB.
//
// # Reporting
//
// evictd kills the processes of a pod and sends the [kube.Order] to report that. For each stage
// of it the Reporter does this, in [task.next]:
//
//	killed    the condition DisruptionTarget, if the restart policy is not Always
//	waiting   the same, and an event that says why the pod is not marked Failed yet
//	ended     one patch of the status: phase Failed, reason, message, DisruptionTarget and
//	          the annotation evictd.io/evicted; for the fenced pod of a StatefulSet or a DaemonSet
//	          the annotation follows after [annotateDelay]; the pod of a StatefulSet without
//	          a fence is deleted, as at stopping
//	stopping  the patch of ended, after which the kubelet stops the pod; for a pod that must
//	          not run twice DisruptionTarget, then a deletion with the pod's grace period
//
// The annotation is the time of the decision and the number of the write. The kubelet takes
// back a change of the status alone, within 10 s; with a changed annotation it ends the pod. It
// may still blank the reason or write Running once. The watch shows that: if the pod has the
// annotation of the last write, and another phase or no reason, and a container that has not
// terminated or a sandbox (condition PodReadyToStartContainers), the patch is written again with the
// next number, five times at most. That does not
// wait for the answer to the last write: a controller may delete the pod some milliseconds
// later. A pod that is being deleted is written again as well, because its object exists for some
// milliseconds more. What the kubelet writes when it has stopped the containers and the sandbox stays;
// it would take back each later patch.
//
// A kubelet that has noticed the end of the containers by itself writes its own verdict about a pod
// that it does not restart: Failed without a reason. It looks once a second, so it does that to one of
// ten Jobs that are reported 100 ms after the kill. The report may come too early for it: a periodic
// sync replaces the pod that the kubelet is about to end by the one that it has blanked. The second
// write is kept if the kubelet sees it before it has stopped the sandbox, which follows its next look.
//
// The kubelet blanks the reason 10 to 40 ms after it has seen the annotation: its cache has another
// phase, and a reason belongs to a phase (pkg/kubelet/kubelet_pods.go, generateAPIPodStatus). The
// controllers of StatefulSets and DaemonSets delete a failed pod within some 100 ms, so that the object
// was in one of twenty evictions deleted before the reason was there again. Without the annotation the
// kubelet notices nothing until it looks at its containers again, once a second, and the object is
// deleted with its reason. A fence keeps the containers from starting in that time. If the object still
// exists after annotateDelay, the annotation is written as the second patch.
//
// The Reporter has no state of its own that must survive. A restarted one finds in the pod what
// was done: the annotation with the order's time, the condition, the time of deletion. Each
// write is the same patch when it is repeated, so a write without an answer is written again.
// The states of [maxStates] pods of the node that have not completed, of at most about 300 bytes
// each, and those of the pods of orders are kept from the watch, so that a report needs no read
// before it. The pod of an order whose state is not kept is read. Answers and events overtake each
// other; the state with the highest resource version is kept.
//
// The annotation counts only together with the condition, and for a pod that must not run twice
// not before its processes have ended, because whoever may update a pod can write it.
//
// When evictd withdraws an order, and at the beginning of its next session, requests in flight are
// cancelled. evictd lifts the fence of the pod then, and the kubelet may start it again. An API
// server that was paused reads a request before its cancellation and may still carry it out.
//
// Each write has the pod's UID as its precondition. Mirror pods, pods that have succeeded and those
// that have failed with another reason are never written. The last are the kubelet's own victims: it
// reports them when their containers have ended, not before
// (pkg/kubelet/status/status_manager.go: mergePodStatus). A pod that is being deleted gets no first
// report, and is written again only as above.
//
// # Node
//
// The Reporter gives the Node the conditions of evictd's last [kube.NodeState], and for each that is
// true its taint with the effect NoSchedule. Of the Node it keeps the UID, the taints and evictd's
// conditions. It makes one request about it at a time ([nodeWriter.next]): it reads the Node, then
// changes the taints, then the conditions. It reads it again after a write that has failed, and at
// each heartbeat: every 4 to 5 minutes it writes all conditions with the present time. It never
// writes other types of conditions. A taint with evictd's key and another effect is another's.
//
//	in evictd's state            the condition is True or False; lastTransitionTime is kept while the
//	                             Node has the same status
//	on the Node alone            the condition becomes Unknown, with the reason EvictdDryRun,
//	                             EvictdStopped or EvictdGone, and has no heartbeats
//	before evictd's first state  nothing is removed or changed
//	no session for a minute, or  as an empty state
//	no state for three minutes
//
// spec.taints is one list for all its writers. The JSON patch tests what it replaces and nothing
// else: each taint that it removes, by its place and content, or that there is no list. A new taint
// is added at the end of the list that the API server then has. So no taint of another writer is
// lost or moved, and a writer that changes others every 10 ms delays it little: 40 changes beside one
// took 50 ms (median) and at most 160 ms, and on a busy machine 105 ms and 1.1 s
// (TestTaintsBesideOtherWriters). A test of metadata.resourceVersion would fail at each of its
// writes, and at those of the kubelet. A failed test is a 422 without a cause. The Node is then read
// again, after 10 ms to 1 s.
//
// A taint of evictd that another writer has removed is put back at the next heartbeat, or within five
// minutes if the conditions can't be written, or before the next report that needs it, whichever is
// first. A write that is overtaken [maxRaces] times in a row counts as refused.
//
// An order for the pod of a DaemonSet names a taint: without it the controller makes the pod again on
// this node, within 0.3 s. The taint is written when the order arrives, whatever evictd's state says,
// and before other reports. The phase or the deletion of the pod is written only when the Node is
// known to have had the taint less than a second before the order, or later; orders that arrive
// together share one look. That takes two seconds at most, then the pod is reported without it, which
// is logged. While the API server does not answer, these do not pass, for up to 30 s, and a report that
// has failed waits again: after an outage the taint comes first, too. A write of the Node that alone has
// no answer is no outage: the Node is then read at once if an order has come by then. Without the right
// to write taints, and while the API server refuses them, nothing waits.
// The taint remains for ten seconds after the report, in which evictd sends its condition, unless
// evictd has stopped or is in dry run.
//
// If an evictd that is stopped or in dry run can't have its conditions set to Unknown, they count as
// written unless one of them is true on the Node.
//
// Evictions do not depend on any of this: missing rights, a policy that refuses and a missing Node
// are told to evictd ([kube.NodeReport]), logged once, and tried again after up to five minutes. After
// SIGTERM evictd-kube waits for the last state of an evictd that is stopped too, for as long as
// cmd/evictd-kube allows.
//
// # Refusals
//
// The answer of the API server decides ([outcomeOf]):
//
//   - 404, and 422 about metadata.uid: the pod is gone.
//   - 422 about the size of metadata.annotations, 413, and etcd's refusal for the size: the pod is
//     deleted with grace period 1, or its own if it was not killed, so that no tenant can make a
//     pod immune by its size. A pod within about 60 bytes of etcd's limit can't be deleted by
//     anybody; its order waits.
//   - No answer in time: again with a timeout of 10, 20 and 30 s. If the API server then answers a
//     read, and the write is late once more, the pod is deleted as above.
//   - A policy's or a webhook's denial, whatever its code, and any other 4xx: forbidden, at once.
//   - 403: forbidden if it persists for 30 s. An API server that has just started answers 403
//     to everything until it has read its roles, for some seconds.
//   - 409: the pod is read before the next attempt, which has a back-off as below.
//   - Anything else, and each answer that is not a Status of the API server but a proxy's: again
//     after a back-off of 0.1 s to 30 s with jitter for this order, and not before Retry-After.
//
// As soon as the API server has carried out a write, answered a read of the Node, or accepted a list
// or a watch, the requests that had no answer are repeated within 0.2 s. An event of the watch or a
// read of a pod is no sign of that.
//
// # Admission
//
// The [Rejector] compares the annotation evictd.io/required-during-execution of a pod with the Node when the watch
// adds the pod. It decides by the Node and then the pod as the API server has them, about one pod at a time, and
// writes phase, reason and message as the kubelet does when it rejects a pod, with the annotation evictd.io/evicted:
// without that the kubelet takes the phase back and starts the pod, whose replacement runs by then. The patch has the
// pod's resource version, so that the status which it was decided by is the present one. Only agent/act could prove
// that no container runs which the kubelet has not reported, so a pod that must not run twice is not rejected. A
// rejection is forgotten after a restart; pods of a list are not decided on.
//
// # Bounds
//
// At most ten requests of the Reporter are in flight, of which two create events, and five are writes
// that were late before. The others have at most five seconds: an API server that is paused can't
// collect more of them. Not among the ten are the list and the watch, and one request at a time of each
// of [Rejector], [Marks], [Configz] and [PeerNodes].
//
// Writes of the status start before deletions, those before the request about the Node, and that
// before events; the Node comes first if an order waits for its taint. They use the HTTP/2 connection
// of the watch. An event that the API server can't create now is repeated four times, the last time
// after 80 s; events are dropped if 64 wait.
//
// Whether evictd-kube has the rights to report, and whether the token of a service account names the
// node, without which the policies deny each write, is asked at each connection, every five minutes,
// and after a 403. The first list waits for the answer, for at most a second. evictd enforces
// nothing while one of them is missing, except the rights about the Node.
package cluster
