package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
)

const (
	wantThreshold = "want a quantity above 0 such as 100Mi, or a percentage up to 100% such as 10%"
	wantReclaim   = "want a quantity such as 500Mi, or a percentage above 0% such as 5%"
	wantPercent   = "want a percentage from 0 to 100"
)

func TestParseProblems(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"thresholds", `
evictionHard:
  memory.available: ""
  allocatableMemory.available: -1Mi
  nodefs.available: 101%
  nodefs.inodesFree: -1%
  imagefs.available: NaN%
  imagefs.inodesFree: 5%%
  containerfs.available: x
  containerfs.inodesFree: Inf%
  pid.available: "%"`, `
f:5: evictionHard.memory.available: "" is not a quantity; ` + wantThreshold + `
f:6: evictionHard.allocatableMemory.available: "-1Mi" is not above 0; ` + wantThreshold + `
f:7: evictionHard.nodefs.available: "101%" is more than 100%; ` + wantThreshold + `
f:8: evictionHard.nodefs.inodesFree: "-1%" is below 0%; ` + wantThreshold + `
f:9: evictionHard.imagefs.available: "NaN%" is not a percentage; ` + wantThreshold + `
f:10: evictionHard.imagefs.inodesFree: "5%%" is not a percentage; ` + wantThreshold + `
f:11: evictionHard.containerfs.available: "x" is not a quantity; ` + wantThreshold + `
f:12: evictionHard.containerfs.inodesFree: "Inf%" is not a percentage; ` + wantThreshold + `
f:13: evictionHard.pid.available: "%" is not a percentage; ` + wantThreshold},
		{"unknown signals", `
evictionHard: {Memory.available: 1Gi}
evictionSoft: {cpu.available: 1Gi}
evictionSoftGracePeriod: {cpu.available: 1m}
evictionMinimumReclaim: {nodefs.inodes: 5}`, `
f:4: evictionHard.Memory.available: is not an eviction signal; did you mean memory.available?
f:5: evictionSoft.cpu.available: is not an eviction signal; did you mean pid.available?
f:6: evictionSoftGracePeriod.cpu.available: is not an eviction signal; did you mean pid.available?
f:7: evictionMinimumReclaim.nodefs.inodes: is not an eviction signal; did you mean nodefs.inodesFree?`},
		{"soft", `
evictionSoft:
  memory.available: 1Gi
  nodefs.available: 10%
  imagefs.available: 10%
  pid.available: 10%
evictionSoftGracePeriod:
  nodefs.available: 0s
  imagefs.available: -1m
  pid.available: soon
  nodefs.inodesFree: -5s`, `
f:5: evictionSoft.memory.available: has no grace period; give it one above 0 in evictionSoftGracePeriod.memory.available, or make it a threshold of evictionHard
f:10: evictionSoftGracePeriod.nodefs.available: is 0, which would make the threshold a hard one; want a duration above 0 such as 1m30s, or use evictionHard
f:11: evictionSoftGracePeriod.imagefs.available: -1m0s is negative; want a duration above 0 such as 1m30s
f:12: evictionSoftGracePeriod.pid.available: is the string "soon"; want a duration such as 90s or 1m30s
f:13: evictionSoftGracePeriod.nodefs.inodesFree: -5s is negative; want a duration above 0 such as 1m30s`},
		{"soft, grace unreadable", "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: 5", "f:4: evictionSoftGracePeriod: is the number 5; want a map"},
		{"reclaim", `
evictionMinimumReclaim:
  memory.available: 0%
  nodefs.available: -5
  imagefs.available: ""
  pid.available: NaN%
  nodefs.inodesFree: "` + strings.Repeat("5", 70) + `"`, `
f:5: evictionMinimumReclaim.memory.available: "0%" is not above 0%; ` + wantReclaim + `
f:6: evictionMinimumReclaim.nodefs.available: "-5" is below 0; ` + wantReclaim + `
f:7: evictionMinimumReclaim.imagefs.available: "" is not a quantity; ` + wantReclaim + `
f:8: evictionMinimumReclaim.pid.available: "NaN%" is not a percentage; ` + wantReclaim + `
f:9: evictionMinimumReclaim.nodefs.inodesFree: "` + strings.Repeat("5", 64) + `…" is too long; ` + wantReclaim},
		{"a quantity that would take minutes to compute", "evictionHard: {memory.available: 1e1000000000}\nkubeReserved: {memory: 1e1000000000}", `
f:3: evictionHard.memory.available: "1e1000000000" is not a quantity of at most 64 characters and two digits of exponent; ` + wantThreshold + `
f:4: kubeReserved.memory: "1e1000000000" is not a quantity of at most 64 characters and two digits of exponent; want a quantity of at least 0 such as 500Mi`},
		{"conditions", "evictionPressureTransitionPeriod: -1s\nevictionMaxPodGracePeriod: 1.5", `
f:3: evictionPressureTransitionPeriod: -1s is negative; want a duration, or 0s for the default of 5m0s
f:4: evictionMaxPodGracePeriod: is the number 1.5; want a whole number`},
		{"allocatable", "enforceNodeAllocatable: [none, pods, pod, pods, 7]", `
f:3: enforceNodeAllocatable[4]: is the number 7; want a string: put it in quotes
f:3: enforceNodeAllocatable[0]: none excludes the others; want it alone, or not at all
f:3: enforceNodeAllocatable[2]: is "pod"; want one of pods, system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible, none
f:3: enforceNodeAllocatable[3]: pods is listed twice`},
		{"reserved", "systemReserved: {memory: -1, nvidia.com/gpu: 1}\nkubeReserved: {cpu: lots}", `
f:3: systemReserved.memory: "-1" is below 0; want a quantity of at least 0 such as 500Mi
f:3: systemReserved.nvidia.com/gpu: is not a resource that can be reserved; want one of cpu, memory, ephemeral-storage, pid
f:4: kubeReserved.cpu: "lots" is not a quantity; want a quantity of at least 0 such as 500Mi`},
		{"image GC", "imageGCHighThresholdPercent: 101\nimageGCLowThresholdPercent: -1\nimageMinimumGCAge: -1m\nimageMaximumGCAge: -2m", `
f:3: imageGCHighThresholdPercent: is 101; ` + wantPercent + `
f:4: imageGCLowThresholdPercent: is -1; ` + wantPercent + `
f:5: imageMinimumGCAge: -1m0s is negative; want a duration, or 0s for the default of 2m0s
f:6: imageMaximumGCAge: -2m0s is negative; want a duration, or 0s for none`},
		{"image GC, low above high", "imageGCLowThresholdPercent: 85\nimageMaximumGCAge: 2m", `
f:3: imageGCLowThresholdPercent: imageGCLowThresholdPercent is 85 and imageGCHighThresholdPercent is 85; want the first below the second
f:4: imageMaximumGCAge: 2m0s is not above imageMinimumGCAge, which is 2m0s; want a longer one, or 0s for none`},
		{"image GC, high below the default low", "imageGCHighThresholdPercent: 70", `
f:3: imageGCHighThresholdPercent: imageGCLowThresholdPercent is 80 and imageGCHighThresholdPercent is 70; want the first below the second`},
		{"shutdown", "shutdownGracePeriod: 500ms\nshutdownGracePeriodCriticalPods: 10s", `
f:3: shutdownGracePeriod: is 500ms; want 0s, or at least 1s
f:4: shutdownGracePeriodCriticalPods: 10s is more than shutdownGracePeriod, of which it is a part and which is 500ms`},
		{"shutdown beside a kubelet", "shutdown: {besideKubelet: mine, grace: 1s}", `
f:3: shutdown.besideKubelet: is "mine"; want auto, kubelet or own
f:3: shutdown.grace: is not a field here`},
		{"evictd-kube", "kube: {uid: -1, gid: 4294967295}", `
f:3: kube.uid: is -1; want an ID from 1 to 4294967294, or 0 for none
f:3: kube.gid: is 4294967295; want an ID from 1 to 4294967294, or 0 for none`},
		{"fences, too short", "kube: {fenceTimeout: 59s}", `
f:3: kube.fenceTimeout: is 59s; want a duration from 1m0s to 24h0m0s`},
		{"fences, too long", "kube: {fenceTimeout: 24h1s}", `
f:3: kube.fenceTimeout: is 24h0m1s; want a duration from 1m0s to 24h0m0s`},
		{"fences, not a duration", "kube: {fenceTimeout: 60}", `
f:3: kube.fenceTimeout: is the number 60; want a duration such as 90s or 1m30s`},
		{"self-fencing", "selfFencing: {device: watchdog, timeout: 9s, feedGap: 10m1s}", `
f:3: selfFencing.device: "watchdog" is not an absolute path; want the path of a watchdog such as /dev/watchdog
f:3: selfFencing.timeout: is 9s; want a duration from 10s to 10m0s
f:3: selfFencing.feedGap: is 10m1s; want a duration from 10s to 10m0s`},
		{"self-fencing without evictd-kube", "selfFencing: {device: /dev/watchdog, timeout: 10.5s}", `
f:3: selfFencing.device: needs kube.uid: evictd-kube writes the advert of the watchdog to the API server
f:3: selfFencing.timeout: is 10.5s; want whole seconds`},
		{"self-fencing by peers with a short gap", "selfFencing: {peers: true, timeout: 2m, feedGap: 29s}", `
f:3: selfFencing.peers: needs a feedGap of at least 30s, not 29s`},
		{"self-fencing by peers with short times", "selfFencing: {peers: true, timeout: 89s}", `
f:3: selfFencing.peers: needs a feedGap and twice the timeout of 4m0s together, not 3m58s: the watchdog would fire before the other nodes say that they cannot reach the API server`},
		{"admission", "admission: refuse", `
f:3: admission: is "refuse"; want off or evict`},
		{"evictd-kube without a user", "kube: {gid: 7}", `
f:3: kube.gid: is 7 without a kube.uid; want both, or none`},
		{"shutdown, negative", "shutdownGracePeriod: -1s\nshutdownGracePeriodCriticalPods: -2s", `
f:3: shutdownGracePeriod: is -1s; want 0s, or at least 1s
f:4: shutdownGracePeriodCriticalPods: is -2s; want 0s, or at least 1s`},
		{"shutdown by priority", `
shutdownGracePeriod: 30s
shutdownGracePeriodByPodPriority:
- priority: 0
  shutdownGracePeriodSeconds: -1
- priority: 0
  shutdownGracePeriodSeconds: 10s
- priority: 2147483648
- shutdownGracePeriodSeconds: 5`, `
f:5: shutdownGracePeriodByPodPriority: excludes shutdownGracePeriod; give one of them
f:7: shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds: is -1; want a number of seconds of at least 0
f:9: shutdownGracePeriodByPodPriority[1].shutdownGracePeriodSeconds: is the string "10s"; want a whole number
f:10: shutdownGracePeriodByPodPriority[2].priority: is the number 2147483648; want one from -2147483648 to 2147483647
f:11: shutdownGracePeriodByPodPriority[3].priority: 0 is listed twice, first in shutdownGracePeriodByPodPriority[0]`},
		{"endpoint", "runtimeEndpoint: tcp://1.2.3.4:5", `
f:3: runtimeEndpoint: "tcp://1.2.3.4:5" is not a unix socket; want unix:///path/to/socket, /path/to/socket or none`},
		{"relative endpoint", "runtimeEndpoint: containerd.sock", `
f:3: runtimeEndpoint: "containerd.sock" is not an absolute path; want unix:///path/to/socket, /path/to/socket or none`},
		{"endpoint without path", "runtimeEndpoint: unix://", `
f:3: runtimeEndpoint: "unix://" is not an absolute path; want unix:///path/to/socket, /path/to/socket or none`},
		{"endpoint at the root", "runtimeEndpoint: unix:////", `
f:3: runtimeEndpoint: "unix:////" is a directory; want unix:///path/to/socket, /path/to/socket or none`},
		{"long endpoint", "runtimeEndpoint: /" + strings.Repeat("x", 107), `
f:3: runtimeEndpoint: "/` + strings.Repeat("x", 63) + `…" is longer than a socket path may be; want unix:///path/to/socket, /path/to/socket or none`},
		{"NUL in paths", "runtimeEndpoint: \"/a\\0\"\nnodefsPath: \"/a\\0\"", `
f:3: runtimeEndpoint: "/a\x00" contains a NUL byte; want unix:///path/to/socket, /path/to/socket or none
f:4: nodefsPath: "/a\x00" is not an absolute path in its shortest form; want one such as /`},
		{"paths", "cgroupRoot: /a/../b\nnodefsPath: var/lib", `
f:3: cgroupRoot: "/a/../b" is not an absolute path in its shortest form; want one such as /
f:4: nodefsPath: "var/lib" is not an absolute path in its shortest form; want one such as /`},
		{"choices", "kubelet: yes\nunknownPriority: kill\nmemoryAccounting: psi\ndryRun: 1", `
f:3: kubelet: is "yes"; want auto, absent or override
f:4: unknownPriority: is "kill"; want spare or evict
f:5: memoryAccounting: is "psi"; want kubelet or available
f:6: dryRun: is the number 1; want true or false`},
		{"limits", "maxVictims: -1\nsettleTimeout: -1s", `
f:3: maxVictims: is -1; want at least 1
f:4: settleTimeout: is -1s; want a duration above 0 such as 1s`},
		{"notification", "notification: {bpf: yes, memcg: false, poll: off, bpfFloor: 99us, bpfCeiling: 2s}", `
f:3: notification.bpf: is "yes"; want auto, off or require
f:3: notification.memcg: is false; want a string: put it in quotes
f:3: notification.poll: is not a field here
f:3: notification.bpfFloor: is 99µs; want a duration from 100µs to 1s
f:3: notification.bpfCeiling: is 2s; want a duration from 100µs to 1s`},
		{"floor above the ceiling", "notification: {bpfFloor: 10ms, bpfCeiling: 1ms}", `
f:3: notification.bpfCeiling: notification.bpfFloor is 10ms and notification.bpfCeiling is 1ms; want the first no longer than the second`},
		{"floor above the default ceiling", "notification:\n  bpfFloor: 60ms", `
f:4: notification.bpfFloor: notification.bpfFloor is 60ms and notification.bpfCeiling is 50ms; want the first no longer than the second`},
		{"pressure", "notification: {psi: off}\npressure:\n  memory:\n    full: 150ms\n    sustained: -1s\n    action: evict", `
f:6: pressure.memory.full: is "150ms"; want a stall within a window such as 150ms/1s
f:8: pressure.memory.action: is evict, but notification.psi is off, so that evictd would not be notified of pressure`},
		{"a removed field", "notification: {bpf: auto}\npressure: {memory: {brake: off}}\nbrake: off", `
f:4: pressure.memory.brake: was removed before the first release: if evictd was killed, memory.high of all pods stayed lowered, and its benefit was never measured; leave it out
f:5: brake: is not a field here`},
		{"a removed field without a value", "pressure:\n  memory:\n    brake:", `
f:5: pressure.memory.brake: was removed before the first release: if evictd was killed, memory.high of all pods stayed lowered, and its benefit was never measured; leave it out`},
		{"pressure, shorter than its window", "pressure: {memory: {full: 1s/2s, sustained: 1s, action: kill}}", `
f:3: pressure.memory.action: is "kill"; want report or evict
f:3: pressure.memory.sustained: is 1s; want at least the window of pressure.memory.full, which is 2s`},
		{"pressure, window", "pressure: {memory: {full: 1ms/499ms}}", `
f:3: pressure.memory.full: has a window of 499ms; want one from 500ms to 10s`},
		{"pressure, stall", "pressure: {memory: {full: 2s/1s}}", `
f:3: pressure.memory.full: has a stall of 2s in a window of 1s; want one from 1µs to the whole window`},
		{"pressure, no stall", "pressure: {memory: {full: 0s/1s}}", `
f:3: pressure.memory.full: has a stall of 0s in a window of 1s; want one from 1µs to the whole window`},
		{"lists of pods", `
trustAnnotations: ["", a/b, 5]
protect:
  namespaces: [""]
  labelSelectors: ["a in (", "", ","]
  names: [web, /web, default/, a/b/c, ""]
  pods: []`, `
f:4: trustAnnotations[2]: is the number 5; want a string: put it in quotes
f:4: trustAnnotations[0]: "" is not a namespace; want one such as kube-system
f:4: trustAnnotations[1]: "a/b" is not a namespace; want one such as kube-system
f:6: protect.namespaces[0]: "" is not a namespace; want one such as kube-system
f:7: protect.labelSelectors[0]: "a in (" is not a label selector; want one such as app=db,tier!=cache
f:7: protect.labelSelectors[1]: is empty, which selects every pod; want a selector such as app=db
f:7: protect.labelSelectors[2]: "," is not a label selector; want one such as app=db,tier!=cache
f:8: protect.names[0]: "web" is not a pod; want namespace/name
f:8: protect.names[1]: "/web" is not a pod; want namespace/name
f:8: protect.names[2]: "default/" is not a pod; want namespace/name
f:8: protect.names[3]: "a/b/c" is not a pod; want namespace/name
f:8: protect.names[4]: "" is not a pod; want namespace/name
f:9: protect.pods: is not a field here`},
		{"accepted fields are still checked", "kernelMemcgNotification: 1\npodPidsLimit: many\nsingleProcessOOMKill: x\nlocalStorageCapacityIsolation: 0\nvolumeStatsAggPeriod: 1", `
f:3: kernelMemcgNotification: is the number 1; want true or false
f:4: podPidsLimit: is the string "many"; want a whole number
f:5: singleProcessOOMKill: is the string "x"; want true or false
f:6: localStorageCapacityIsolation: is the number 0; want true or false
f:7: volumeStatsAggPeriod: is the number 1; want a duration such as 90s or 1m30s`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parse(Options{Path: "f"}, nil, []byte(head+tt.text))
			if err == nil {
				t.Fatalf("no error: %+v", c)
			}
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), err.Error()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHeader(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"maxVictims: 0", `f:1: apiVersion: is missing; want evictd.io/v1alpha1
f:1: kind: is missing; want AgentConfiguration
f:1: maxVictims: is 0; want at least 1`},
		{"apiVersion: evictd.io/v1\nkind: Agentconfiguration", `f:1: apiVersion: is "evictd.io/v1"; want evictd.io/v1alpha1
f:2: kind: is "Agentconfiguration"; want AgentConfiguration`},
		{"apiVersion: 1\nkind: null", `f:1: apiVersion: is the number 1; want a string: put it in quotes
f:1: kind: is missing; want AgentConfiguration`},
		{"kind: Scenario\nnode: {}", "f:1: kind: is Scenario; want AgentConfiguration (evictctl simulate replays scenarios)"},
		{"apiVersion: x\nkind: KubeletConfiguration\nport: 1", "f:2: kind: is KubeletConfiguration; want AgentConfiguration (evictd reads a kubelet's file with --kubelet-config)"},
		{"- a", "f:1: is a list; want a map"},
	} {
		_, err := parse(Options{Path: "f"}, nil, []byte(tt.text))
		if err == nil || err.Error() != tt.want {
			t.Errorf("parse(%q) = %v; want %s", tt.text, err, tt.want)
		}
	}
}

