package evict

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/signal"
)

// podUsingDisk returns a pod with disk usage in which each part has its own decimal
// digit, for bytes and for inodes, so that a sum shows its parts.
func podUsingDisk() Pod {
	return Pod{
		UID: "u", Namespace: "default", Name: "p", HasStats: true,
		Containers:          []Container{{Usage: ContainerUsage{Rootfs: 1, Logs: 10, ImagesBytes: 100, Inodes: 2, LogsInodes: 20}}},
		InitContainers:      []Container{{Usage: ContainerUsage{Rootfs: 1, Logs: 10, ImagesBytes: 100, Inodes: 2, LogsInodes: 20}}},
		EphemeralContainers: []Container{{Usage: ContainerUsage{Rootfs: 1, Logs: 10, ImagesBytes: 100, Inodes: 2, LogsInodes: 20}}},
		Volumes: []Volume{
			{Name: "e", Type: EmptyDir, Used: 1_000, Inodes: 2_000},
			{Name: "h", Type: HostPath, Used: 1_000, Inodes: 2_000},
			{Name: "c", Type: ConfigMap, Used: 1_000, Inodes: 2_000},
			{Name: "g", Type: GitRepo, Used: 1_000, Inodes: 2_000},
			{Name: "m", Type: EmptyDir, Medium: "Memory", Used: 10_000, Inodes: 20_000},
			{Name: "s", Type: "secret", Used: 10_000, Inodes: 20_000},
		},
		Usage: PodUsage{Memory: 7, Freeable: 6, PIDs: 5},
	}
}

func TestUsage(t *testing.T) {
	const (
		rootfs, logs, volumes, images      = 3, 30, 4_000, 300
		rootfsInodes, logsInodes, volInode = 6, 60, 8_000
		all, allInodes                     = rootfs + logs + volumes, rootfsInodes + logsInodes + volInode
	)
	for _, tt := range []struct {
		layout Layout
		want   map[signal.Signal]int64
	}{
		{SingleFs, map[signal.Signal]int64{
			signal.NodeFsAvailable: all, signal.ImageFsAvailable: all, signal.ContainerFsAvailable: all,
			signal.NodeFsInodesFree: allInodes, signal.ImageFsInodesFree: allInodes, signal.ContainerFsInodesFree: allInodes,
		}},
		{ImageFs, map[signal.Signal]int64{
			signal.NodeFsAvailable: logs + volumes, signal.ImageFsAvailable: rootfs, signal.ContainerFsAvailable: rootfs,
			signal.NodeFsInodesFree: logsInodes + volInode, signal.ImageFsInodesFree: rootfsInodes, signal.ContainerFsInodesFree: rootfsInodes,
		}},
		{SplitFs, map[signal.Signal]int64{
			signal.NodeFsAvailable: all, signal.ImageFsAvailable: images, signal.ContainerFsAvailable: all,
			signal.NodeFsInodesFree: allInodes, signal.ImageFsInodesFree: 0, signal.ContainerFsInodesFree: allInodes,
		}},
	} {
		tt.want[signal.MemoryAvailable], tt.want[signal.AllocatableMemoryAvailable], tt.want[signal.PIDAvailable] = 7, 7, 5
		for _, s := range signal.All() {
			pod := podUsingDisk()
			if got, want := pod.usage(s, tt.layout), tt.want[s]; got != want {
				t.Errorf("layout %d: usage(%s) = %d; want %d", tt.layout, s, got, want)
			}
			want := tt.want[s]
			if s.IsMemory() {
				want = 6 // resident anonymous memory
			}
			if got := pod.expected(s, tt.layout); got != want {
				t.Errorf("layout %d: expected(%s) = %d; want %d", tt.layout, s, got, want)
			}
			pod.HasStats = false
			if got := pod.usage(s, tt.layout) + pod.expected(s, tt.layout); got != 0 {
				t.Errorf("layout %d: usage and expected(%s) without statistics = %d; want 0", tt.layout, s, got)
			}
		}
	}
}

