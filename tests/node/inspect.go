package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is a snapshot of a sandbox and its containers in CRI.
type Pod struct {
	ID, Name, Namespace, UID string
	Ready                    bool
	// Cgroup is the parent cgroup of the pod's containers; "" for a pod without a cgroup parent.
	Cgroup string
	// PID is the process ID of the pause process.
	PID int
	// Containers are sorted by the time of their creation.
	Containers []Container
}

// Container is one container of a Pod.
type Container struct {
	ID, Name string
	Running  bool
	// PID is the container's first process, 0 if it does not run.
	PID int
	// Cgroup is the path below a hierarchy's mount point.
	Cgroup   string
	ExitCode int
}

// Pods lists all pods, including those that are not ready, in CRI's order.
func (n *Node) Pods(ctx context.Context) ([]Pod, error) {
	list, err := n.runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var pods []Pod
	for _, s := range list.GetItems() {
		pod, err := n.Pod(ctx, s.GetId())
		if err != nil {
			return nil, err
		}
		pods = append(pods, pod)
	}
	return pods, nil
}

// Pod reads one pod from CRI by the id of its sandbox.
func (n *Node) Pod(ctx context.Context, id string) (Pod, error) {
	answer, err := n.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return Pod{}, fmt.Errorf("read status of sandbox %s: %w", id, err)
	}
	info, err := parseInfo(answer.GetInfo())
	if err != nil {
		return Pod{}, fmt.Errorf("read status of sandbox %s: %w", id, err)
	}
	sandbox := answer.GetStatus()
	pod := Pod{
		ID:        id,
		Name:      sandbox.GetMetadata().GetName(),
		Namespace: sandbox.GetMetadata().GetNamespace(),
		UID:       sandbox.GetMetadata().GetUid(),
		Ready:     sandbox.GetState() == cri.PodSandboxState_SANDBOX_READY,
		Cgroup:    info.Config.Linux.CgroupParent,
		PID:       info.PID,
	}
	list, err := n.runtime.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: id}})
	if err != nil {
		return Pod{}, fmt.Errorf("list containers of %s: %w", pod.Name, err)
	}
	containers := list.GetContainers() // in any order
	slices.SortFunc(containers, func(a, b *cri.Container) int { return cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()) })
	for _, c := range containers {
		container, err := n.container(ctx, c.GetId(), pod.Cgroup)
		if err != nil {
			return Pod{}, fmt.Errorf("read status of a container of %s: %w", pod.Name, err)
		}
		pod.Containers = append(pod.Containers, container)
	}
	return pod, nil
}

func (n *Node) container(ctx context.Context, id, pod string) (Container, error) {
	answer, err := n.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return Container{}, err
	}
	info, err := parseInfo(answer.GetInfo())
	if err != nil {
		return Container{}, err
	}
	cgroup, err := containerCgroup(info.RuntimeSpec.Linux.CgroupsPath, pod)
	if err != nil {
		return Container{}, err
	}
	known := answer.GetStatus()
	c := Container{
		ID:       id,
		Name:     known.GetMetadata().GetName(),
		Running:  known.GetState() == cri.ContainerState_CONTAINER_RUNNING,
		Cgroup:   cgroup,
		ExitCode: int(known.GetExitCode()),
	}
	if c.Running {
		c.PID = info.PID
	}
	return c, nil
}

// info is the part of containerd's verbose status that tests need: JSON, under the key "info".
type info struct {
	PID         int `json:"pid"`
	RuntimeSpec struct {
		Linux struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
	Config struct {
		Linux struct {
			CgroupParent string `json:"cgroup_parent"`
		} `json:"linux"`
	} `json:"config"`
}

func parseInfo(answer map[string]string) (info, error) {
	var i info
	if err := json.Unmarshal([]byte(answer["info"]), &i); err != nil {
		return info{}, fmt.Errorf("parse verbose info: %w", err)
	}
	return i, nil
}

// MemoryUsage reads the memory charged to a cgroup in bytes: memory.usage_in_bytes, on v2 memory.current.
func (n *Node) MemoryUsage(cgroup string) (int64, error) {
	h, err := n.tree.withController("memory")
	if err != nil {
		return 0, err
	}
	file := "memory.usage_in_bytes"
	if h.v2 {
		file = "memory.current"
	}
	b, err := os.ReadFile(h.path(cgroup, file))
	if err != nil {
		return 0, fmt.Errorf("read memory usage: %w", err)
	}
	usage, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parse memory usage: %w", err)
	}
	return usage, nil
}

// PodCgroup returns the cgroup in which a kubelet runs a pod.
func (n *Node) PodCgroup(q QoS, uid string) string { return n.ChildCgroup(n.qosCgroup(q), "pod"+uid) }

// CgroupPath returns the directory of a cgroup in the hierarchy that has a controller. The cgroup need not exist.
func (n *Node) CgroupPath(controller, cgroup string) (string, error) {
	h, err := n.tree.withController(controller)
	if err != nil {
		return "", err
	}
	return h.path(cgroup), nil
}

// ContainerLog returns the path of a container's log, in CRI's format.
func (n *Node) ContainerLog(pod Pod, container string) string {
	return n.path("logs", pod.Namespace+"_"+pod.Name+"_"+pod.UID, container+".log")
}
