package evict

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestOverLimit(t *testing.T) {
	limited := func(container string, pod ...func(*Pod)) Pod {
		p := aPod("p")
		if container != "" {
			p.Containers[0].Resources.Limits.EphemeralStorage = qty(container)
		}
		for _, f := range pod {
			f(&p)
		}
		return p
	}
	rootfs := func(n int64) func(*Pod) { return func(p *Pod) { p.Containers[0].Usage.Rootfs = n } }
	logs := func(n int64) func(*Pod) { return func(p *Pod) { p.Containers[0].Usage.Logs = n } }
	volume := func(v Volume) func(*Pod) { return func(p *Pod) { p.Volumes = append(p.Volumes, v) } }
	another := func(c Container) func(*Pod) { return func(p *Pod) { p.Containers = append(p.Containers, c) } }
	initial := func(c Container) func(*Pod) {
		return func(p *Pod) { p.InitContainers = append(p.InitContainers, c) }
	}
	storage := func(limit string, rootfs int64) Container {
		return Container{Name: "d", Resources: Resources{Limits: Amounts{EphemeralStorage: qty(limit)}}, Usage: ContainerUsage{Rootfs: rootfs}}
	}
	sidecar := storage("100", 101)
	sidecar.Sidecar = true
	const emptyDir = `Usage of EmptyDir volume "v" exceeds the limit "100". `
	for _, tt := range []struct {
		name    string
		layout  Layout
		pod     Pod
		cause   string
		message string
	}{
		{"no limits", SingleFs, limited("", rootfs(gi), volume(Volume{Name: "v", Type: EmptyDir, Used: gi})), "", ""},
		{"emptyDir at its limit", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("100"), Used: 100})), "", ""},
		{"emptyDir over its limit", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("100"), Used: 101})), CauseEmptyDirLimit, emptyDir},
		{"emptyDir in memory", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, Medium: "Memory", SizeLimit: qty("100"), Used: 101})), CauseEmptyDirLimit, emptyDir},
		{"emptyDir with a limit of 0", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("0"), Used: 101})), "", ""},
		{"canonical limit", SingleFs, limited("", volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("0.5Gi"), Used: gi})), CauseEmptyDirLimit, `Usage of EmptyDir volume "v" exceeds the limit "512Mi". `},
		{"emptyDir before the pod", SingleFs, limited("1", rootfs(2), volume(Volume{Name: "v", Type: EmptyDir, SizeLimit: qty("100"), Used: 101})), CauseEmptyDirLimit, emptyDir},
		{"pod at its limit", SingleFs, limited("100", rootfs(60), logs(40)), "", ""},
		{"pod over its limit", SingleFs, limited("100", rootfs(60), logs(41)), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"volumes count for the pod", SingleFs, limited("100", volume(Volume{Name: "v", Type: EmptyDir, Used: 101})), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"volumes in memory do not count", SingleFs, limited("100", volume(Volume{Name: "v", Type: EmptyDir, Medium: "Memory", Used: 101})), "", ""},
		{"a container without a limit counts toward the pod's limit", SingleFs, limited("100", another(Container{Name: "d", Usage: ContainerUsage{Rootfs: 101}})), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"limits are summed", SingleFs, limited("100", another(storage("1Ki", 0)), rootfs(99), logs(1)), "", ""},
		{"one container over its own limit", SingleFs, limited("100", another(storage("1Ki", 0)), rootfs(99), logs(2)), CauseContainerLimit, `Container c exceeded its local ephemeral storage limit "100". `},
		{"the second container", SingleFs, limited("1Ki", another(storage("100", 101))), CauseContainerLimit, `Container d exceeded its local ephemeral storage limit "100". `},
		{"a sidecar", SingleFs, limited("1Ki", initial(sidecar)), CauseContainerLimit, `Container d exceeded its local ephemeral storage limit "100". `},
		{"an init container's own limit is not checked", SingleFs, limited("1Ki", initial(storage("100", 101))), "", ""},
		{"dedicated imagefs: the writable layer counts for the pod only", ImageFs, limited("100", another(storage("1Ki", 0)), rootfs(101)), "", ""},
		{"dedicated imagefs: logs", ImageFs, limited("100", another(storage("1Ki", 0)), logs(101)), CauseContainerLimit, `Container c exceeded its local ephemeral storage limit "100". `},
		{"dedicated imagefs: the pod", ImageFs, limited("100", rootfs(101)), CausePodLimit, "Pod ephemeral local storage usage exceeds the total limit of containers 100. "},
		{"no statistics", SingleFs, limited("100", rootfs(101), withoutStats), "", ""},
		{"a container's limit of 0", SingleFs, limited("0", another(storage("1Ki", 0)), rootfs(500)), "", ""},
		{"overhead raises the pod's limit", SingleFs, limited("100", rootfs(101), func(p *Pod) {
			p.Overhead.EphemeralStorage = qty("10")
			p.Containers = append(p.Containers, storage("1", 0))
		}), CauseContainerLimit, `Container c exceeded its local ephemeral storage limit "100". `},
	} {
		cause, message := tt.pod.overLimit(tt.layout)
		if cause != tt.cause || message != tt.message {
			t.Errorf("%s: overLimit() = %q, %q; want %q, %q", tt.name, cause, message, tt.cause, tt.message)
		}
	}
}