func TestUsageDoesNotOverflow(t *testing.T) {
	pod := aPod("p", withRootfs(math.MaxInt64))
	pod.Volumes = []Volume{{Type: EmptyDir, Used: math.MaxInt64}}
	if got := pod.usage(signal.NodeFsAvailable, SingleFs); got != math.MaxInt64 {
		t.Errorf("usage = %d; want %d", got, int64(math.MaxInt64))
	}
}

// The pods of each row are listed in the order in which they are evicted.
func TestRankOrder(t *testing.T) {
	inode := func(storage string, n int64, name string) Pod {
		return aPod(name, requesting("", storage), withInodes(n))
	}
	disk := func(storage string, n int64, name string, more ...option) Pod {
		return aPod(name, append([]option{requesting("", storage), withRootfs(n)}, more...)...)
	}
	memory := func(request string, n int64, name string, more ...option) Pod {
		return aPod(name, append([]option{requesting(request, ""), using(n)}, more...)...)
	}
	for _, tt := range []struct {
		name    string
		signals []signal.Signal
		layout  Layout
		pods    []Pod
	}{
		{"over request before lower priority", []signal.Signal{signal.MemoryAvailable, signal.AllocatableMemoryAvailable}, SingleFs, []Pod{
			memory("100", 101, "a", withPriority(1000)), memory("100", 100, "b", withPriority(-10)),
		}},
		{"lower priority before larger excess", []signal.Signal{signal.MemoryAvailable}, SingleFs, []Pod{
			memory("", 1, "a", withPriority(-1)), memory("", 1000, "b"), memory("", 1, "c", withPriority(0)), memory("", 1000, "d", withPriority(1)),
		}},
		{"larger excess, not larger usage", []signal.Signal{signal.MemoryAvailable}, SingleFs, []Pod{
			memory("100", 250, "a"), memory("1000", 1100, "b"), memory("1000", 900, "c"), memory("2000", 1800, "d"),
		}},
		{"no statistics: within request, last among equals", []signal.Signal{signal.MemoryAvailable}, SingleFs, []Pod{
			memory("100", 200, "a", withPriority(5)), memory("100", 0, "z", withPriority(-1), withoutStats), memory("900", 10, "b"), memory("", 500, "c", withoutStats), memory("", 0, "d", withPriority(1)),
		}},
		{"by UID if all else is equal", []signal.Signal{signal.MemoryAvailable, signal.NodeFsAvailable, signal.NodeFsInodesFree, signal.PIDAvailable}, SingleFs, []Pod{
			aPod("b", uid("1")), aPod("a", uid("2")), aPod("c", uid("3")),
		}},
		{"PIDs: priority, then number, requests ignored", []signal.Signal{signal.PIDAvailable}, SingleFs, []Pod{
			aPod("a", withPIDs(1), withPriority(-5)), aPod("b", withPIDs(90)), aPod("c", withPIDs(80), using(gi)), aPod("d", withPIDs(0)), aPod("e", withPIDs(500), withoutStats), aPod("f", withPIDs(900), withPriority(1)),
		}},
		{"disk", []signal.Signal{signal.NodeFsAvailable, signal.ImageFsAvailable, signal.ContainerFsAvailable}, SingleFs, []Pod{
			disk("10", 20, "a", withPriority(9)), disk("100", 90, "b"), disk("100", 50, "c"), disk("10", 5, "d", withPriority(1)),
		}},
		{"inodes are not compared with a request in bytes", []signal.Signal{signal.NodeFsInodesFree, signal.ImageFsInodesFree, signal.ContainerFsInodesFree}, SingleFs, []Pod{
			inode("1Gi", 30, "a"), inode("", 20, "b"), inode("1Gi", 10, "c"), inode("", 0, "d"),
		}},
		{"dedicated imagefs: nodefs ignores the writable layer", []signal.Signal{signal.NodeFsAvailable}, ImageFs, []Pod{
			aPod("a", func(p *Pod) { p.Containers[0].Usage.Logs = 2 }), disk("", 1000, "b"),
		}},
		{"dedicated imagefs: imagefs ignores everything else", []signal.Signal{signal.ImageFsAvailable, signal.ContainerFsAvailable}, ImageFs, []Pod{
			disk("", 1, "b"), aPod("a", func(p *Pod) { p.Containers[0].Usage.Logs = 1000 }),
		}},
		{"split: imagefs counts images only", []signal.Signal{signal.ImageFsAvailable}, SplitFs, []Pod{
			aPod("b", func(p *Pod) { p.Containers[0].Usage.ImagesBytes = 1 }), disk("", 1000, "a"),
		}},
		{"pod-level request instead of the containers'", []signal.Signal{signal.MemoryAvailable}, SingleFs, []Pod{
			memory("1Gi", 300, "b", func(p *Pod) { p.Resources.Requests.Memory = qty("100") }),
			memory("300", 300, "a"),
		}},
		{"pod-level CPU does not replace the containers' memory requests", []signal.Signal{signal.MemoryAvailable}, SingleFs, []Pod{
			memory("100", 101, "b"),
			memory("300", 300, "a", func(p *Pod) { p.Resources.Requests.CPU = qty("1") }),
		}},
	} {
		for _, s := range tt.signals {
			var want []string
			for _, p := range tt.pods {
				want = append(want, p.UID)
			}
			policy := Policy{Layout: tt.layout}
			for range len(tt.pods) {
				tt.pods = append(tt.pods[1:len(tt.pods):len(tt.pods)], tt.pods[0])
				ranked, exempt := policy.Rank(tt.pods, s, &State{}, start)
				if diff := cmp.Diff(want, ranking(ranked)); diff != "" || len(exempt) != 0 {
					t.Errorf("%s: Rank for %s (-want +got):\n%s", tt.name, s, diff)
				}
				for _, r := range ranked {
					if p := &tt.pods[r.Index()]; p.UID != r.UID || p.Key() != r.Pod {
						t.Errorf("%s: Index() of %s is the index of %s", tt.name, r.UID, p.UID)
					}
				}
			}
		}
	}
}

