package cri

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerDetail is a container with its verbose status.
type ContainerDetail struct {
	Container // SandboxID is "" if not reported

	Started  time.Time // zero: not started
	Finished time.Time // zero: not exited
	ExitCode int32     // valid if Finished is set
	Reason   string    // OOMKilled, Error, Completed, or specific to the runtime
	Message  string
	LogPath  string // absolute; "" if there is no log or it is not reported

	// PID is the host pid of the container's first process, as reported by the
	// runtime, 0 if there is none or it is not reported. Do not signal 0.
	PID int
	// CgroupsPath is the OCI cgroupsPath (see [CgroupPath]), "" if not reported.
	CgroupsPath string
	// OOMScoreAdj is -1000 to 1000, nil if not reported.
	OOMScoreAdj *int

	// ResourcesKnown means that the runtime reported the limits below: nil is then
	// "no limit", and otherwise "not reported".
	ResourcesKnown  bool
	MemoryLimit     *int64  // bytes
	MemorySwapLimit *int64  // bytes, sum of memory and swap
	CPUShares       *uint64 // cgroup v1 shares, 2 to 262144, also on v2
	CPUQuota        *int64  // µs of CPU time per CPUPeriod
	CPUPeriod       *uint64 // µs
}

// SandboxDetail is a sandbox with its verbose status.
type SandboxDetail struct {
	Sandbox

	// PID is the host pid of the sandbox's own process, 0 if there is none (CRI-O
	// avoids it where possible) or it is not reported. Do not signal 0.
	PID int
	// ProcessStatus is containerd's status of that process (running, deleted, …).
	ProcessStatus string
	// CgroupParent is the cgroup parent requested for the sandbox, in the requested
	// form; "" if not reported.
	CgroupParent string
	// CgroupsPath is the OCI cgroupsPath of the sandbox's own process (see
	// [CgroupPath]), "" if not reported.
	CgroupsPath string
	// OCIRuntime is the name of the program that containerd is configured to run instead of runc, such as
	// crun; "" if it is not reported.
	OCIRuntime string
	// NetNSClosed is whether the network namespace is closed, nil if not reported.
	NetNSClosed *bool
}

// ContainerDetail returns the verbose status of one container. It fails with
// ErrNotFound if the container does not exist, and with ErrMalformed if the response
// is about another container, can't be parsed or has impossible values. Missing
// verbose information is not an error: cri-dockerd reports the pid of a container, but
// not its cgroup and limits, and nothing about a sandbox.
func (c *Client) ContainerDetail(ctx context.Context, id string) (ContainerDetail, error) {
	op := "container status " + id
	if err := checkID(id); err != nil {
		return ContainerDetail{}, fmt.Errorf("%s: %w", op, err)
	}
	var resp *runtimev1.ContainerStatusResponse
	err := c.call(ctx, c.callTimeout, op, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		resp, err = c.runtime.ContainerStatus(ctx, &runtimev1.ContainerStatusRequest{ContainerId: id, Verbose: true}, opts...)
		return err
	})
	if err != nil {
		return ContainerDetail{}, err
	}
	d, err := containerDetailOf(id, resp)
	if err != nil {
		return ContainerDetail{}, fmt.Errorf("%s: %w", op, err)
	}
	return d, nil
}

func containerDetailOf(id string, resp *runtimev1.ContainerStatusResponse) (ContainerDetail, error) {
	status := resp.GetStatus()
	if status.GetId() != id {
		return ContainerDetail{}, fmt.Errorf("%w: about %.80q", ErrMalformed, status.GetId())
	}
	in, known, err := parseInfo(resp.GetInfo())
	if err != nil {
		return ContainerDetail{}, err
	}
	d := ContainerDetail{
		Container: Container{
			ID:          id,
			SandboxID:   in.SandboxID,
			Name:        status.GetMetadata().GetName(),
			Attempt:     status.GetMetadata().GetAttempt(),
			State:       stateOf(status.GetState()),
			Created:     nanoseconds(status.GetCreatedAt()),
			Image:       status.GetImage().GetImage(),
			ImageRef:    status.GetImageRef(),
			Labels:      status.GetLabels(),
			Annotations: status.GetAnnotations(),
		},
		Started:     nanoseconds(status.GetStartedAt()),
		Finished:    nanoseconds(status.GetFinishedAt()),
		ExitCode:    status.GetExitCode(),
		Reason:      status.GetReason(),
		Message:     status.GetMessage(),
		LogPath:     logPathOf(status.GetLogPath()),
		PID:         in.PID,
		CgroupsPath: in.RuntimeSpec.Linux.CgroupsPath,
		OOMScoreAdj: in.RuntimeSpec.Process.OOMScoreAdj,
	}
	if r := in.RuntimeSpec.Linux.Resources; known && r != nil {
		d.setSpecResources(r)
	} else if r := status.GetResources().GetLinux(); r != nil {
		d.setStatusResources(r)
	}
	return d, nil
}

