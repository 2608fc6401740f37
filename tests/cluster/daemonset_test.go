package cluster

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// daemonSet is the part of a DaemonSet that says what its containers may use.
type daemonSet struct {
	Spec struct {
		Template struct {
			Spec struct {
				Containers []daemonSetContainer
				Volumes    []struct {
					Name     string
					HostPath struct{ Path string } `yaml:"hostPath"`
				}
			}
		}
	}
}

type daemonSetContainer struct {
	Name            string
	SecurityContext struct {
		RunAsUser    int `yaml:"runAsUser"`
		Privileged   bool
		Capabilities struct{ Add, Drop []string }
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name              string
		MountPath         string `yaml:"mountPath"`
		ReadOnly          bool   `yaml:"readOnly"`
		RecursiveReadOnly string `yaml:"recursiveReadOnly"`
		MountPropagation  string `yaml:"mountPropagation"`
	} `yaml:"volumeMounts"`
}

// TestDaemonSet: in the base, which is dry run, evictd has single directories of the node,
// of which it can write only its own, and can't kill. evictd-kube has the socket and the
// token.
func TestDaemonSet(t *testing.T) {
	content, err := os.ReadFile("../../deploy/kubernetes/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d daemonSet
	if err := yaml.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{}
	for _, v := range d.Spec.Template.Spec.Volumes {
		paths[v.Name] = v.HostPath.Path
	}
	got := map[string][]string{}
	for _, c := range d.Spec.Template.Spec.Containers {
		s := &c.SecurityContext
		if s.Privileged || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s: privileged %t, drops %v; want it to drop all capabilities", c.Name, s.Privileged, s.Capabilities.Drop)
		}
		list := slices.Clone(s.Capabilities.Add)
		for _, m := range c.VolumeMounts {
			mode := " writable"
			switch {
			case m.RecursiveReadOnly != "":
				mode = " recursively read-only"
			case m.ReadOnly:
				mode = " read-only"
			}
			if at, ok := strings.CutPrefix(m.MountPath, "/host"); ok && at != paths[m.Name] {
				t.Errorf("%s: %s is mounted at %s", c.Name, paths[m.Name], m.MountPath)
			}
			list = append(list, m.Name+" "+paths[m.Name]+mode+strings.TrimRight(" "+m.MountPropagation, " "))
		}
		got[c.Name] = list
	}
	want := map[string][]string{
		"evictd": {
			"BPF", "PERFMON", "IPC_LOCK", "SYS_NICE",
			"config  read-only",
			"kubelet /var/lib/kubelet read-only HostToContainer",
			"containerd /var/lib/containerd read-only HostToContainer",
			"logs /var/log/pods recursively read-only",
			"runtime /run/containerd recursively read-only",
			"cgroup /sys/fs/cgroup recursively read-only",
			"run /run/evictd writable",
			"state /var/lib/evictd writable",
		},
		"evictd-kube": {"run /run/evictd read-only", "token  read-only"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the containers have (-want +got):\n%s", diff)
	}
	if kube := d.Spec.Template.Spec.Containers[1].SecurityContext.RunAsUser; kube != kubeUID {
		t.Errorf("evictd-kube runs as user %d; want %d", kube, kubeUID)
	}
}
