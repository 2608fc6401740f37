package scenario_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/scenario"
)

// TestReplay tests how a file's steps change the observations. The decisions are tested
// in agent/evict.
func TestReplay(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string // for each step the signals met, the reclaims and the pods evicted
	}{
		{"usage of containers changes the sum", `
config: {evictionHard: {memory.available: 1Gi}, enforceNodeAllocatable: [none]}
pods:
- {namespace: a, name: sum, containers: [{name: c, usage: {memory: 1Mi}}, {name: d, usage: {memory: 1Mi}}], ephemeralContainers: [{name: e, usage: {memory: 1Mi}}]}
- {namespace: a, name: given, containers: [{name: c, usage: {memory: 9Mi}}], usage: {memory: 4Mi}}
steps:
- {at: 0s, signals: {memory.available: 2Gi}, usage: {a/sum: {containers: {d: {memory: 3Mi}}}, a/given: {containers: {c: {memory: 90Mi}}}}}
- {at: 1s, signals: {memory.available: 1020Mi}}
- {at: 2s, gone: [a/sum], signals: {}}
`, []string{
			"[] [] []",
			"[memory.available] [] [a/sum]",
			"[memory.available] [] [a/given]",
		}},
		{"a pod-level value replaces the sum in all later steps", `
config: {evictionHard: {memory.available: 1Gi}, enforceNodeAllocatable: [none]}
pods:
- {namespace: a, name: a, containers: [{name: c, usage: {memory: 2Mi}}]}
- {namespace: a, name: b, containers: [{name: c, usage: {memory: 4Mi}}]}
steps:
- {at: 0s, signals: {memory.available: 2Gi}, usage: {a/b: {memory: 1Mi}}}
- {at: 1s, signals: {memory.available: 1023Mi}, usage: {a/b: {containers: {c: {memory: 40Mi}}}}}
`, []string{
			"[] [] []",
			"[memory.available] [] [a/a]",
		}},
		{"a value applies until the next one", `
config: {evictionHard: {pid.available: 100}}
steps:
- {at: 0s, signals: {pid.available: 99}}
- {at: 1s}
- {at: 1s, signals: {pid.available: null}}
- {at: 2s}
- {at: 3s, signals: {pid.available: 99}}
`, []string{
			"[pid.available] [] []",
			"[pid.available] [] []",
			"[] [] []",
			"[] [] []",
			"[pid.available] [] []",
		}},
		{"a reclaim's effect on other signals applies from the next step", `
config: {evictionHard: {memory.available: 1Gi, nodefs.available: 1Gi, pid.available: 100}, enforceNodeAllocatable: [none]}
pods:
- {namespace: a, name: a, containers: [{name: c, usage: {memory: 9Gi, rootfs: 9Gi}}], usage: {pids: 900}}
- {namespace: a, name: b, containers: [{name: c, usage: {memory: 1Gi, rootfs: 1Gi}}], usage: {pids: 90}}
steps:
- at: 0s
  signals: {memory.available: 2Gi, nodefs.available: 1Mi, pid.available: 200}
  afterReclaim: {containers: {memory.available: 1Mi, nodefs.available: 2Gi, pid.available: 9}}
- {at: 0s}
- {at: 0s}
`, []string{
			"[nodefs.available] [containers] []",
			"[memory.available pid.available] [] [a/a]",
			"[memory.available pid.available] [] []",
		}},
		{"only the ordered kind is reclaimed", `
node: {filesystems: imagefs}
config: {evictionHard: {nodefs.available: 1Gi, imagefs.available: 1Gi}}
pods:
- {namespace: a, name: a, containers: [{name: c, usage: {logs: 9Gi}}]}
steps:
- at: 0s
  signals: {nodefs.available: 1Mi}
  afterReclaim: {containers: {nodefs.available: 2Mi}, images: {nodefs.available: 9Gi}}
- at: 1m
  signals: {nodefs.available: 9Gi, imagefs.available: 1Mi}
  afterReclaim: {containers: {imagefs.available: 2Gi}, images: {imagefs.available: 0}}
- at: 2m
`, []string{
			"[nodefs.available] [containers] [a/a]",
			"[imagefs.available] [containers] []",
			"[] [] []",
		}},
		{"a reclaim makes the signal unreadable", `
config: {evictionHard: {nodefs.available: 1Gi}}
pods:
- {namespace: a, name: a, containers: [{name: c, usage: {logs: 9Gi}}]}
steps:
- at: 0s
  signals: {nodefs.available: 1Mi}
  afterReclaim: {containers: {nodefs.available: null}}
- {at: 1s}
`, []string{
			"[nodefs.available] [containers] []",
			"[] [] []",
		}},
		{"gone and added in one step", `
config: {evictionHard: {memory.available: 1Gi}, enforceNodeAllocatable: [none]}
pods: [&a {namespace: a, name: a, containers: [{name: c, usage: {memory: 1Gi}}]}]
steps:
- {at: 0s, signals: {memory.available: 1Mi}}
- {at: 0s, gone: [a/a], add: [*a]}
- {at: 0s, gone: [a/a]}
`, []string{
			"[memory.available] [] [a/a]",
			"[memory.available] [] [a/a]",
			"[memory.available] [] []",
		}},
		{"closed loop: a hard threshold ends the grace period", `
closedLoop: true
node: {capacity: {memory: 10Gi}}
config:
  evictionHard: {memory.available: 1Gi}
  evictionSoft: {memory.available: 2Gi}
  evictionSoftGracePeriod: {memory.available: 1s}
  evictionMaxPodGracePeriod: -1
  enforceNodeAllocatable: [none]
pods:
- {namespace: a, name: slow, terminationGracePeriodSeconds: 600, containers: [{name: c, usage: {memory: 8500Mi}}]}
- {namespace: a, name: grows, noStats: true, containers: [{name: c, usage: {memory: 1Mi}}]}
steps:
- {at: 0s}
- {at: 1s}
- {at: 9m, usage: {a/grows: {memory: 1Gi}}}
- {at: 9m}
`, []string{
			"[memory.available] [] []",
			"[memory.available] [] [a/slow]",
			"[memory.available] [] []",
			"[] [] []",
		}},
		{"closed loop: deleted twice", `
closedLoop: true
node: {capacity: {memory: 10Gi}}
config:
  evictionHard: {memory.available: 1Mi}
  evictionSoft: {memory.available: 1Gi}
  evictionSoftGracePeriod: {memory.available: 1h}
  enforceNodeAllocatable: [none]
pods:
- {namespace: a, name: a, containers: [{name: c, usage: {memory: 9500Mi}}]}
steps:
- {at: 0s, deleted: {a/a: 5s}}
- {at: 1s, deleted: {a/a: 1h}}
- {at: 6s}
`, []string{
			"[memory.available] [] []",
			"[memory.available] [] []",
			"[] [] []",
		}},
		{"closed loop: the pods have their own limit", `
closedLoop: true
node: {capacity: {memory: 10Gi, allocatableMemory: 2Gi}, system: {memory: 1Gi}}
config: {evictionHard: {memory.available: 1Gi}}
pods:
- {namespace: a, name: a, containers: [{name: c, usage: {memory: 1025Mi}}]}
steps:
- {at: 0s, signals: {memory.available: 1Mi}}
- {at: 0s}
`, []string{
			"[allocatableMemory.available] [] [a/a]",
			"[] [] []",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := scenario.Parse("test.yaml", []byte(header+tt.text))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for step := range s.Replay() {
				var evicted []string
				for _, e := range step.Evictions {
					evicted = append(evicted, e.Pod)
				}
				got = append(got, fmt.Sprintf("%v %v %v", step.Met, step.Reclaim, evicted))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
