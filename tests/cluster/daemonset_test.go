package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/evictd/evictd/agent"
	"github.com/evictd/evictd/agent/config"
)

// daemonSet is the part of a DaemonSet that says where it runs and what its containers may use.
type daemonSet struct {
	Metadata struct{ Name string }
	Spec     struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		MinReadySeconds int `yaml:"minReadySeconds"`
		Template        struct {
			Spec struct {
				podSecurity  `yaml:",inline"`
				Containers   []daemonSetContainer
				NodeSelector map[string]string `yaml:"nodeSelector"`
				Affinity     struct {
					NodeAffinity struct {
						Required struct {
							NodeSelectorTerms []struct {
								MatchExpressions []struct {
									Key, Operator string
									Values        []string
								} `yaml:"matchExpressions"`
							} `yaml:"nodeSelectorTerms"`
						} `yaml:"requiredDuringSchedulingIgnoredDuringExecution"`
					} `yaml:"nodeAffinity"`
				}
				Volumes []struct {
					Name     string
					HostPath struct{ Path, Type string } `yaml:"hostPath"`
				}
			}
		}
	}
}

// podSecurity is what all containers of a pod share.
type podSecurity struct {
	HostPID           bool   `yaml:"hostPID"`
	HostIPC           bool   `yaml:"hostIPC"`
	PriorityClassName string `yaml:"priorityClassName"`
	Tolerations       []map[string]string
	SecurityContext   struct {
		SeccompProfile profile `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
}

// profile is one of seccomp or AppArmor. An empty type is that of the pod, or else the runtime's default.
type profile struct{ Type string }

type daemonSetContainer struct {
	Name            string
	SecurityContext struct {
		containerSecurity `yaml:",inline"`
		RunAsUser         int `yaml:"runAsUser"`
		Privileged        bool
		Capabilities      struct{ Add, Drop []string }
	} `yaml:"securityContext"`
	ReadinessProbe struct {
		HTTPGet httpGet `yaml:"httpGet"`
	} `yaml:"readinessProbe"`
	Resources    struct{ Limits map[string]string }
	VolumeMounts []struct {
		Name              string
		MountPath         string `yaml:"mountPath"`
		ReadOnly          bool   `yaml:"readOnly"`
		RecursiveReadOnly string `yaml:"recursiveReadOnly"`
		MountPropagation  string `yaml:"mountPropagation"`
	} `yaml:"volumeMounts"`
}

// httpGet is what a probe reads.
type httpGet struct{ Host, Port, Path, Scheme string }

// containerSecurity is what restricts a container besides its capabilities.
type containerSecurity struct {
	AllowPrivilegeEscalation *bool   `yaml:"allowPrivilegeEscalation"`
	ReadOnlyRootFilesystem   bool    `yaml:"readOnlyRootFilesystem"`
	RunAsNonRoot             bool    `yaml:"runAsNonRoot"`
	SeccompProfile           profile `yaml:"seccompProfile"`
	AppArmorProfile          profile `yaml:"appArmorProfile"`
}

// wantPod, wantContainers and wantProbes are the same in all overlays. The kubelet never evicts the pods, and
// every node gets one. AppArmor would keep evictd from reading other processes.
var (
	wantPod = func() (p podSecurity) {
		p.HostPID, p.PriorityClassName, p.Tolerations = true, "system-node-critical", []map[string]string{{"operator": "Exists"}}
		p.SecurityContext.SeccompProfile.Type = "RuntimeDefault"
		return p
	}()
	wantContainers = map[string]containerSecurity{
		"evictd":      {AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: true, AppArmorProfile: profile{"Unconfined"}},
		"evictd-kube": {AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: true, RunAsNonRoot: true},
	}
	wantProbes = func() map[string]httpGet {
		host, port, _ := net.SplitHostPort(agent.Defaults().WebAddress)
		return map[string]httpGet{"evictd": {Host: host, Port: port, Path: "/readyz"}}
	}()
)

// baseUses is what the containers of the base have of the node. The kubelet creates some directories if they do not exist.
var baseUses = map[string][]string{
	"evictd": {
		"BPF", "PERFMON", "IPC_LOCK", "SYS_NICE",
		"config  read-only",
		"kubelet /var/lib/kubelet read-only HostToContainer",
		"runtime-root /var/lib/containerd read-only HostToContainer",
		"logs /var/log/pods created recursively read-only",
		"runtime /run/containerd recursively read-only",
		"cgroup /sys/fs/cgroup recursively read-only",
		"run /run/evictd created writable",
		"state /var/lib/evictd created writable",
	},
	"evictd-kube": {"run /run/evictd created read-only", "token  read-only"},
}

// TestDaemonSet: in the base, which is dry run, evictd has single directories of the node,
// of which it can write only its own, and can't kill. evictd-kube has the socket and the
// token.
func TestDaemonSet(t *testing.T) {
	content, err := os.ReadFile("../../deploy/kubernetes/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(baseUses, uses(t, string(content))); diff != "" {
		t.Errorf("what the containers have (-want +got):\n%s", diff)
	}
}

// TestOverlays: evictd accepts the configuration of each overlay. Where it evicts, it has two
// things more than in the base: it can kill, and it can write the cgroups. The policy comes
// before the rights.
func TestOverlays(t *testing.T) {
	enforces := map[string][]string{"evictd-kube": baseUses["evictd-kube"], "evictd": slices.Clone(baseUses["evictd"])}
	enforces["evictd"] = slices.DeleteFunc(enforces["evictd"], func(s string) bool { return strings.HasPrefix(s, "cgroup ") })
	enforces["evictd"] = append(enforces["evictd"], "KILL", "cgroup /sys/fs/cgroup writable")
	for overlay, want := range map[string]map[string]map[string][]string{
		"dry-run": {"evictd": baseUses},
		"enforce": {"evictd": enforces},
		"mixed":   {"evictd": enforces, "evictd-dry-run": baseUses},
	} {
		got, dryRun := map[string]map[string][]string{}, map[string]bool{}
		var kinds []string
		for _, doc := range renderOverlay(t, overlay) {
			var o struct {
				Kind     string
				Metadata struct{ Name string }
				Data     map[string]string
			}
			if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, o.Kind)
			switch o.Kind {
			case "DaemonSet":
				got[o.Metadata.Name] = uses(t, doc)
			case "ConfigMap":
				file := filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(file, []byte(o.Data["config.yaml"]), 0o600); err != nil {
					t.Fatal(err)
				}
				c, err := config.Load(config.Options{Path: file, PathGiven: true})
				if err != nil {
					t.Fatalf("%s: configuration %s: %v", overlay, o.Metadata.Name, err)
				}
				dryRun[o.Metadata.Name] = c.DryRun
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Errorf("%s: what the containers have (-want +got):\n%s", overlay, diff)
		}
		if i := slices.Index(kinds, "ValidatingAdmissionPolicyBinding"); i > slices.Index(kinds, "ClusterRole") || i < 0 && overlay != "dry-run" {
			t.Errorf("%s: order %v; want the policy before the rights that it restricts", overlay, kinds)
		}
		for name, uses := range want {
			if dry, ok := dryRun[name]; !ok || dry == slices.Contains(uses["evictd"], "KILL") {
				t.Errorf("%s: dry run of %s = %t, configured %t", overlay, name, dry, ok)
			}
		}
	}
}

// uses returns what each container of a DaemonSet has of the node: capabilities and mounts. It
// checks what is the same in all overlays.
func uses(t *testing.T, manifest string) map[string][]string {
	t.Helper()
	var d daemonSet
	if err := yaml.Unmarshal([]byte(manifest), &d); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantPod, d.Spec.Template.Spec.podSecurity); diff != "" {
		t.Errorf("pods of %s (-want +got):\n%s", d.Metadata.Name, diff)
	}
	if d.Spec.MinReadySeconds == 0 {
		t.Errorf("%s has no minReadySeconds", d.Metadata.Name)
	}
	paths, created := map[string]string{}, map[string]string{}
	for _, v := range d.Spec.Template.Spec.Volumes {
		paths[v.Name] = v.HostPath.Path
		if v.HostPath.Type == "DirectoryOrCreate" {
			created[v.Name] = " created"
		}
	}
	got := map[string][]string{}
	for _, c := range d.Spec.Template.Spec.Containers {
		s := &c.SecurityContext
		if s.Privileged || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("%s: privileged %t, drops %v; want it to drop all capabilities", c.Name, s.Privileged, s.Capabilities.Drop)
		}
		if diff := cmp.Diff(wantContainers[c.Name], s.containerSecurity); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.Name, diff)
		}
		if _, ok := c.Resources.Limits["memory"]; ok {
			t.Errorf("%s has a memory limit, by which the kernel's OOM killer would end it", c.Name)
		}
		if got, want := c.ReadinessProbe.HTTPGet, wantProbes[c.Name]; got != want {
			t.Errorf("%s: the readiness probe reads %+v; want evictd's default address, %+v", c.Name, got, want)
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
			list = append(list, m.Name+" "+paths[m.Name]+created[m.Name]+mode+strings.TrimRight(" "+m.MountPropagation, " "))
		}
		got[c.Name] = list
		if c.Name == "evictd-kube" && s.RunAsUser != kubeUID {
			t.Errorf("evictd-kube runs as user %d; want %d", s.RunAsUser, kubeUID)
		}
	}
	return got
}

// TestMixed: the overlay has a DaemonSet for the nodes with the label, and one for the nodes
// without it, whose selectors do not overlap.
func TestMixed(t *testing.T) {
	const label = "evictd.io/enforce"
	got := map[string]string{}
	for _, doc := range renderOverlay(t, "mixed") {
		var d daemonSet
		if !strings.Contains(doc, "kind: DaemonSet\n") {
			continue
		}
		if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
			t.Fatal(err)
		}
		spec := &d.Spec.Template.Spec
		nodes := fmt.Sprint(spec.NodeSelector[label])
		for _, term := range spec.Affinity.NodeAffinity.Required.NodeSelectorTerms {
			nodes += fmt.Sprint(term.MatchExpressions)
		}
		got[d.Metadata.Name+" "+fmt.Sprint(d.Spec.Selector.MatchLabels)] = nodes
	}
	want := map[string]string{
		"evictd map[app.kubernetes.io/name:evictd]":                 "true",
		"evictd-dry-run map[app.kubernetes.io/name:evictd-dry-run]": "[{" + label + " NotIn [true]}]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// TestLeavingMixed: kubectl apply -k deletes nothing, and the README names what the overlay mixed leaves behind when another
// overlay is applied in its place. That is a DaemonSet and its configuration, which would give nodes a second pod.
func TestLeavingMixed(t *testing.T) {
	readme, err := os.ReadFile("../../deploy/kubernetes/README.md")
	if err != nil {
		t.Fatal(err)
	}
	namespaced := func(overlay string) (names []string) {
		for _, doc := range renderOverlay(t, overlay) {
			var o named
			if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
				t.Fatal(err)
			}
			if o.Metadata.Namespace == "evictd" {
				names = append(names, strings.ToLower(o.Kind)+"/"+o.Metadata.Name)
			}
		}
		return names
	}
	mixed := namespaced("mixed")
	for _, overlay := range []string{"enforce", "dry-run"} {
		other := namespaced(overlay)
		var left []string
		for _, name := range mixed {
			if !slices.Contains(other, name) {
				left = append(left, name)
			}
		}
		slices.Sort(left)
		slices.Reverse(left) // the DaemonSet before its configuration
		if command := "    kubectl -n evictd delete " + strings.Join(left, " ") + "\n"; !strings.Contains(string(readme), command) {
			t.Errorf("overlay %s in place of mixed: the README does not have %q", overlay, command)
		}
		for _, name := range other {
			if !slices.Contains(mixed, name) {
				t.Errorf("overlay mixed in place of %s leaves %s behind", overlay, name)
			}
		}
	}
}
