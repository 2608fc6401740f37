package act

import (
	"context"
	"time"

	"github.com/evictd/evictd/agent/evict"
)

// Job is an order with the containers and the sandbox of its pod.
type Job struct {
	Order evict.Order
	// SandboxID is the pod's sandbox. Owned means that no kubelet made the sandbox,
	// so evictd may stop it.
	SandboxID  string
	Owned      bool
	Containers []evict.RunningContainer
	// SandboxPID is the first process of the sandbox and SandboxStart its start time in
	// clock ticks since boot; 0 if unknown. OtherContainers are the IDs of the pod's containers
	// that are not in Containers: they are created and not started. OCIRuntime is the program that
	// runs containers instead of runc, "" if none is known. Only a Reported job needs them.
	SandboxPID      int
	SandboxStart    uint64
	OtherContainers []string
	OCIRuntime      string
	// StopStages is the order in which the runtime is asked to stop the containers. If
	// it is empty, all are asked at once. A kill ignores it.
	StopStages []StopStage
	Guard      *evict.Guard
	// Reported means that evictd-kube reports the eviction of this kubelet's pod to the API
	// server. The Killer then sets the pod's fence after the kill and never asks the runtime
	// to stop a container: the kubelet does that. A container whose cgroup is not proven is
	// left to the kubelet.
	Reported bool
	// Shutdown means that the node shuts down and that the pod is a kubelet's, which would start
	// its containers again. The runtime is asked to stop them, except those of a Reported job
	// whose order is answered in time: these the kubelet stops. The pod's fence is set as soon
	// as one of its containers has been stopped by the runtime, or the pod was killed, also if
	// it can't be reported. Stopping is set for the Fencer while others of the containers may be in
	// their grace period: their processes must be able to fork until they end.
	Shutdown, Stopping bool
}

// Fencer keeps killed pods of a kubelet from running again.
type Fencer interface {
	// Fence sets the fence of the pod of a job. It may block for the kernel's cgroup locks. If
	// it fails, the kubelet may start the pod again. It is called for a Reported job, right
	// after the kill, on a goroutine of its own, and not for a pod of which no container may
	// be killed, or whose containers had all ended, unless in its grace period. A container
	// whose cgroup is not proven has an empty Cgroup. It is also called for a Shutdown job, Reported or not, and possibly more
	// than once: first with Stopping, if it has several containers. On cgroup v1 there is no fence
	// that lets processes fork, so that call does nothing.
	Fence(job *Job) error
	// Answered reports whether a pod in its grace period was reported, so that its kubelet stops
	// it; also if the node does not shut down any more. It is waiting if the answer may still come:
	// evictd-kube is connected.
	Answered(uid string) (answered, waiting bool)
	// Allowed returns why the pod may not be killed when its grace period ends: the API server
	// has refused the report since, and the kubelet would start the pod again. It is nil if
	// it may: in a shutdown of the node the pod is fenced without a report.
	Allowed(job *Job) error
}

// StopStage is a set of containers that are asked to stop together, after the
// containers of the previous sets have ended.
type StopStage struct {
	// IDs are container IDs. A container without a set belongs to the first one.
	IDs []string
	// StartBy is when the containers are asked even if earlier ones still run,
	// counted from the start of the eviction.
	StartBy time.Duration
}

// Stage is a point that an order has reached.
type Stage uint8

// The stages, in the order in which they are reached. Stages may be skipped.
const (
	// Signalled: SIGKILL was sent, or the runtime is asked to stop, or the kubelet is to stop
	// the pod of a Reported job (Progress.KubeletStops).
	Signalled Stage = iota
	// Escalated: the grace period was ended early.
	Escalated
	// FirstGone: the first process of the pod has exited. LastGone: no process of
	// the containers is left; of a Reported job, nor of a container that started after the
	// order. It is not reported if those could not be looked for in the pod's cgroup.
	FirstGone
	LastGone
	// Refused: no process was signalled because a container's cgroup must not be killed, the
	// containers of a Reported job had ended by themselves ([ErrEnded]), or no part of the order
	// could be carried out.
	Refused
	// Finished: the runtime was asked, and nothing more will be done, except that a failed
	// stop of the sandbox may be repeated. Err has the errors of the containers and the
	// sandbox.
	Finished
)

// Progress reports that an order reached a stage.
type Progress struct {
	UID   string
	Stage Stage
	Time  time.Time
	// Processes is the number of processes signalled.
	Processes int
	Err       error
	// Reported is set in all reports of a Reported job. KubeletStops is set in the report of
	// Signalled if the processes of its containers end only when the kubelet stops the pod:
	// in a grace period, which is Grace then, and if the cgroup of a container is not proven.
	Reported, KubeletStops bool
	Grace                  time.Duration
	// Order is set with KubeletStops.
	Order *evict.Order
}

// Runtime is the part of a container runtime that an Actuator uses.
type Runtime interface {
	// StopContainer stops a container; grace 0 kills it. It returns nil for a
	// container that no longer exists.
	StopContainer(ctx context.Context, id string, grace time.Duration) error
	// StopSandbox stops a sandbox and all that runs in it.
	StopSandbox(ctx context.Context, id string) error
}

// Actuator carries out orders.
type Actuator interface {
	// Evict starts an order. For a hard order it returns when the processes of the
	// containers with a proven cgroup have been signalled, except those of one that
	// forks faster than it is signalled.
	Evict(ctx context.Context, job Job)
	// Follow continues after a [FastKiller] killed the job's pod: it waits for the pod
	// to end, asks the runtime to stop it, and closes the handle. The containers are those of
	// the handle, all else is as job says: the handle may have been opened long before.
	Follow(ctx context.Context, job Job, handle *KillHandle, result KillResult)
	// Escalate ends the grace period of a soft eviction: it kills the containers that
	// the job lists. It also does so if the soft eviction has ended already.
	Escalate(ctx context.Context, job Job)
}
