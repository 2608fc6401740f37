package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOutcomeOf(t *testing.T) {
	for _, tt := range []struct {
		name, output string
		want         outcome
		err          error
	}{
		{
			name: "one of each",
			output: `=== RUN   TestArm
--- PASS: TestArm (0.01s)
=== RUN   TestFIFO
    trigger_test.go:31: needs SCHED_FIFO: operation not permitted
--- SKIP: TestFIFO (0.00s)
=== RUN   TestParse
=== RUN   TestParse/empty
    psi_test.go:12: parse = 1; want 0
--- FAIL: TestParse (0.00s)
    --- FAIL: TestParse/empty (0.00s)
    --- SKIP: TestParse/root (0.00s)
FAIL`,
			want: outcome{passed: 1, failed: 1, failures: []string{"TestParse/empty"}, skipped: []string{"TestFIFO: needs SCHED_FIFO: operation not permitted"}},
		},
		{
			name:   "failures of each depth",
			output: "--- FAIL: TestA (1.00s)\n    --- FAIL: TestA/b (0.10s)\n        --- FAIL: TestA/b/c (0.10s)\n    --- FAIL: TestA/d (0.10s)\n--- FAIL: TestAB (0.00s)\n",
			want:   outcome{failed: 2, failures: []string{"TestA/b/c", "TestA/d", "TestAB"}},
		},
		{name: "a skip without a reason after a test that logs", output: "=== RUN   TestA\n    a_test.go:1: fine\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n--- SKIP: TestB (0.00s)\n", want: outcome{passed: 1, skipped: []string{"TestB: "}}},
		{name: "nothing fits -run", output: "testing: warning: no tests to run\nPASS\n", err: errNoTests},
		{name: "what a tested program prints", output: "2026/11/21 --- PASS: no verdict (1s)\n--- PASSED: TestX (0s)\n"},
		{name: "nothing"},
	} {
		got, err := outcomeOf(strings.Split(tt.output, "\n"))
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(outcome{})); diff != "" || !errors.Is(err, tt.err) {
			t.Errorf("%s: outcomeOf = %v, differs (-want +got):\n%s", tt.name, err, diff)
		}
	}
}
