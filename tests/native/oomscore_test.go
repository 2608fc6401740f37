package native_test

import (
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/tests/node"
)

// score returns evictd's report on the oom_score_adj of a pod's only container.
func (d *daemon) score(p *pod) control.OOMScore {
	d.t.Helper()
	e := d.explain()
	for i := range e.OOMScores {
		if s := e.OOMScores[i]; s.Pod == p.key() && s.Min != nil && s.Max != nil {
			return s
		}
	}
	d.t.Fatalf("no OOM score of %s among %+v", p.key(), e.OOMScores)
	return control.OOMScore{}
}

// TestOOMScores: evictd reports the actual and the wanted oom_score_adj of a container, and corrects it with
// oomScoreAdj: enforce.
func TestOOMScores(t *testing.T) {
	n := startNode(t, gibibyte)
	web := runPod(t, n, node.PodSpec{
		Name: "web", Containers: []node.ContainerSpec{{Args: holdArgs(16 * mebibyte), MemoryRequest: 200 * mebibyte}},
	}).waitUsage(16 * mebibyte)
	d := startDaemon(t, n, hardThreshold("64Mi"), web)
	before := d.score(web)
	if before.Wanted == nil || *before.Wanted <= 0 || *before.Wanted >= 1000 || before.From != "the runtime" {
		t.Fatalf("score = %+v; want a Burstable container's, from the runtime", before)
	}
	if *before.Mismatched != 0 || *before.Min != *before.Wanted || *before.Max != *before.Wanted || before.Processes != 1 {
		t.Errorf("score = %+v; want one process with the wanted value", before)
	}
	score, err := process.OpenOOMScoreAdj("/proc", web.Containers[0].PID)
	if err != nil {
		t.Fatal(err)
	}
	defer score.Close()
	if err := score.Set(1000); err != nil {
		t.Fatal(err)
	}
	if got := d.score(web); *got.Max != 1000 || *got.Mismatched != 1 {
		t.Errorf("score = %+v; want 1000, mismatched", got)
	}
	d.configure(hardThreshold("64Mi") + "\noomScoreAdj: enforce")
	d.reload()
	eventually(t, "corrected score", func() bool {
		have, err := score.Get()
		return err == nil && have == *before.Wanted
	})
	if got := d.score(web); *got.Mismatched != 0 {
		t.Errorf("score = %+v; want none mismatched", got)
	}
	mustLive(t, web)
}

// TestKernelOOMChoice compares the victim of the kernel's OOM killer with the one that evictd would have chosen.
// oom_score_adj reflects requests, so both can choose the same pod; it does not reflect priority, by which evictd
// ranks.
func TestKernelOOMChoice(t *testing.T) {
	type candidate struct {
		name            string
		usage, requests int64
		priority        string
	}
	for _, tt := range []struct {
		name            string
		pods            []candidate
		evictds, kernel string
	}{
		{"request", []candidate{{"within", 40 * mebibyte, 200 * mebibyte, ""}, {"over", 100 * mebibyte, 0, ""}}, "over", "over"},
		{"priority", []candidate{{"important", 160 * mebibyte, 0, "1000"}, {"low", 80 * mebibyte, 0, "-1"}}, "low", "important"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const limit = 512 * mebibyte
			n := limitedNode(t, limit)
			var all []*pod
			var used int64
			for _, c := range tt.pods {
				spec := node.PodSpec{Name: c.name, Containers: []node.ContainerSpec{{Args: holdArgs(c.usage), MemoryRequest: c.requests}}}
				if c.priority != "" {
					spec.Annotations = map[string]string{"evictd.io/priority": c.priority}
				}
				all = append(all, runPod(t, n, spec).waitUsage(c.usage))
				used += c.usage
			}
			// The OOM killer must not choose the pod that reaches the limit.
			pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: []node.ContainerSpec{
				{Args: growArgs(limit - used + 24*mebibyte), OOMScoreAdj: new(int64(0))},
			}})
			d := startDaemon(t, n, hardThreshold("1Mi")+"\ndryRun: true\nprotect: {names: [default/pusher]}", append(all, pusher)...)
			if first := d.explain().Ranking[0].Pod; first != "default/"+tt.evictds {
				t.Errorf("first of evictd's ranking = %s; want %s", first, tt.evictds)
			}
			records := kernelLog(t)
			pusher.grow()
			// The kernel may kill another pod before the first has freed its memory: only the first counts.
			first := ""
			eventually(t, "the kernel's OOM killer", func() bool {
				for _, line := range records() {
					for i := range all {
						if first == "" && isOOMKillIn(line, all[i].Containers[0].Cgroup) {
							first = all[i].Name
						}
					}
				}
				return first != ""
			})
			if first != tt.kernel {
				t.Errorf("the kernel killed %s first; want %s", first, tt.kernel)
			}
		})
	}
}
