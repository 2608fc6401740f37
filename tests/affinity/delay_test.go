//go:build bench

package affinity

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/node"
)

const (
	// moves is how often the pod is evicted, and shortDebounce the debounce.
	moves         = 20
	shortDebounce = time.Second
)

// TestMeasureDelay measures the time from the request that takes the label from the node of a pod until the eviction of
// the pod is accepted, by the API server's audit log. Each replacement must run before the next label is taken.
func TestMeasureDelay(t *testing.T) {
	needPrograms(t)
	built, err := node.Program("../..", t.TempDir(), "evictd-controller")
	if err != nil {
		t.Fatal(err)
	}
	c := startCluster(t, []string{"web"}, "a", "b")
	c.install("debounce=" + shortDebounce.String() + "\nper_minute=1000\nstorm_percentage=100\n")
	c.startController(built, "enforce")
	c.deploy("web", 1)
	d := Delays{Debounce: shortDebounce.Microseconds()}
	for move := range moves {
		var from string
		for _, from = range c.awaitRunning("web", 1) {
		}
		// The controller must know that the replacement is ready.
		c.awaitMetric(`evictd_affinity_violations{state="in_flight"} 0`)
		time.Sleep(shortDebounce)
		began := time.Now()
		c.takeLabel(from, "web")
		c.await("the pod to leave "+from, func() (bool, error) {
			pods, err := c.pods("web")
			return len(pods) == 1 && pods[0].Spec.NodeName != "" && pods[0].Spec.NodeName != from, err
		})
		evictions := c.evictions("web")
		if len(evictions) != move+1 {
			t.Fatalf("after move %d: %d evictions; want one for each", move, len(evictions))
		}
		d.Accepted = append(d.Accepted, evictions[move].StageTimestamp.Sub(began).Microseconds())
		back := fields{"metadata": fields{"labels": fields{prefix + "web": "valid"}}}
		if err := c.Admin.Patch(t.Context(), nodesPath+"/"+from, controlplane.MergePatch, back); err != nil {
			t.Fatal(err)
		}
	}
	if first := slices.Min(d.Accepted); first < d.Debounce {
		t.Errorf("an eviction was accepted after %d µs; want the debounce of %d µs", first, d.Debounce)
	}
	line, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", line)
	if file := os.Getenv(ResultsEnv); file != "" {
		if err := os.WriteFile(file, append(line, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