func TestNotices(t *testing.T) {
	c := mustParse(t, `evictionHard: {containerfs.available: 5%}
evictionSoft: {containerfs.inodesFree: 5%}
evictionSoftGracePeriod: {containerfs.inodesFree: 5m, pid.available: 5m}
evictionMinimumReclaim: {containerfs.available: 5%, nodefs.available: 1Gi}
kernelMemcgNotification: true
podPidsLimit: -1
singleProcessOOMKill: false
localStorageCapacityIsolation: false
volumeStatsAggPeriod: 0s
kubeReserved: {memory: 1Gi}
imageGCHighThresholdPercent: 90
shutdownGracePeriod: 10s
`)
	want := `f.yaml:3: evictionHard.containerfs.available: is ignored, as by the kubelet: containerfs.available uses the thresholds of the filesystem with the writable layers
f.yaml:4: evictionSoft.containerfs.inodesFree: is ignored, as by the kubelet: containerfs.inodesFree uses the thresholds of the filesystem with the writable layers
f.yaml:5: evictionSoftGracePeriod.pid.available: has no effect: evictionSoft has no threshold on pid.available
f.yaml:6: evictionMinimumReclaim.containerfs.available: is ignored, as by the kubelet: containerfs.available uses that of the filesystem with the writable layers
f.yaml:6: evictionMinimumReclaim.nodefs.available: has no effect: there is no threshold on nodefs.available
f.yaml:7: kernelMemcgNotification: has no effect here: notification selects how evictd is notified of pressure
f.yaml:8: podPidsLimit: has no effect here: evictd sets no limits on pods; a threshold on pid.available guards the node
f.yaml:9: singleProcessOOMKill: has no effect here: evictd leaves the kernel's OOM killer as it is, and itself kills all processes of a container
f.yaml:10: localStorageCapacityIsolation: has no effect here: limits on local storage that evictd knows are always enforced
f.yaml:11: volumeStatsAggPeriod: has no effect here: evictd chooses itself when it measures volumes, and can't be made to stop
f.yaml:12: kubeReserved: is checked, but has no effect here: evictd uses the limit that the kubepods cgroup has`
	if diff := cmp.Diff(want, notices(c)); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

// admission: evict has an effect only next to a kubelet whose evictions are reported.
func TestAdmission(t *testing.T) {
	for _, tt := range []struct {
		text, notices string
		refuses       bool
	}{
		{"kube: {uid: 7}\n", "", false},
		{"admission: off\nkube: {uid: 7}\n", "", false},
		{"admission: evict\nkube: {uid: 7}\n", "", true},
		{"admission: evict\n", "f.yaml:3: admission: has no effect without kube.uid: evictd can't report a refused pod to the API server", true},
		{"admission: evict\nkube: {uid: 7}\nkubelet: override\n", "f.yaml:3: admission: has no effect with kubelet: override", false},
		{"admission: evict\nkube: {uid: 7}\nkubelet: absent\n", "f.yaml:3: admission: has no effect with kubelet: absent", false},
	} {
		c := mustParse(t, tt.text)
		if got := notices(c); got != tt.notices {
			t.Errorf("%q: notices = %q; want %q", tt.text, got, tt.notices)
		}
		if got := c.Policy(evict.SingleFs).RefuseArrivals; got != tt.refuses {
			t.Errorf("%q: RefuseArrivals = %t; want %t", tt.text, got, tt.refuses)
		}
	}
}
