package native_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// hardThreshold returns settings with the only threshold allocatableMemory.available<amount.
func hardThreshold(amount string) string {
	return "evictionHard: {allocatableMemory.available: " + amount + "}"
}

// TestHogOfEachClass: the pod that grows is killed, whatever its QoS class, and the others stay. A Guaranteed pod
// ranks after any pod over its request, so next to the Guaranteed hog all pods are far within their requests.
func TestHogOfEachClass(t *testing.T) {
	n := startNode(t, gibibyte)
	within := []node.ContainerSpec{{Args: holdArgs(16 * mebibyte), MemoryRequest: 512 * mebibyte}}
	limited := []node.ContainerSpec{{Args: holdArgs(16 * mebibyte), MemoryLimit: 512 * mebibyte}}
	others := []*pod{
		runPod(t, n, node.PodSpec{Name: "burstable", Containers: within}).waitUsage(16 * mebibyte),
		runPod(t, n, node.PodSpec{Name: "guaranteed", Containers: limited}).waitUsage(16 * mebibyte),
	}
	for _, tt := range []struct {
		class node.QoS
		hog   node.ContainerSpec
		joins []node.ContainerSpec // of a pod that is started before this case
	}{
		{node.Guaranteed, node.ContainerSpec{MemoryLimit: 700 * mebibyte}, nil},
		{node.Burstable, node.ContainerSpec{MemoryRequest: 128 * mebibyte}, oneContainer(holdArgs(16 * mebibyte))},
		{node.BestEffort, node.ContainerSpec{}, nil},
	} {
		if tt.joins != nil {
			others = append(others, runPod(t, n, node.PodSpec{Name: "besteffort", Containers: tt.joins}).waitUsage(16*mebibyte))
		}
		t.Run(string(tt.class), func(t *testing.T) {
			tt.hog.Args = growArgs(640 * mebibyte)
			hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{tt.hog}})
			d := startDaemon(t, n, hardThreshold("512Mi"), append(slices.Clone(others), hog)...)
			hog.grow()
			hog.mustDie()
			d.checkVictims(hog)
			mustLive(t, others...)
			rec := d.waitRecord(hog)
			checkKilled(t, &rec, hog)
			checkRanksFirst(t, &rec, hog)
			hog.remove()
		})
	}
}

// TestRanking: of three pods the first of the ranking is evicted, while a fourth, protected pod grows.
func TestRanking(t *testing.T) {
	n := startNode(t, gibibyte)
	type candidate struct {
		name     string
		usage    int64
		requests int64
		priority string
	}
	for _, tt := range []struct {
		name   string
		pods   []candidate
		victim string
	}{
		{"over request", []candidate{
			{"within", 250 * mebibyte, 400 * mebibyte, "-100"},
			{"over", 120 * mebibyte, 48 * mebibyte, "1000"},
			{"little", 40 * mebibyte, 100 * mebibyte, "-100"},
		}, "over"},
		{"priority", []candidate{
			{"large", 200 * mebibyte, 0, ""},
			{"low", 100 * mebibyte, 0, "-1"},
			{"high", 110 * mebibyte, 0, "7"},
		}, "low"},
		{"size", []candidate{
			{"small", 100 * mebibyte, 0, "5"},
			{"large", 160 * mebibyte, 0, "5"},
			{"middle", 130 * mebibyte, 0, "5"},
		}, "large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all, others []*pod
			var victim *pod
			var used int64
			for _, c := range tt.pods {
				spec := node.PodSpec{Name: c.name, Containers: []node.ContainerSpec{{Args: holdArgs(c.usage), MemoryRequest: c.requests}}}
				if c.priority != "" {
					spec.Annotations = map[string]string{"evictd.io/priority": c.priority}
				}
				p := runPod(t, n, spec).waitUsage(c.usage)
				used += c.usage
				if all = append(all, p); c.name == tt.victim {
					victim = p
				} else {
					others = append(others, p)
				}
			}
			// The pusher crosses the threshold of 512 MiB by 64 MiB.
			pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: oneContainer(growArgs(gibibyte - used - 512*mebibyte + 64*mebibyte))})
			others = append(others, pusher)
			d := startDaemon(t, n, hardThreshold("512Mi")+"\nprotect: {names: [default/pusher]}", append(all, pusher)...)
			pusher.grow()
			victim.mustDie()
			d.checkVictims(victim)
			mustLive(t, others...)
			rec := d.waitRecord(victim)
			checkKilled(t, &rec, victim)
			checkRanksFirst(t, &rec, victim)
			if len(rec.Candidates) != len(tt.pods) {
				t.Errorf("candidates = %+v; want %d", rec.Candidates, len(tt.pods))
			}
			for _, p := range append(all, pusher) {
				p.remove()
			}
		})
	}
}

// TestTwoHogs: two pods grow at once, each by too much for the node, and both are evicted.
func TestTwoHogs(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(16 * mebibyte))}).waitUsage(16 * mebibyte)
	a := runPod(t, n, node.PodSpec{Name: "a", Containers: oneContainer(growArgs(384 * mebibyte))})
	b := runPod(t, n, node.PodSpec{Name: "b", Containers: oneContainer(growArgs(384 * mebibyte))})
	d := startDaemon(t, n, hardThreshold("800Mi"), other, a, b)
	a.grow()
	b.grow()
	a.mustDie()
	b.mustDie()
	d.checkVictims(a, b)
	mustLive(t, other)
	for _, p := range []*pod{a, b} {
		rec := d.waitRecord(p)
		checkKilled(t, &rec, p)
	}
}

// TestForkingHog: all processes of a hog are killed, although they replace themselves faster than a list of them is
// read.
func TestForkingHog(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: oneContainer(holdArgs(16 * mebibyte))}).waitUsage(16 * mebibyte)
	hog := runPod(t, n, node.PodSpec{
		Name: "hog", HostPID: true,
		Containers: oneContainer([]string{"forks", "-n", "10", "-bytes", fmt.Sprint(48 * mebibyte), "-relay", "200ms"}),
	})
	d := newDaemon(t, n, hardThreshold("700Mi"))
	d.start() // which kills the hog at once
	hog.mustDie()
	rec := d.waitRecord(hog)
	d.checkVictims(hog)
	mustLive(t, other)
	if rec.Result != evict.ResultKilled || rec.Processes < 8 {
		t.Errorf("record of the hog: result %s, %d processes; want killed, at least 8", rec.Result, rec.Processes)
	}
}