// logPathOf returns p if it is an absolute, clean path, and "" otherwise.
func logPathOf(p string) string {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		return ""
	}
	return p
}

func (d *ContainerDetail) setSpecResources(r *resources) {
	d.ResourcesKnown = true
	if m := r.Memory; m != nil {
		d.MemoryLimit, d.MemorySwapLimit = positive(m.Limit), positive(m.Swap)
	}
	if c := r.CPU; c != nil {
		d.CPUShares, d.CPUQuota, d.CPUPeriod = positive(c.Shares), positive(c.Quota), positive(c.Period)
	}
}

// setStatusResources sets the limits from the status itself, where 0 means "not
// specified". It ignores an OOM score of 0, which can't be distinguished from that.
func (d *ContainerDetail) setStatusResources(r *runtimev1.LinuxContainerResources) {
	d.ResourcesKnown = true
	memory, swap, quota := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes(), r.GetCpuQuota()
	d.MemoryLimit, d.MemorySwapLimit, d.CPUQuota = positive(&memory), positive(&swap), positive(&quota)
	if shares := r.GetCpuShares(); shares > 0 {
		d.CPUShares = new(uint64(shares))
	}
	if period := r.GetCpuPeriod(); period > 0 {
		d.CPUPeriod = new(uint64(period))
	}
	if adj := r.GetOomScoreAdj(); d.OOMScoreAdj == nil && adj != 0 && -1000 <= adj && adj <= 1000 {
		d.OOMScoreAdj = new(int(adj))
	}
}

// positive returns nil for the numbers that mean "no limit" in an OCI configuration:
// 0 is unset and -1 unlimited.
func positive[N int64 | uint64](n *N) *N {
	if n == nil || *n <= 0 {
		return nil
	}
	return n
}

// SandboxDetail returns the verbose status of one sandbox. It fails as
// [Client.ContainerDetail] does.
func (c *Client) SandboxDetail(ctx context.Context, id string) (SandboxDetail, error) {
	op := "sandbox status " + id
	if err := checkID(id); err != nil {
		return SandboxDetail{}, fmt.Errorf("%s: %w", op, err)
	}
	var resp *runtimev1.PodSandboxStatusResponse
	err := c.call(ctx, c.callTimeout, op, func(ctx context.Context, opts ...grpc.CallOption) (err error) {
		resp, err = c.runtime.PodSandboxStatus(ctx, &runtimev1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true}, opts...)
		return err
	})
	if err != nil {
		return SandboxDetail{}, err
	}
	d, err := sandboxDetailOf(id, resp)
	if err != nil {
		return SandboxDetail{}, fmt.Errorf("%s: %w", op, err)
	}
	return d, nil
}

func sandboxDetailOf(id string, resp *runtimev1.PodSandboxStatusResponse) (SandboxDetail, error) {
	status := resp.GetStatus()
	if status.GetId() != id {
		return SandboxDetail{}, fmt.Errorf("%w: about %.80q", ErrMalformed, status.GetId())
	}
	in, _, err := parseInfo(resp.GetInfo())
	if err != nil {
		return SandboxDetail{}, err
	}
	d := SandboxDetail{
		Sandbox: Sandbox{
			ID:             id,
			Name:           status.GetMetadata().GetName(),
			Namespace:      status.GetMetadata().GetNamespace(),
			UID:            status.GetMetadata().GetUid(),
			Attempt:        status.GetMetadata().GetAttempt(),
			Created:        nanoseconds(status.GetCreatedAt()),
			Ready:          status.GetState() == runtimev1.PodSandboxState_SANDBOX_READY,
			Labels:         status.GetLabels(),
			Annotations:    status.GetAnnotations(),
			RuntimeHandler: status.GetRuntimeHandler(),
		},
		PID:           in.PID,
		ProcessStatus: in.ProcessStatus,
		CgroupParent:  in.cgroupParent(),
		CgroupsPath:   in.RuntimeSpec.Linux.CgroupsPath,
		OCIRuntime:    in.ociRuntime(),
		NetNSClosed:   in.NetNamespaceClosed,
	}
	if d.RuntimeHandler == "" {
		d.RuntimeHandler = in.RuntimeHandler
	}
	return d, nil
}
