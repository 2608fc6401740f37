package scenario_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/scenario"
)

const shutdownHeader = "apiVersion: evictd.io/v1alpha1\nkind: ShutdownScenario\n"

func TestParseShutdownErrors(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string // after the file's name
	}{
		{"empty file", "", []string{" the file is empty"}},
		{"a scenario of evictions", header + "node: {}\n", []string{
			`2: kind: is "Scenario"; want ShutdownScenario`,
			"3: node: is not a field here",
		}},
		{"unknown fields", shutdownHeader + `config: {shutdownGracePeriods: 30s}
pods:
- {namespace: a, name: b, stopAfter: 1s, daemonset: true}
steps:
- {at: 0s, start: true}
`, []string{
			"3: config.shutdownGracePeriods: is not a field here; did you mean shutdownGracePeriod?",
			"5: pods[0].stopAfter: is not a field here; did you mean stopsAfter?",
			"5: pods[0].daemonset: is not a field here; did you mean daemonSet?",
			"7: steps[0].start: is not a field here",
		}},
		{"values", shutdownHeader + `inhibitDelayMax: -5s
config: {shutdownGracePeriod: 10s, shutdownGracePeriodCriticalPods: 30s}
pods:
- {namespace: a, name: b, stopsAfter: soon, daemonSet: 1, terminationGracePeriodSeconds: -1}
- {namespace: a, name: b/c}
- {namespace: a}
steps:
- {at: 5s, begin: true, cancel: true}
- {at: 4s, begin: yes}
- {}
`, []string{
			`3: inhibitDelayMax: "-5s" is before the start`,
			"4: config.shutdownGracePeriodCriticalPods: 30s is more than shutdownGracePeriod, of which it is a part and which is 10s",
			`6: pods[0].stopsAfter: "soon" is not a duration; want one such as 90s or 1m30s`,
			"6: pods[0].daemonSet: is the number 1; want true or false",
			"6: pods[0].terminationGracePeriodSeconds: -1 is below 0",
			`7: pods[1].name: "b/c" is not a valid name; want at most 253 printable characters without / and spaces`,
			"8: pods[2].name: is missing",
			"10: steps[0].cancel: can't be in the same step as begin; make them two steps",
			`11: steps[1].begin: is the string "yes"; want true or false`,
			"11: steps[1].at: 4s is earlier than the step above, at 5s; want steps in time order",
			"12: steps[2].at: is missing; want a duration from the start such as 90s",
		}},
		{"duplicates", shutdownHeader + `config: {shutdownGracePeriod: 10s}
pods:
- {namespace: a, name: b}
- {namespace: a, name: c, uid: a/b}
steps:
- {at: 0s, add: [{namespace: a, name: b, uid: x}, {namespace: a, name: d}, {namespace: a, name: e, uid: x}]}
`, []string{
			`6: pods[1].uid: "a/b" is the UID of another pod of this file`,
			"8: steps[0].add[0].name: pod a/b is in this file twice",
			`8: steps[0].add[2].uid: "x" is the UID of another pod of this file`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := scenario.ParseShutdown("f", []byte(tt.text))
			var problems strict.Problems
			if !errors.As(err, &problems) {
				t.Fatalf("ParseShutdown() = %v; want problems", err)
			}
			var got []string
			for line := range strings.Lines(problems.Error()) {
				got = append(got, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "f:"))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Without a schedule no pod is stopped, and a notice says so.
func TestShutdownWithoutGroups(t *testing.T) {
	s, err := scenario.ParseShutdown("f", []byte(shutdownHeader+"pods: [{namespace: a, name: b}]\nsteps: [{at: 0s, begin: true}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Notices) != 1 || !strings.Contains(s.Notices[0].Message, "configures no graceful shutdown") {
		t.Errorf("notices = %v; want one that no graceful shutdown is configured", s.Notices)
	}
	var got strings.Builder
	if err := s.WriteJSON(&got); err != nil {
		t.Fatal(err)
	}
	want := `{"groups":[],"needs":"0s","allowed":null}
{"at":"0s","event":"begin","phase":"idle","group":null,"added":[],"gone":[],"stop":[],"kill":[]}
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
