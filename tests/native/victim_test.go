package native_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/node"
)

// below makes allocatableMemory.available<amount the hard threshold, and the only one.
func below(amount string) string {
	return "evictionHard: {allocatableMemory.available: " + amount + "}"
}

// TestHogOfEachClass: the pod that outgrows the others is killed, whatever its class, and they live. Where a
// BestEffort or Burstable pod runs over its request a Guaranteed hog is never the first, so that beside it all are
// within theirs: by far, so that what the hog takes between two readings does not put another before it.
func TestHogOfEachClass(t *testing.T) {
	n := startNode(t, gibibyte)
	within := []node.ContainerSpec{{Args: holding(16 * mebibyte), MemoryRequest: 512 * mebibyte}}
	limited := []node.ContainerSpec{{Args: holding(16 * mebibyte), MemoryLimit: 512 * mebibyte}}
	others := []*pod{
		runPod(t, n, node.PodSpec{Name: "burstable", Containers: within}).uses(16 * mebibyte),
		runPod(t, n, node.PodSpec{Name: "guaranteed", Containers: limited}).uses(16 * mebibyte),
	}
	for _, tt := range []struct {
		class node.QoS
		hog   node.ContainerSpec
		joins []node.ContainerSpec // a pod that is there from now on
	}{
		{node.Guaranteed, node.ContainerSpec{MemoryLimit: 700 * mebibyte}, nil},
		{node.Burstable, node.ContainerSpec{MemoryRequest: 128 * mebibyte}, one(holding(16 * mebibyte))},
		{node.BestEffort, node.ContainerSpec{}, nil},
	} {
		if tt.joins != nil {
			others = append(others, runPod(t, n, node.PodSpec{Name: "besteffort", Containers: tt.joins}).uses(16*mebibyte))
		}
		t.Run(string(tt.class), func(t *testing.T) {
			tt.hog.Args = growing(640 * mebibyte)
			hog := runPod(t, n, node.PodSpec{Name: "hog", Containers: []node.ContainerSpec{tt.hog}})
			d := startDaemon(t, n, below("512Mi"), append(slices.Clone(others), hog)...)
			hog.press()
			hog.mustDie()
			d.victims(hog)
			mustLive(t, others...)
			rec := d.ended(hog)
			killed(t, &rec, hog)
			ranksFirst(t, &rec, hog)
			hog.remove()
		})
	}
}

// TestRanking: of three pods the right one goes, and what presses is a fourth that is protected.
func TestRanking(t *testing.T) {
	n := startNode(t, gibibyte)
	type candidate struct {
		name     string
		holds    int64
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
				spec := node.PodSpec{Name: c.name, Containers: []node.ContainerSpec{{Args: holding(c.holds), MemoryRequest: c.requests}}}
				if c.priority != "" {
					spec.Annotations = map[string]string{"evictd.io/priority": c.priority}
				}
				p := runPod(t, n, spec).uses(c.holds)
				used += c.holds
				if all = append(all, p); c.name == tt.victim {
					victim = p
				} else {
					others = append(others, p)
				}
			}
			// The pods leave the pusher 96 MiB, and the last 64 of what it takes are missing.
			pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: one(growing(gibibyte - used - 512*mebibyte + 64*mebibyte))})
			others = append(others, pusher)
			d := startDaemon(t, n, below("512Mi")+"\nprotect: {names: [default/pusher]}", append(all, pusher)...)
			pusher.press()
			victim.mustDie()
			d.victims(victim)
			mustLive(t, others...)
			rec := d.ended(victim)
			killed(t, &rec, victim)
			ranksFirst(t, &rec, victim)
			if len(rec.Candidates) != len(tt.pods) {
				t.Errorf("candidates = %+v; want the three", rec.Candidates)
			}
			for _, p := range append(all, pusher) {
				p.remove()
			}
		})
	}
}

// TestTwoHogs: two pods grow at once, each of them too much for the node, and both go.
func TestTwoHogs(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(16 * mebibyte))}).uses(16 * mebibyte)
	a := runPod(t, n, node.PodSpec{Name: "a", Containers: one(growing(384 * mebibyte))})
	b := runPod(t, n, node.PodSpec{Name: "b", Containers: one(growing(384 * mebibyte))})
	d := startDaemon(t, n, below("800Mi"), other, a, b)
	a.press()
	b.press()
	a.mustDie()
	b.mustDie()
	d.victims(a, b)
	mustLive(t, other)
	for _, p := range []*pod{a, b} {
		rec := d.ended(p)
		killed(t, &rec, p)
	}
}

// TestForkingHog: a hog whose processes replace themselves faster than a list of them is read.
func TestForkingHog(t *testing.T) {
	n := startNode(t, gibibyte)
	other := runPod(t, n, node.PodSpec{Name: "other", Containers: one(holding(16 * mebibyte))}).uses(16 * mebibyte)
	hog := runPod(t, n, node.PodSpec{
		Name: "hog", HostPID: true,
		Containers: one([]string{"forks", "-n", "10", "-bytes", fmt.Sprint(48 * mebibyte), "-relay", "200ms"}),
	})
	d := startDaemon(t, n, below("700Mi"), other, hog)
	hog.mustDie()
	d.victims(hog)
	mustLive(t, other)
	rec := d.ended(hog)
	if rec.Result != evict.ResultKilled || rec.Processes < 8 {
		t.Errorf("record of the hog: result %s, %d processes; want killed, at least 8", rec.Result, rec.Processes)
	}
}
