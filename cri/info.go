package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const (
	// maxPID is PID_MAX_LIMIT of include/linux/threads.h on 64-bit kernels.
	maxPID = 1 << 22
	// crioCgroupParent is CRI-O's annotation for the cgroup parent of the sandbox.
	crioCgroupParent = "io.kubernetes.cri-o.CgroupParent"
)

// info is the part that evictd uses of the JSON document under "info" in the verbose
// status of containers and sandboxes, from containerd, CRI-O and cri-dockerd:
//
//	{"sandboxID":"0ca0…","pid":5367,"removing":false,…,"runtimeSpec":{"ociVersion":"1.0.2-dev",
//	 "process":{…,"oomScoreAdj":900},…,"linux":{"resources":{"memory":{"limit":67108864,…},
//	 "cpu":{"shares":512,"quota":50000,"period":100000}},"cgroupsPath":"/kubepods/burstable/pod8f2a…/0f01…",…}}}
//
// It declares a few fields of the OCI configuration and does not use specs.Spec, so
// that a change in the other fields can't make the cgroup of a container unreadable.
type info struct {
	SandboxID          string `json:"sandboxID"`
	PID                int    `json:"pid"`
	ProcessStatus      string `json:"processStatus"`
	NetNamespaceClosed *bool  `json:"netNamespaceClosed"`
	RuntimeHandler     string `json:"runtimeHandler"`
	// RuntimeOptions are of the kind of the runtime's shim.
	RuntimeOptions json.RawMessage `json:"runtimeOptions"`
	Config         struct {
		Linux struct {
			CgroupParent string `json:"cgroup_parent"`
		} `json:"linux"`
	} `json:"config"`
	RuntimeSpec struct {
		Process struct {
			OOMScoreAdj *int `json:"oomScoreAdj"`
		} `json:"process"`
		Annotations map[string]string `json:"annotations"`
		Linux       struct {
			CgroupsPath string     `json:"cgroupsPath"`
			Resources   *resources `json:"resources"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

type resources struct {
	Memory *specs.LinuxMemory `json:"memory"`
	CPU    *specs.LinuxCPU    `json:"cpu"`
}

// parseInfo parses the verbose status of a container or sandbox. known is false,
// without an error, if the runtime reports none.
func parseInfo(verbose map[string]string) (in info, known bool, err error) {
	text, ok := verbose["info"]
	if !ok {
		return info{}, false, nil
	}
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return info{}, false, fmt.Errorf("%w: verbose info: %w", ErrMalformed, err)
	}
	if err := in.check(); err != nil {
		return info{}, false, fmt.Errorf("%w: verbose info: %w", ErrMalformed, err)
	}
	return in, true, nil
}

func (in *info) check() error {
	if in.PID < 0 || in.PID == 1 || in.PID > maxPID {
		return fmt.Errorf("pid %d", in.PID)
	}
	// include/uapi/linux/oom.h: OOM_SCORE_ADJ_MIN and _MAX.
	if adj := in.RuntimeSpec.Process.OOMScoreAdj; adj != nil && (*adj < -1000 || *adj > 1000) {
		return fmt.Errorf("oomScoreAdj %d", *adj)
	}
	if in.SandboxID != "" {
		if err := checkID(in.SandboxID); err != nil {
			return errors.Join(errors.New("sandboxID"), err)
		}
	}
	return nil
}

// ociRuntime returns the name of the program in the options of the shim io.containerd.runc.v2, "" if
// there is none.
func (in *info) ociRuntime() string {
	var options struct {
		BinaryName string `json:"binary_name"`
	}
	if json.Unmarshal(in.RuntimeOptions, &options) != nil || options.BinaryName == "" {
		return ""
	}
	return path.Base(options.BinaryName)
}

// cgroupParent returns the cgroup parent requested for the sandbox, "" if not
// reported.
func (in *info) cgroupParent() string {
	if parent := in.Config.Linux.CgroupParent; parent != "" {
		return parent
	}
	return in.RuntimeSpec.Annotations[crioCgroupParent]
}
