//go:build bench

package affinity

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/tests/node"
)

const (
	// moves is how many pods are evicted, one after the other, and shortDebounce the debounce.
	moves         = 20
	shortDebounce = time.Second
)

// TestMeasureDelay measures the time from the request that takes the label of a pod from its node until the eviction of
// the pod is accepted, by the API server's audit log.
func TestMeasureDelay(t *testing.T) {
	needPrograms(t)
	built, err := node.Program("../..", t.TempDir(), "evictd-controller")
	if err != nil {
		t.Fatal(err)
	}
	var apps []string
	for i := range moves {
		apps = append(apps, fmt.Sprintf("web%02d", i))
	}
	c := startCluster(t, apps, "a", "b")
	c.install("debounce=" + shortDebounce.String() + "\nper_minute=1000\nstorm_percentage=100\n")
	c.startController(built, "enforce")
	for _, app := range apps {
		c.deploy(app, 1)
	}
	before := map[string]map[types.UID]string{}
	for _, app := range apps {
		before[app] = c.awaitRunning(app, 1)
	}
	d := Delays{Debounce: shortDebounce.Microseconds()}
	for _, app := range apps {
		began := time.Now()
		c.takeLabel("a", app)
		c.movedFrom(app, before[app])
		d.Accepted = append(d.Accepted, c.evictions(app)[0].StageTimestamp.Sub(began).Microseconds())
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
