package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPod runs a pod and returns when all containers are started. On error it removes the pod.
func (n *Node) RunPod(ctx context.Context, spec PodSpec) (_ Pod, err error) {
	began := time.Now()
	if err := spec.setDefaults(); err != nil {
		return Pod{}, fmt.Errorf("run pod %s: %w", spec.Name, err)
	}
	parent, err := n.podCgroup(spec)
	if err != nil {
		return Pod{}, fmt.Errorf("run pod %s: %w", spec.Name, err)
	}
	config := n.sandboxConfig(spec, parent)
	var id string
	defer func() {
		if err != nil {
			// The error may be that ctx has ended.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ScaleTimeout(10*time.Second))
			defer cancel()
			err = errors.Join(fmt.Errorf("run pod %s: %w", spec.Name, err), n.removePod(ctx, id, parent))
		}
	}()
	if parent != "" {
		if err := n.makePodCgroup(spec, parent); err != nil {
			return Pod{}, err
		}
	}
	sandbox, err := n.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return Pod{}, fmt.Errorf("run sandbox: %w", err)
	}
	id = sandbox.GetPodSandboxId()
	if spec.ShmBytes > 0 {
		shm := filepath.Join(n.chroot, n.path("state/io.containerd.grpc.v1.cri/sandboxes", id, "shm"))
		if err := unix.Mount("shm", shm, "tmpfs", unix.MS_REMOUNT|unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV,
			"mode=1777,size="+strconv.FormatInt(spec.ShmBytes, 10)); err != nil {
			return Pod{}, fmt.Errorf("resize /dev/shm: %w", err)
		}
	}
	for _, c := range spec.Containers {
		if err := n.runContainer(ctx, spec, c, id, config); err != nil {
			return Pod{}, err
		}
	}
	pod, err := n.Pod(ctx, id)
	if err != nil {
		return Pod{}, err
	}
	n.log.Printf("pod %s/%s (%s) runs after %v", pod.Namespace, pod.Name, spec.QoS, since(began))
	return pod, nil
}

// podCgroup returns the cgroup parent of the CRI request, "" for none. It fails if that is not below the node's root,
// or if nothing would limit the pod's memory.
func (n *Node) podCgroup(spec PodSpec) (string, error) {
	var path string
	switch spec.CgroupParent {
	case "":
		return n.PodCgroup(spec.QoS, spec.UID), nil
	case NoCgroupParent:
		if n.record.Driver == Systemd {
			return "", errors.New("the systemd driver runs no container without a slice")
		}
	default:
		if path = filepath.Clean(spec.CgroupParent); !below(path, n.record.podRoot()) {
			return "", fmt.Errorf("cgroup parent %s is not below %s", spec.CgroupParent, n.record.podRoot())
		}
	}
	if _, limited := spec.memoryLimit(); !limited && path != n.Kubepods() && !below(path, n.Kubepods()) {
		return "", fmt.Errorf("outside of %s each container needs a memory limit", n.Kubepods())
	}
	return path, nil
}

// makePodCgroup creates the pod's cgroup with its limits, as a kubelet does before it calls RunPodSandbox.
func (n *Node) makePodCgroup(spec PodSpec, cgroup string) error {
	limit, ok := spec.memoryLimit()
	if !ok || spec.CgroupParent != "" {
		limit = 0
	}
	return n.makePods(cgroup, limit, spec.PIDLimit)
}

func (n *Node) sandboxConfig(spec PodSpec, parent string) *cri.PodSandboxConfig {
	labels := map[string]string{
		"io.kubernetes.pod.name":      spec.Name,
		"io.kubernetes.pod.namespace": spec.Namespace,
		"io.kubernetes.pod.uid":       spec.UID,
	}
	maps.Copy(labels, spec.Labels)
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: spec.Name, Namespace: spec.Namespace, Uid: spec.UID},
		LogDirectory: n.path("logs", spec.Namespace+"_"+spec.Name+"_"+spec.UID),
		// Without a DNS configuration, containerd copies /etc/resolv.conf, which need not exist.
		DnsConfig:   &cri.DNSConfig{Servers: []string{"127.0.0.1"}},
		Labels:      labels,
		Annotations: spec.Annotations,
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    parent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: spec.namespaces()},
		},
	}
}

func (n *Node) runContainer(ctx context.Context, spec PodSpec, c ContainerSpec, sandbox string, config *cri.PodSandboxConfig) error {
	start, err := n.createContainer(ctx, spec, c, sandbox, config)
	if err != nil {
		return err
	}
	return start(ctx)
}

// CreateContainer creates a further container of a pod, as a kubelet does that restarts one, and returns the function
// that starts it.
func (n *Node) CreateContainer(ctx context.Context, pod Pod, spec PodSpec, c ContainerSpec) (start func(context.Context) error, err error) {
	spec.Namespace, spec.UID, spec.Containers = pod.Namespace, pod.UID, []ContainerSpec{c}
	if err := spec.setDefaults(); err != nil {
		return nil, fmt.Errorf("create container of pod %s: %w", pod.Name, err)
	}
	return n.createContainer(ctx, spec, spec.Containers[0], pod.ID, n.sandboxConfig(spec, pod.Cgroup))
}