// overLimit agrees with the sum of the limits, although it does not compute the sum for
// most pods.
func TestPodLimitMatchesSum(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	over := 0
	for range 20_000 {
		p := aPod("p")
		p.Containers = nil
		for _, cs := range []*[]Container{&p.Containers, &p.InitContainers} {
			for range g.IntN(3) {
				one := Container{Sidecar: g.oneIn(2), Usage: ContainerUsage{Rootfs: g.Int64N(5), Logs: g.Int64N(2)}}
				if g.oneIn(2) {
					one.Resources.Limits.EphemeralStorage = g.quantity(8)
				}
				*cs = append(*cs, one)
			}
		}
		if g.oneIn(4) {
			p.Overhead.EphemeralStorage = g.quantity(3)
		}
		limit := p.storageLimit()
		want := limit != nil && exceeds(p.disk(partsAll, false), limit)
		cause, _ := p.overLimit(SingleFs)
		if got := cause == CausePodLimit; got != want {
			t.Fatalf("%+v: over the pod's limit = %t; want %t", p, got, want)
		}
		if want {
			over++
		}
	}
	if over < 1000 {
		t.Errorf("%d random pods over their limit; want at least 1000", over)
	}
}

// Data in a directory of the node is not removed with the pod and does not count toward
// its limit.
func TestHostPathIsNotLimited(t *testing.T) {
	p := aPod("p")
	p.Containers[0].Resources.Limits.EphemeralStorage = qty("1Gi")
	p.Volumes = []Volume{{Name: "host", Type: HostPath, Used: 2 * gi}}
	if cause, _ := p.overLimit(SingleFs); cause != "" {
		t.Errorf("overLimit() with a hostPath of 2 GiB = %q; want none", cause)
	}
	p.Volumes = append(p.Volumes, Volume{Name: "conf", Type: ConfigMap, Used: 2 * gi})
	if cause, _ := p.overLimit(SingleFs); cause != CausePodLimit {
		t.Errorf("overLimit() with a configMap of 2 GiB = %q; want %q", cause, CausePodLimit)
	}
}

// Of a kubelet's pods one is evicted per interval for its own limit, also across a restart.
// Other pods do not wait.
func TestLimitsOfKubeletsPodsWait(t *testing.T) {
	tl := newTimeline(t)
	over := func(p *Pod) { p.Containers[0].Resources.Limits.EphemeralStorage = qty("1") }
	kubelets := func(p *Pod) { p.Kubelet, p.Priority = true, new(int32(0)) }
	tl.in.Pods = []Pod{aPod("a", over, withRootfs(2)), aPod("b", over, withRootfs(2)), aPod("k1", over, withRootfs(2), kubelets), aPod("k2", over, withRootfs(2), kubelets)}
	wantVictims(t, "at once", tl.step(0), "a", "b", "k1")
	wantVictims(t, "before the interval", tl.step(kubeletLimitInterval-time.Second))
	tl.state.EachTime(func(at *time.Time) { *at = at.Add(time.Second) })
	wantVictims(t, "after a restart with a clock that is 1s ahead", tl.step(kubeletLimitInterval))
	wantVictims(t, "after the interval", tl.step(kubeletLimitInterval+time.Second), "k2")
}

// The wall clock may be set back by any amount before a restart. The pods do not wait for it
// to catch up.
func TestLimitsAfterTheClockWasSetBack(t *testing.T) {
	tl := newTimeline(t)
	over := func(p *Pod) {
		p.Containers[0].Resources.Limits.EphemeralStorage, p.Kubelet, p.Priority = qty("1"), true, new(int32(0))
	}
	tl.in.Pods = []Pod{aPod("k1", over, withRootfs(2)), aPod("k2", over, withRootfs(2))}
	wantVictims(t, "at once", tl.step(0), "k1")
	tl.state.LimitEvicted = tl.state.LimitEvicted.Add(time.Hour)
	wantVictims(t, "with an eviction in the future", tl.step(time.Second), "k2")
}
