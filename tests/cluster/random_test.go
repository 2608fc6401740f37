package cluster

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// evictionsEnv is the environment variable with the number of evictions of
// TestRandomEvictions.
const evictionsEnv = "EVICTD_TEST_EVICTIONS"

// TestRandomEvictions: one pod after the other is evicted, each as soon as there is memory
// for the next, while pods of other workloads are replaced. No process of a victim runs
// again, no pod that must not run twice does, and each final status has the condition
// DisruptionTarget. The kubelet may drop the reason of one in a hundred, at least of one, of one more if the
// object is deleted at once, and of more if the machine is too slow to report the eviction in time.
func TestRandomEvictions(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	evictions := 20
	if text := os.Getenv(evictionsEnv); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s is %q; want a number of at least 1", evictionsEnv, text)
		}
		evictions = n
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("%d evictions, seed %d", evictions, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := startKubeNode(t)
	c.startEnforcing()
	kinds := []string{"Deployment", "StatefulSet", "DaemonSet", "Job"}
	lasting := map[string]*workload{}
	var total tally
	var victims []*victim
	evicted := map[*workload][]string{}
	for i := range evictions {
		kind, number := kinds[random.IntN(len(kinds))], random.IntN(2)
		restartPolicy := "Always"
		switch kind {
		case "Job":
			restartPolicy = "Never"
			fallthrough
		case "DaemonSet":
			// A new one each time: their controllers replace a failed pod after a time that
			// doubles.
			number = i
		}
		name := fmt.Sprintf("%s-%d", strings.ToLower(kind), number)
		w := lasting[name]
		if w == nil {
			w = &workload{name, kind, podSpec(restartPolicy, hogContainer("main"))}
			c.create(w)
			lasting[name] = w
		}
		v := c.evict(w, evicted[w]...)
		evicted[w] = append(evicted[w], string(v.pod.UID))
		if victims = append(victims, v); len(victims) > inFlight {
			total.add(c, victims[0])
			victims = victims[1:]
		}
	}
	for _, v := range victims {
		total.add(c, v)
	}
	total.judge(t, evictions)
}

// inFlight is the number of evictions whose results are not waited for. evictd keeps the
// records of the last fifty.
const inFlight = 10

// tally sums up evictions.
type tally struct {
	counts                    map[problemKind]int
	gone, status, replacement []time.Duration
}

func (s *tally) add(c *kubeNode, v *victim) {
	c.t.Helper()
	e := v.result()
	if s.counts == nil {
		s.counts = map[problemKind]int{}
	}
	for _, p := range e.problems {
		c.t.Logf("%s %s: %s: %s", v.w.kind, v.pod.Name, p.kind, p.text)
		s.counts[p.kind]++
	}
	if len(e.problems) > 0 {
		c.t.Logf("%v%s", &e, v.history(&e))
	}
	s.gone = append(s.gone, e.empty.Sub(e.killed))
	if !e.failed.IsZero() {
		s.status = append(s.status, e.failed.Sub(e.empty))
	}
	if v.w.kind != "Job" {
		s.replacement = append(s.replacement, e.replacement.Sub(e.empty))
	}
	if v.w.kind == "Job" || v.w.kind == "DaemonSet" {
		c.remove(v.w)
	}
}

func (s *tally) judge(t *testing.T, evictions int) {
	t.Helper()
	t.Logf("SIGKILL to last process gone %s; from there to the status %s, to the replacement, Jobs apart, %s",
		spread(s.gone), spread(s.status), spread(s.replacement))
	t.Logf("of %d evictions: %v", evictions, s.counts)
	// The kubelet may notice the kill between the first patch and the deletion by a controller.
	allowed := map[problemKind]int{problemReason: allowedLost(evictions), problemDeleted: max(2, evictions/100), problemLate: max(2, evictions/10)}
	for kind, n := range s.counts {
		if n > allowed[kind] {
			t.Errorf("%s: %d of %d evictions; want at most %d", kind, n, evictions, allowed[kind])
		}
	}
}

// allowedLost returns how many evictions may have no reason in their final status: one in a
// hundred, and at least one, because 20 evictions at this rate have one in a fifth of the runs.
func allowedLost(evictions int) int { return max(1, evictions/100) }

// spread returns the median and the largest of times.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "-"
	}
	slices.Sort(d)
	return fmt.Sprintf("%v (at most %v)", d[len(d)/2].Round(100*time.Microsecond), d[len(d)-1].Round(100*time.Microsecond))
}
