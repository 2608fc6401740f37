package main

import (
	"errors"
	"regexp"
	"strings"
)

// outcome has the results in the output of a Go test program with -test.v. The counts are without subtests.
type outcome struct {
	passed, failed int
	// failures are the names of failed tests; of a test with failed subtests, only those of the subtests.
	failures []string
	// skipped are the names and the reasons: "TestA: needs root".
	skipped []string
}

var (
	// --- SKIP: TestReclaim (0.00s)
	verdictLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) \(`)
	//     --- FAIL: TestParse/empty (0.00s)
	failedLine = regexp.MustCompile(`^ *--- FAIL: (\S+) \(`)
	//     reclaim_test.go:31: needs process_mrelease
	logLine = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)
	// A test program in which no test matches the expression exits with 0.
	noTests = "testing: warning: no tests to run"
)

var errNoTests = errors.New("no test matches the expression")

// outcomeOf parses a program's output. It returns errNoTests if no test was run.
func outcomeOf(output []string) (outcome, error) {
	var o outcome
	why := ""
	for _, line := range output {
		if strings.HasPrefix(line, "=== RUN") {
			why = ""
		}
		if m := logLine.FindStringSubmatch(line); m != nil {
			why = m[1]
		}
		if line == noTests {
			return o, errNoTests
		}
		if m := failedLine.FindStringSubmatch(line); m != nil {
			// The line of a test precedes those of its subtests.
			if last := len(o.failures) - 1; last >= 0 && strings.HasPrefix(m[1], o.failures[last]+"/") {
				o.failures = o.failures[:last]
			}
			o.failures = append(o.failures, m[1])
		}
		m := verdictLine.FindStringSubmatch(line)
		switch {
		case m == nil:
		case m[1] == "PASS":
			o.passed++
		case m[1] == "FAIL":
			o.failed++
		default:
			o.skipped = append(o.skipped, m[2]+": "+why)
		}
	}
	return o, nil
}

// byReason joins tests that were skipped for the same reason into one line: "TestA, TestB: needs root".
func byReason(skipped []string) []string {
	var reasons []string
	tests := make(map[string][]string)
	for _, s := range skipped {
		test, reason, _ := strings.Cut(s, ": ")
		if tests[reason] == nil {
			reasons = append(reasons, reason)
		}
		tests[reason] = append(tests[reason], test)
	}
	for i, reason := range reasons {
		reasons[i] = strings.Join(tests[reason], ", ") + ": " + reason
	}
	return reasons
}
