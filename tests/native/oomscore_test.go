package native_test

import (
	"testing"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/kernel/process"
	"github.com/evictd/evictd/tests/node"
)

// score returns what evictd tells of the only container of a pod.
func (d *daemon) score(p *pod) control.OOMScore {
	d.t.Helper()
	e := d.explain()
	for i := range e.OOMScores {
		if s := e.OOMScores[i]; s.Pod == p.key() && s.Least != nil && s.Most != nil {
			return s
		}
	}
	d.t.Fatalf("no OOM score of %s among %+v", p.key(), e.OOMScores)
	return control.OOMScore{}
}

// TestOOMScores: what the kernel's OOM killer is told of a container is shown beside what it should be, and corrected
// where that is asked for.
func TestOOMScores(t *testing.T) {
	n := startNode(t, gibibyte)
	web := runPod(t, n, node.PodSpec{
		Name: "web", Containers: []node.ContainerSpec{{Args: holding(16 * mebibyte), MemoryRequest: 200 * mebibyte}},
	}).uses(16 * mebibyte)
	d := startDaemon(t, n, below("64Mi"), web)
	before := d.score(web)
	if before.Wanted == nil || *before.Wanted <= 0 || *before.Wanted >= 1000 || before.From != "the runtime" {
		t.Fatalf("score = %+v; want a Burstable container's, as the runtime was told", before)
	}
	if *before.Wrong != 0 || *before.Least != *before.Wanted || *before.Most != *before.Wanted || before.Processes != 1 {
		t.Errorf("score = %+v; want one process that has what is wanted", before)
	}
	score, err := process.OpenScore("/proc", web.Containers[0].PID)
	if err != nil {
		t.Fatal(err)
	}
	defer score.Close()
	if err := score.Set(1000); err != nil {
		t.Fatal(err)
	}
	if got := d.score(web); *got.Most != 1000 || *got.Wrong != 1 {
		t.Errorf("score = %+v; want the wrong 1000 to be shown", got)
	}
	d.configure(below("64Mi") + "\noomScoreAdj: enforce")
	d.reload()
	eventually(t, "corrected score", func() bool {
		have, err := score.Get()
		return err == nil && have == *before.Wanted
	})
	if got := d.score(web); *got.Wrong != 0 {
		t.Errorf("score = %+v; want none that is wrong", got)
	}
	mustLive(t, web)
}

// TestKernelsChoice: whom the kernel takes where it gets to act, beside whom evictd would have taken. Scores know
// requests, so that both may take the same; they know no priority, which decides for evictd.
func TestKernelsChoice(t *testing.T) {
	type candidate struct {
		name            string
		holds, requests int64
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
				spec := node.PodSpec{Name: c.name, Containers: []node.ContainerSpec{{Args: holding(c.holds), MemoryRequest: c.requests}}}
				if c.priority != "" {
					spec.Annotations = map[string]string{"evictd.io/priority": c.priority}
				}
				all = append(all, runPod(t, n, spec).uses(c.holds))
				used += c.holds
			}
			// Whoever takes the last of the memory is no candidate of the kernel's.
			pusher := runPod(t, n, node.PodSpec{Name: "pusher", Containers: []node.ContainerSpec{
				{Args: growing(limit - used + 24*mebibyte), OOMScoreAdj: new(int64(0))},
			}})
			d := startDaemon(t, n, below("1Mi")+"\ndryRun: true\nprotect: {names: [default/pusher]}", append(all, pusher)...)
			if first := d.explain().Ranking[0].Pod; first != "default/"+tt.evictds {
				t.Errorf("evictd would take %s first; want %s", first, tt.evictds)
			}
			records := kernelLog(t)
			pusher.press()
			// It may take another before the memory of the first is back: the first is its choice.
			first := ""
			eventually(t, "the kernel's OOM killer", func() bool {
				for _, line := range records() {
					for i := range all {
						if first == "" && killsIn(line, all[i].Containers[0].Cgroup) {
							first = all[i].Name
						}
					}
				}
				return first != ""
			})
			if first != tt.kernel {
				t.Errorf("the kernel took %s first; want %s", first, tt.kernel)
			}
		})
	}
}
