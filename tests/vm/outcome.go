package main

import (
	"errors"
	"regexp"
	"strings"
)

// outcome counts the tests of a Go test program by what it prints with -test.v, subtests apart.
type outcome struct {
	passed, failed int
	// broken are the names of those that failed, subtests instead of the tests that failed for them.
	broken []string
	// skipped are the names, and why.
	skipped []string
}

var (
	// --- SKIP: TestReclaim (0.00s)
	verdictLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) \(`)
	//     --- FAIL: TestParse/empty (0.00s)
	failedLine = regexp.MustCompile(`^ *--- FAIL: (\S+) \(`)
	//     reclaim_test.go:31: needs process_mrelease
	logLine = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)
	// A program without a matching test succeeds; so does one that was not asked for its tests.
	noTests = "testing: warning: no tests to run"
)

var errNoTests = errors.New("no test fits the expression")

// outcomeOf reads a program's output. It is an error that no test was run.
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
			// A test comes before its subtests.
			if last := len(o.broken) - 1; last >= 0 && strings.HasPrefix(m[1], o.broken[last]+"/") {
				o.broken = o.broken[:last]
			}
			o.broken = append(o.broken, m[1])
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

// byReason puts tests that were skipped for the same reason, as in "TestA: needs root", into one line.
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
