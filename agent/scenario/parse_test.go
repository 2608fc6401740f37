package scenario_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/scenario"
)

const header = "apiVersion: evictd.io/v1alpha1\nkind: Scenario\n"

// none is a configuration without thresholds, which needs no capacity.
const none = "config: {evictionHard: {}}\n"

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string // after the file's name
	}{
		{"empty file", "", []string{" the file is empty"}},
		{"another kind", "apiVersion: v1\nkind: Pod\n" + none, []string{
			`1: apiVersion: is "v1"; want evictd.io/v1alpha1`,
			`2: kind: is "Pod"; want Scenario`,
		}},
		{"no header", none, []string{
			"1: apiVersion: is missing; want evictd.io/v1alpha1",
			"1: kind: is missing; want Scenario",
		}},
		{"unknown fields", header + none + `nodes: {}
pods:
- namespace: a
  name: b
  labels: {app: x}
  containers: [{name: c, request: {memory: 1Gi}, usage: {memroy: 1Gi}}]
  ephemeralContainers: [{name: e, requests: {memory: 1Gi}}]
  usage: {containers: {}}
steps:
- {at: 0s, signal: {}}
`, []string{
			"4: nodes: is not a field here; did you mean node?",
			"8: pods[0].labels: is not a field here",
			"9: pods[0].containers[0].request: is not a field here; did you mean requests?",
			"9: pods[0].containers[0].usage.memroy: is not a field here; did you mean memory?",
			"10: pods[0].ephemeralContainers[0].requests: is not a field here",
			"11: pods[0].usage.containers: is not a field here",
			"13: steps[0].signal: is not a field here; did you mean signals?",
		}},
		{"values", header + `closedLoop: 1
node:
  filesystems: double
  capacity: {memory: 10GB, nodefs: -1Gi, pids: 0}
config:
  evictionHard: {memory.available: 0}
  dryrun: true
pods:
- namespace: a b
  name: x/y
  priority: 3000000000
  terminationGracePeriodSeconds: -1
  resources: {requests: {ephemeral-storage: 1Gi}, limits: {memroy: 1Gi}}
  tolerations: [{operator: exists}, {effect: Never, key: k}, {}, {operator: Exists, key: k, value: v}]
  emptyDirs: [{name: d, medium: Disk}, {name: d, sizeLimit: 1e1000000000}]
  volumes: [{name: s, type: secret}, {name: e, type: emptyDir}]
  initContainers: [{name: c, restartPolicy: Never}]
  containers: [{name: c, usage: {memory: -1}}, {}]
steps:
- {}
- {at: 5s, signals: {memory.free: 1Gi, nodefs.available: much}}
- {at: 4s}
- {at: -1s}
- {at: soon}
`, []string{
			"3: closedLoop: is the number 1; want true or false",
			`5: node.filesystems: "double" is not a layout; want single, imagefs or split`,
			`6: node.capacity.memory: "10GB" is not a quantity; want one such as 500Mi, 1.5Gi or 2000`,
			`6: node.capacity.nodefs: "-1Gi" is below 0`,
			"6: node.capacity.pids: is 0; want a quantity above 0",
			`8: config.evictionHard.memory.available: "0" is not above 0; want a quantity above 0 such as 100Mi, or a percentage up to 100% such as 10%`,
			"9: config.dryrun: is not a field here; did you mean dryRun?",
			`11: pods[0].namespace: "a b" is not a valid name; want at most 253 printable characters without / and spaces`,
			`12: pods[0].name: "x/y" is not a valid name; want at most 253 printable characters without / and spaces`,
			"13: pods[0].priority: is the number 3000000000; want one from -2147483648 to 2147483647",
			"14: pods[0].terminationGracePeriodSeconds: -1 is below 0",
			"15: pods[0].resources.limits.memroy: is not a resource; want memory",
			"15: pods[0].resources.requests.ephemeral-storage: is not a pod-level resource; want cpu, memory or hugepages-<size>",
			`16: pods[0].tolerations[0].operator: is "exists"; want Exists or Equal`,
			`16: pods[0].tolerations[1].effect: is "Never"; want NoSchedule, PreferNoSchedule, NoExecute or nothing`,
			`16: pods[0].tolerations[2].operator: is ""; want Exists if the key is empty`,
			`16: pods[0].tolerations[3].value: is "v"; want none if the operator is Exists`,
			`17: pods[0].emptyDirs[1].sizeLimit: "1e1000000000" is not a quantity of at most 64 characters and two digits of exponent; want one such as 500Mi, 1.5Gi or 2000`,
			`17: pods[0].emptyDirs[0].medium: is "Disk"; want "", Memory or HugePages`,
			`17: pods[0].emptyDirs[1].name: "d" is the name of another volume of this pod`,
			`18: pods[0].volumes[0].type: is "secret"; want hostPath, configMap or gitRepo; other types are not counted`,
			"18: pods[0].volumes[1].type: is emptyDir; list the volume in emptyDirs",
			`19: pods[0].initContainers[0].restartPolicy: is "Never"; want Always, which makes it a sidecar, or nothing`,
			`19: pods[0].initContainers[0].name: "c" is the name of another container of this pod`,
			`20: pods[0].containers[0].usage.memory: "-1" is below 0`,
			"20: pods[0].containers[1].name: is missing",
			"22: steps[0].at: is missing; want a duration from the start such as 90s",
			"23: steps[1].signals.memory.free: unsupported eviction signal memory.free",
			`23: steps[1].signals.nodefs.available: "much" is not a quantity; want one such as 500Mi, 1.5Gi or 2000`,
			"24: steps[2].at: 4s is earlier than the step above, at 5s; want steps in time order",
			`25: steps[3].at: "-1s" is before the start`,
			`26: steps[4].at: "soon" is not a duration; want one such as 90s or 1m30s`,
		}},
		{"duplicates", header + none + `pods:
- {namespace: a, name: one, name: two}
- {namespace: a, name: one}
- {namespace: a, name: other, uid: a/one}
steps:
- {at: 0s, add: [{namespace: a, name: one}, {namespace: a, name: new}, {namespace: a, name: new}]}
- {at: 0s, admit: [{namespace: a, name: x}, {namespace: a, name: x}]}
`, []string{
			"5: pods[0].name: is given twice, first in line 5",
			"6: pods[1].name: pod a/one is already running",
			`7: pods[2].uid: "a/one" is the UID of the running pod a/one`,
			"9: steps[0].add[0].name: pod a/one is already running",
			"9: steps[0].add[2].name: pod a/new is already running",
			"10: steps[1].admit[1].name: pod a/x is listed twice",
		}},
		{"pods that are not running", header + none + `pods:
- {namespace: a, name: one, containers: [{name: c}], emptyDirs: [{name: d}], usage: {volumes: {e: 1Gi}}}
steps:
- at: 0s
  gone: [a/two, a/one, a/one]
  deleted: {a/one: 30s}
  usage: {a/one: {memory: 1Gi}} # has no effect, but is no error
- at: 1s
  add: [{namespace: a, name: one, containers: [{name: c}], emptyDirs: [{name: d}]}]
  usage: {a/one: {containers: {x: {}}, volumesInodes: {d: 1, y: 2}}, one: {}}
`, []string{
			"5: pods[0].usage.volumes.e: is not a volume of pod a/one; list it in its emptyDirs or volumes",
			`8: steps[0].gone[0]: no pod "a/two" is running; want the namespace/name of a running pod`,
			`8: steps[0].gone[2]: no pod "a/one" is running; want the namespace/name of a running pod`,
			"9: steps[0].deleted.a/one: no pod of this name is running; want the namespace/name of a running pod",
			"13: steps[1].usage.a/one.volumesInodes.y: is not a volume of pod a/one; list it in its emptyDirs or volumes",
			"13: steps[1].usage.a/one.containers.x: is not a container of pod a/one",
			"13: steps[1].usage.one: no pod of this name is running; want the namespace/name of a running pod",
		}},
		{"default percentages", header + "node: {capacity: {nodefs: 1Gi}}\n", []string{
			"3: node.capacity.nodefsInodes: is missing; the threshold of nodefs.inodesFree is 5% of it",
			"3: node.capacity.imagefsInodes: is missing; the threshold of imagefs.inodesFree is 5% of it",
		}},
		{"percentages", header + `node: {filesystems: split, capacity: {nodefs: 1Gi}}
config:
  evictionHard: {memory.available: 10%, imagefs.available: 1Gi, nodefs.available: 10%}
  evictionMinimumReclaim: {imagefs.available: 10%}
`, []string{
			"3: node.capacity.memory: is missing; the threshold of memory.available is 10% of it",
			"3: node.capacity.imagefs: is missing; the minimum reclaim of imagefs.available is 10% of it",
		}},
		{"loop without memory", header + none + "closedLoop: true\n", []string{
			"1: node.capacity.memory: is missing; a closed loop computes memory.available from it",
		}},
		{"configuration with a header", header + "config: {apiVersion: evictd.io/v1alpha1, evictionHard: {}}\n", []string{
			"3: config.apiVersion: is not a field here",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := scenario.Parse("f.yaml", []byte(tt.text))
			var problems strict.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("Parse error = %v; want strict.Problems", err)
			}
			want := make([]string, len(tt.want))
			for i, w := range tt.want {
				want[i] = "f.yaml:" + w
			}
			if diff := cmp.Diff(want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseNotices(t *testing.T) {
	s, err := scenario.Parse("f.yaml", []byte(header+`closedLoop: true
node: {capacity: {memory: 1Gi}}
config: {evictionHard: {}, podPidsLimit: 7}
steps:
- {at: 0s, signals: {memory.available: 1Gi, pid.available: 3}, add: [{namespace: a, name: b}]}
- {at: 1s, gone: [a/b], usage: {a/b: {pids: 3}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"f.yaml:5: config.podPidsLimit: has no effect here: evictd sets no limits on pods; a threshold on pid.available guards the node",
		"f.yaml:7: steps[0].signals.memory.available: is ignored: a closed loop computes it",
		"f.yaml:8: steps[1].usage.a/b: has no effect: the pod is gone in this step",
	}
	var got []string
	for _, n := range s.Notices {
		got = append(got, n.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

// FuzzParse replays every input that Parse accepts.
func FuzzParse(f *testing.F) {
	// Short seeds, because the fuzzer spends its time shortening long inputs.
	for _, seed := range []string{
		header,
		header + none + "pods: [{namespace: a, name: b, containers: [{name: c, usage: {memory: 9223372036854775807}}, {name: d, usage: {memory: 8E}}]}]\nsteps: [{at: 0s, signals: {memory.available: 8E}}]\n",
		header + "closedLoop: true\nnode: {capacity: {memory: 1}, system: {memory: 8E}}\nconfig: {evictionHard: {memory.available: 8E}, evictionMinimumReclaim: {memory.available: 1e30%}}\nsteps: [{at: 2562047h}]\n",
		header + "config: {evictionHard: {nodefs.available: 1Gi}}\npods: [&p {namespace: a, name: b}]\nsteps: [{at: 0s, signals: {nodefs.available: 1, pid.available: null}, afterReclaim: {images: {nodefs.available: 2Gi}}, admit: [*p]}, {at: 1s, gone: [a/b], add: [*p]}]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := scenario.Parse("f.yaml", data)
		if err != nil {
			var problems strict.Problems
			if !errors.As(err, &problems) || len(problems) == 0 {
				t.Fatalf("Parse error = %#v; want strict.Problems", err)
			}
			return
		}
		var first, second, text strings.Builder
		if err := s.WriteJSON(&first); err != nil {
			t.Fatal(err)
		}
		if err := s.WriteJSON(&second); err != nil {
			t.Fatal(err)
		}
		if first.String() != second.String() {
			t.Error("a second replay gives another output")
		}
		if err := s.WriteText(&text); err != nil {
			t.Fatal(err)
		}
	})
}
