package scenario_test

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/scenario"
)

var update = flag.Bool("update", false, "write the current output to tests/scenarios; check it by hand afterwards")

// TestScenarios replays the example scenarios, each of which shows one rule.
func TestScenarios(t *testing.T) {
	compareGolden(t, "../../tests/scenarios/*.yaml", scenario.Parse)
}

// TestShutdownScenarios replays the example shutdown scenarios.
func TestShutdownScenarios(t *testing.T) {
	compareGolden(t, "../../tests/scenarios/shutdown/*.yaml", scenario.ParseShutdown)
}

// compareGolden replays every file and compares the output with the .json file next to
// it.
func compareGolden[S interface{ WriteJSON(io.Writer) error }](t *testing.T, pattern string, parse func(string, []byte) (S, error)) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no example scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s, err := parse(file, data)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := s.WriteJSON(&got); err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".json"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
				t.Errorf("%s: output (-want +got):\n%s", file, diff)
			}
			var again bytes.Buffer
			if err := s.WriteJSON(&again); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), again.Bytes()) {
				t.Errorf("%s: a second replay gives another output", file)
			}
		})
	}
}

// TestDocumentedLines compares the output with the lines in the description of the
// format.
func TestDocumentedLines(t *testing.T) {
	const want = `{"pods":[{"pod":"default/web","qosClass":"Burstable","critical":false,"containers":[{"name":"c","oomScoreAdj":991}]}],"thresholds":[{"signal":"memory.available","operator":"LessThan","value":"1Gi","gracePeriod":"0s","minReclaim":"0"}]}
{"at":"0s","conditions":["MemoryPressure"],"met":["memory.available"],"waiting":[],"admission":{"critical":true,"Guaranteed":true,"Burstable":true,"BestEffort":false},"reclaim":[],"ranking":["default/web"],"exempt":[],"added":[],"admitted":{},"evictions":[{"pod":"default/web","signal":"memory.available","gracePeriodSeconds":1,"reason":"Evicted","message":"The node was low on resource: memory. Threshold quantity: 1Gi, available: 700Mi. Container c was using 700Mi, request is 100Mi, has larger consumption of memory. ","annotations":{"offending_containers":"c","offending_containers_usage":"700Mi","starved_resource":"memory"}}],"errors":[]}
`
	got := replay(t, `
apiVersion: evictd.io/v1alpha1
kind: Scenario
node:
  capacity: {memory: 10Gi, allocatableMemory: 9Gi, nodefs: 100Gi, nodefsInodes: 1M, imagefs: 100Gi, pids: 32768}
  filesystems: single
  capacityForOOMScore: 10Gi
config:
  evictionHard: {memory.available: 1Gi}
  enforceNodeAllocatable: [none]
pods:
- namespace: default
  name: web
  priority: 0
  priorityClassName: ""
  static: false
  mirror: false
  terminationGracePeriodSeconds: 30
  tolerations: []
  resources: {requests: {}, limits: {}}
  emptyDirs: [{name: cache, medium: "", sizeLimit: 1Gi}]
  volumes: [{name: conf, type: configMap}]
  containers:
  - name: c
    requests: {memory: 100Mi, ephemeral-storage: 1Gi}
    limits: {}
    usage: {memory: 700Mi, rootfs: 0, logs: 0, inodes: 0, logsInodes: 0, images: 0}
  initContainers: []
  ephemeralContainers: []
  overhead: {}
  usage: {memory: 50Mi, pids: 3, volumes: {cache: 0}, volumesInodes: {cache: 0}}
  noStats: false
steps:
- at: 0s
  signals: {memory.available: 700Mi}
  usage: {default/web: {memory: 700Mi}}
  afterReclaim: {containers: {}, images: {imagefs.available: 20Gi}}
  gone: []
  add: []
  admit: []
`)
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// replay returns the JSON of a scenario.
func replay(t *testing.T, text string) string {
	t.Helper()
	s, err := scenario.Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := s.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