// createContainer creates a container and returns the function that starts it.
func (n *Node) createContainer(ctx context.Context, spec PodSpec, c ContainerSpec, sandbox string, config *cri.PodSandboxConfig) (start func(context.Context) error, err error) {
	annotations := map[string]string{
		"io.kubernetes.container.hash":                     "0",
		"io.kubernetes.container.restartCount":             "0",
		"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
		"io.kubernetes.container.terminationMessagePolicy": "File",
		"io.kubernetes.pod.terminationGracePeriod":         strconv.FormatInt(int64(spec.TerminationGracePeriod/time.Second), 10),
	}
	maps.Copy(annotations, c.Annotations)
	score := spec.QoS.oomScoreAdj(c.MemoryRequest, n.capacity)
	if c.OOMScoreAdj != nil {
		score = *c.OOMScoreAdj
	}
	var mounts []*cri.Mount
	for _, m := range c.Mounts {
		mounts = append(mounts, &cri.Mount{HostPath: strings.TrimPrefix(m.Host, n.chroot), ContainerPath: m.Container, Readonly: m.ReadOnly})
	}
	created, err := n.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId:  sandbox,
		SandboxConfig: config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: c.Name},
			Image:    &cri.ImageSpec{Image: c.Image},
			Command:  c.Command,
			Args:     c.Args,
			Labels: map[string]string{
				"io.kubernetes.container.name": c.Name,
				"io.kubernetes.pod.name":       spec.Name,
				"io.kubernetes.pod.namespace":  spec.Namespace,
				"io.kubernetes.pod.uid":        spec.UID,
			},
			Annotations: annotations,
			Mounts:      mounts,
			LogPath:     c.Name + ".log",
			Linux: &cri.LinuxContainerConfig{
				Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: c.MemoryLimit, OomScoreAdj: score},
				SecurityContext: &cri.LinuxContainerSecurityContext{
					NamespaceOptions: spec.namespaces(),
					RunAsUser:        &cri.Int64Value{Value: c.RunAsUser},
				},
			},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", c.Name, err)
	}
	return func(ctx context.Context) error {
		if _, err := n.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.GetContainerId()}); err != nil {
			return fmt.Errorf("start container %s: %w", c.Name, err)
		}
		return nil
	}, nil
}

// CreateFrom creates a container of an image in a pod without starting it. The image is in use until remove is
// called.
func (n *Node) CreateFrom(ctx context.Context, pod Pod, image string) (remove func(context.Context) error, err error) {
	created, err := n.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: pod.ID,
		SandboxConfig: &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: pod.UID},
		},
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: image},
			Image:    &cri.ImageSpec{Image: image},
			Args:     []string{"/none"},
			Linux:    &cri.LinuxContainerConfig{},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create container from %s: %w", image, err)
	}
	return func(ctx context.Context) error {
		_, err := n.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: created.GetContainerId()})
		if err != nil {
			return fmt.Errorf("remove container from %s: %w", image, err)
		}
		return nil
	}, nil
}

// StopPod stops a pod's sandbox and containers. CRI still lists them.
func (n *Node) StopPod(ctx context.Context, pod Pod) error {
	if _, err := n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.ID}); err != nil {
		return fmt.Errorf("stop pod %s: %w", pod.Name, err)
	}
	return nil
}

// RemovePod stops and removes a pod, and removes its cgroup as a kubelet would. It returns nil if the pod does not
// exist.
func (n *Node) RemovePod(ctx context.Context, pod Pod) error {
	if err := n.removePod(ctx, pod.ID, pod.Cgroup); err != nil {
		return fmt.Errorf("remove pod %s: %w", pod.Name, err)
	}
	return nil
}

func (n *Node) removePod(ctx context.Context, id, cgroup string) error {
	if id != "" {
		if err := n.stopSandbox(ctx, id); err != nil {
			return fmt.Errorf("stop sandbox: %w", err)
		}
		if _, err := n.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			return fmt.Errorf("remove sandbox: %w", err)
		}
	}
	// With a CgroupParent, several pods can share a cgroup: it stays while another pod has processes there.
	if !below(cgroup, n.Kubepods()) || len(n.tree.processes(cgroup)) > 0 {
		return nil
	}
	return n.removePods(cgroup)
}

// stopSandbox stops a sandbox, again if that fails, as a kubelet does: containerd 1.6 fails if the shim of a
// container that has just exited closes the connection on which it was to kill it.
func (n *Node) stopSandbox(ctx context.Context, id string) error {
	for attempt := 1; ; attempt++ {
		_, err := n.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		// containerd 1.6 returns NotFound for a sandbox that is gone, where CRI requires success.
		if status.Code(err) == codes.NotFound {
			return nil
		}
		if status.Code(err) != codes.Unknown || attempt == 3 {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Volume creates a directory on the node, for a Mount. With bytes > 0 it is a tmpfs of that size, as a kubelet mounts
// for an emptyDir of medium Memory.
func (n *Node) Volume(name string, bytes int64) (string, error) {
	dir := filepath.Join(n.chroot, n.path("volumes", name)) // containerd sees only what is mounted below its root
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", fmt.Errorf("make volume: %w", err)
	}
	if bytes > 0 {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size="+strconv.FormatInt(bytes, 10)); err != nil {
			return "", fmt.Errorf("mount volume: %w", err)
		}
	}
	return dir, nil
}
