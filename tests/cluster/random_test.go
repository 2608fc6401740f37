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

// TestRandomEvictions: under load, one pod after the other is evicted, each as soon as there is memory
// for the next, while pods of other workloads are replaced. No process of a victim runs
// again, no pod that must not run twice does, and each last status has the condition
// DisruptionTarget and, but for two or one in a hundred, the reason Evicted.
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
	c := startKubeNodeWith(t, kubeNodeOptions{audit: true})
	c.startEnforcing()
	l := c.startLoad()
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
	l.end()
	total.report(t, evictions)
}

// inFlight is the number of evictions whose results are not waited for. evictd keeps the
// records of the last fifty.
const inFlight = 10

// settleTime is how long after the kill a status is the last one: every ten seconds the kubelet takes
// back what it does not agree with.
const settleTime = 15 * time.Second

// tally sums up evictions.
type tally struct {
	counts                    map[problemKind]int
	repaired                  int // the kubelet had taken the reason back
	gone, status, replacement []time.Duration
}

func (s *tally) add(c *kubeNode, v *victim) {
	c.t.Helper()
	v.mu.Lock()
	settled := v.empty.Add(settleTime)
	v.mu.Unlock()
	time.Sleep(time.Until(settled))
	e := v.result()
	if s.counts == nil {
		s.counts = map[problemKind]int{}
	}
	for _, p := range e.problems {
		c.t.Logf("%s %s: %s: %s", v.w.kind, v.pod.Name, p.kind, p.text)
		s.counts[p.kind]++
	}
	if len(e.problems) > 0 {
		c.t.Log(v.explanation(&e))
	}
	if v.repaired() {
		s.repaired++
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

// report logs the sums, and fails the test for what must not be.
func (s *tally) report(t *testing.T, evictions int) {
	t.Helper()
	t.Logf("SIGKILL to last process gone %s; from there to the status %s, to the replacement, Jobs apart, %s",
		spread(s.gone), spread(s.status), spread(s.replacement))
	t.Logf("%d of %d evictions have the reason Evicted in the last status, %d after the kubelet had taken it back; problems %v", evictions-s.lost(), evictions, s.repaired, s.counts)
	for _, text := range s.judge(evictions) {
		t.Error(text)
	}
}

// lost returns how many evictions have no reason in their last status, however it was lost.
func (s *tally) lost() int {
	return s.counts[problemReason] + s.counts[problemDeleted] + s.counts[problemLate]
}

// judge returns what must not be.
func (s *tally) judge(evictions int) (failures []string) {
	if lost := s.lost(); lost > allowedLost(evictions) {
		failures = append(failures, fmt.Sprintf("%d of %d evictions have the reason Evicted in the last status; want at least %d", evictions-lost, evictions, evictions-allowedLost(evictions)))
	}
	for kind, n := range s.counts {
		switch kind {
		case problemReason, problemDeleted, problemLate:
		default:
			failures = append(failures, fmt.Sprintf("%s: %d of %d evictions; want none", kind, n, evictions))
		}
	}
	return failures
}

// allowedLost returns how many evictions may have no reason in their last status: one in a hundred, and at least two,
// because a few evictions on a machine with other work can lose one or two.
func allowedLost(evictions int) int { return max(2, evictions/100) }

func TestTally(t *testing.T) {
	type counts = map[problemKind]int
	for _, tt := range []struct {
		evictions int
		counts    counts
		want      []string
	}{
		{200, nil, nil},
		{200, counts{problemReason: 2}, nil},
		{200, counts{problemDeleted: 1, problemLate: 1}, nil},
		{200, counts{problemReason: 1, problemDeleted: 1, problemLate: 1}, []string{"197 of 200 evictions have the reason Evicted in the last status; want at least 198"}},
		{200, counts{problemLate: 3}, []string{"197 of 200 evictions have the reason Evicted in the last status; want at least 198"}},
		{20, counts{problemDeleted: 1, problemLate: 1}, nil},
		{20, counts{problemDeleted: 3}, []string{"17 of 20 evictions have the reason Evicted in the last status; want at least 18"}},
		{400, counts{problemReason: 4}, nil},
		{200, counts{problemTarget: 1}, []string{"no DisruptionTarget: 1 of 200 evictions; want none"}},
		{200, counts{problemRestart: 1}, []string{"restart: 1 of 200 evictions; want none"}},
		{200, counts{problemDouble: 1}, []string{"double run: 1 of 200 evictions; want none"}},
	} {
		if got := (&tally{counts: tt.counts}).judge(tt.evictions); !slices.Equal(got, tt.want) {
			t.Errorf("judge(%d) of %v = %q; want %q", tt.evictions, tt.counts, got, tt.want)
		}
	}
}

// spread returns the median and the largest of times.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "-"
	}
	slices.Sort(d)
	return fmt.Sprintf("%v (at most %v)", d[len(d)/2].Round(100*time.Microsecond), d[len(d)-1].Round(100*time.Microsecond))
}
