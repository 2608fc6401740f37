package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is a sandbox and its containers as CRI knew them at one time.
type Pod struct {
	ID, Name, Namespace, UID string
	Ready                    bool
	// Cgroup is the pod's, the parent of all of its containers'; "" if it has none of its own.
	Cgroup string
	// PID is the pause process.
	PID        int
	Containers []Container
}

// Container is one container of a Pod.
type Container struct {
	ID, Name string
	Running  bool
	// PID is its first process, 0 when it does not run.
	PID int
	// Cgroup is its path below a hierarchy's mount point.
	Cgroup   string
	ExitCode int
}

// Pods lists all pods, those that are not ready too, in CRI's order.
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

// Pod asks CRI for one pod, by its sandbox's id.
func (n *Node) Pod(ctx context.Context, id string) (Pod, error) {
	answer, err := n.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return Pod{}, fmt.Errorf("ask for sandbox %s: %w", id, err)
	}
	info, err := parseInfo(answer.GetInfo())
	if err != nil {
		return Pod{}, fmt.Errorf("ask for sandbox %s: %w", id, err)
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
	for _, c := range list.GetContainers() {
		container, err := n.container(ctx, c.GetId(), pod.Cgroup)
		if err != nil {
			return Pod{}, fmt.Errorf("ask for container of %s: %w", pod.Name, err)
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

// info is the part that we need of containerd's verbose answers: JSON, under the key "info".
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

// MemoryUsage is a cgroup's charge in bytes: memory.usage_in_bytes, on v2 memory.current.
func (n *Node) MemoryUsage(cgroup string) (int64, error) {
	h, err := n.tree.having("memory")
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

// ContainerLog is the file that receives a container's output, in CRI's format.
func (n *Node) ContainerLog(pod Pod, container string) string {
	return n.path("logs", pod.Namespace+"_"+pod.Name+"_"+pod.UID, container+".log")
}