func TestExempt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pod    Pod
		policy Policy
		reason string
		detail string
	}{
		{"ordinary", aPod("p"), Policy{}, "", ""},
		{"mirror before static", aPod("p", func(p *Pod) { p.Mirror, p.Static = true, true }), Policy{}, ReasonMirror, ""},
		{"static before critical", aPod("p", func(p *Pod) { p.Static = true }, withPriority(2_000_001_000)), Policy{}, ReasonStatic, ""},
		{"critical before protected", aPod("p", withPriority(2_000_000_000), func(p *Pod) { p.ProtectedReason = "by name" }), Policy{}, ReasonCritical, ""},
		{"just below critical", aPod("p", withPriority(1_999_999_999)), Policy{}, "", ""},
		{"critical class name without the priority", aPod("p", func(p *Pod) { p.PriorityClassName = "system-node-critical" }), Policy{}, "", ""},
		{"exempt by its source", aPod("p", func(p *Pod) { p.ProtectedReason = "kube-system of a kubelet" }), Policy{}, ReasonProtected, "kube-system of a kubelet"},
		{"protected by the configuration", aPod("p"), Policy{Protected: func(p *Pod) string { return "named " + p.Key() }}, ReasonProtected, "named default/p"},
		{"a kubelet's pod of unknown priority", aPod("p", ofKubelet), Policy{ProtectUnknownPriority: true}, ReasonProtected, "a kubelet's pod of unknown priority"},
		{"a kubelet's pod of known priority", aPod("p", ofKubelet, withPriority(0)), Policy{ProtectUnknownPriority: true}, "", ""},
		{"a kubelet's pod of unknown priority, allowed", aPod("p", ofKubelet), Policy{}, "", ""},
		{"static before unreportable", aPod("p", ofKubelet, unreportable, func(p *Pod) { p.Static = true }), Policy{ProtectUnreportable: true}, ReasonStatic, ""},
		{"mirror before unreportable", aPod("p", ofKubelet, unreportable, func(p *Pod) { p.Mirror = true }), Policy{ProtectUnreportable: true}, ReasonMirror, ""},
		{"protected before unreportable", aPod("p", ofKubelet, unreportable, func(p *Pod) { p.ProtectedReason = "by name" }), Policy{ProtectUnreportable: true}, ReasonProtected, "by name"},
		{"unreportable before unknown priority", aPod("p", ofKubelet, unreportable), Policy{ProtectUnreportable: true, ProtectUnknownPriority: true}, ReasonProtected, "no facts"},
		{"unreportable, of known priority", aPod("p", ofKubelet, unreportable, withPriority(0)), Policy{ProtectUnreportable: true}, ReasonProtected, "no facts"},
		{"unreportable, allowed", aPod("p", ofKubelet, unreportable, withPriority(0)), Policy{}, "", ""},
		{"reportable and critical", aPod("p", ofKubelet, withPriority(2_000_000_000)), Policy{ProtectUnreportable: true}, ReasonCritical, ""},
		{"reportable", aPod("p", ofKubelet, withPriority(0)), Policy{ProtectUnreportable: true}, "", ""},
		{"unknown priority, not a kubelet's pod", aPod("p"), Policy{ProtectUnknownPriority: true}, "", ""},
	} {
		ranked, exempt := tt.policy.Rank([]Pod{tt.pod}, signal.MemoryAvailable, &State{}, start)
		if tt.reason == "" {
			if len(ranked) != 1 || len(exempt) != 0 {
				t.Errorf("%s: Rank = %v, %v; want the pod ranked", tt.name, ranked, exempt)
			}
			continue
		}
		want := []Exempt{{Pod: "default/p", UID: "p", Reason: tt.reason, Detail: tt.detail}}
		if diff := cmp.Diff(want, exempt); diff != "" || len(ranked) != 0 {
			t.Errorf("%s: exempt (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestExemptIsSortedAndTerminatingComesFirst(t *testing.T) {
	critical := func(p *Pod) { p.Mirror = true }
	pods := []Pod{aPod("c", critical), aPod("a", critical), aPod("b", critical)}
	state := State{Victims: []Victim{{UID: "b"}}, DryRunVictims: []DryRunVictim{{UID: "c"}}, Revivals: []Revival{{UID: "a", Until: start.Add(time.Second)}}}
	_, exempt := (&Policy{}).Rank(pods, signal.MemoryAvailable, &state, start)
	want := []Exempt{
		{Pod: "default/a", UID: "a", Reason: ReasonProtected, Detail: "came back after its eviction and is left alone for 1s"},
		{Pod: "default/b", UID: "b", Reason: ReasonTerminating},
		{Pod: "default/c", UID: "c", Reason: ReasonTerminating, Detail: "would have been evicted"},
	}
	if diff := cmp.Diff(want, exempt); diff != "" {
		t.Errorf("exempt (-want +got):\n%s", diff)
	}
}

func TestVictimCount(t *testing.T) {
	expecting := func(amounts ...int64) (ranked []Ranked) {
		for _, n := range amounts {
			ranked = append(ranked, Ranked{Expected: n})
		}
		return ranked
	}
	for _, tt := range []struct {
		ranked  []Ranked
		deficit int64
		limit   int
		n       int
		enough  bool
	}{
		{nil, 1, 3, 0, false},
		{expecting(10), 10, 3, 1, true},
		{expecting(10), 11, 3, 1, false},
		{expecting(5, 5, 5), 10, 3, 2, true},
		{expecting(5, 5, 5), 11, 3, 3, true},
		{expecting(5, 5, 5), 11, 2, 2, true},
		{expecting(5, 5, 5), 16, 3, 1, false},
		{expecting(1, 1, 1, 1, 100), 50, 3, 3, true}, // covered by the whole ranking
		{expecting(0, 0, 3), 3, 3, 3, true},
		{expecting(-5, 3), 3, 3, 2, true},
		{expecting(5), 1, 0, 1, true},
		{expecting(math.MaxInt64, math.MaxInt64), math.MaxInt64, 3, 1, true},
		{expecting(1, math.MaxInt64), math.MaxInt64, 3, 2, true},
	} {
		n, enough := VictimCount(tt.ranked, tt.deficit, tt.limit)
		if n != tt.n || enough != tt.enough {
			t.Errorf("victims of %v for deficit %d, limit %d = %d, %t; want %d, %t", tt.ranked, tt.deficit, tt.limit, n, enough, tt.n, tt.enough)
		}
	}
	ranked := expecting(1, 2, 3)
	if n := testing.AllocsPerRun(100, func() { VictimCount(ranked, 6, 3) }); n != 0 {
		t.Errorf("counting victims allocates %v times; want 0", n)
	}
}
