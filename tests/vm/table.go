package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/evictd/evictd/tests/vm/machine"
)

// The verdicts on a suite.
const (
	ok     = "ok"
	failed = "FAIL"
	notRun = "not run"
)

// row is one suite on one machine.
type row struct {
	machine, kernel, suite string
	outcome                outcome
	goTests                bool
	took                   time.Duration
	// failures are the commands that failed and why, notRun those that the machine's end prevented.
	failures, notRun []string
}

// table is what became of all machines.
type table struct {
	rows    []row
	omitted []string
	// lost are machines that did not get to their end, or were in trouble while no command ran that would tell.
	lost []loss
}

// loss is what befell a machine, and not a command.
type loss struct{ machine, why string }

func newTable(records []record) *table {
	t := &table{}
	for _, r := range records {
		t.lost = append(t.lost, lossesOf(r)...)
		for _, o := range r.omitted {
			t.omitted = append(t.omitted, r.variant.name+" "+o)
		}
		t.rows = append(t.rows, rowsOf(r)...)
	}
	return t
}

// lossesOf is what befell a machine besides its commands.
func lossesOf(r record) []loss {
	var lost []loss
	if r.err != nil {
		lost = append(lost, loss{r.variant.name, r.err.Error()})
	}
	for _, e := range r.report.Troubles {
		if e.Command == "" && e.Trouble.Fails() {
			lost = append(lost, loss{r.variant.name, fmt.Sprintf("%s between the commands: %s", e.Trouble, e.Text)})
		}
	}
	return lost
}

// rowsOf gathers the results of a machine by suites, in the order of the plan.
func rowsOf(r record) []row {
	var rows []row
	for _, p := range r.planned {
		i := slices.IndexFunc(rows, func(row row) bool { return row.suite == p.suite })
		if i < 0 {
			i = len(rows)
			rows = append(rows, row{machine: r.variant.name, kernel: r.report.Release, suite: p.suite})
		}
		rows[i].add(p, r.report.Results)
	}
	return rows
}

// add counts what became of a command.
func (w *row) add(p planned, results []machine.Result) {
	i := slices.IndexFunc(results, func(r machine.Result) bool { return r.Command == p.command.Name })
	if i < 0 {
		w.notRun = append(w.notRun, p.command.Name)
		return
	}
	result := results[i]
	w.took += result.Duration
	err := result.Err
	if p.goTest {
		w.goTests = true
		o, noTests := outcomeOf(result.Output)
		w.outcome.add(o)
		err = errors.Join(err, noTests)
		if err != nil && len(o.broken) > 0 {
			err = fmt.Errorf("%s: %w", strings.Join(o.broken, ", "), err)
		}
	}
	if err != nil {
		w.failures = append(w.failures, p.command.Name+": "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

func (w row) verdict() string {
	switch {
	case len(w.failures) > 0:
		return failed
	case len(w.notRun) > 0:
		return notRun
	}
	return ok
}

// summary is what was counted.
func (w row) summary() string {
	if !w.goTests {
		return ""
	}
	return w.outcome.String()
}

func (t *table) passed() bool {
	return len(t.lost) == 0 && len(t.rows) > 0 && !slices.ContainsFunc(t.rows, func(w row) bool { return w.verdict() != ok })
}

// print writes the table for a terminal, and below it what needs explanation.
func (t *table) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nmachine\tsuite\tresult\ttime\ttests")
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f s\t%s\n", r.machine, r.suite, r.verdict(), r.took.Seconds(), r.summary())
	}
	w.Flush()
	for _, line := range t.remarks() {
		fmt.Fprintln(out, line)
	}
}

// remarks are a line for all of the row that was not run or did not pass.
func (w row) remarks() []string {
	var lines []string
	for _, f := range w.failures {
		lines = append(lines, "FAIL "+f)
	}
	for _, n := range w.notRun {
		lines = append(lines, "not run, as the machine ended: "+n)
	}
	for _, s := range byReason(w.outcome.skipped) {
		lines = append(lines, "skipped: "+s)
	}
	return lines
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

// remarks are a line for all that was not run or did not pass.
func (t *table) remarks() []string {
	var lines []string
	for _, l := range t.lost {
		lines = append(lines, l.machine+": LOST "+l.why)
	}
	for _, r := range t.rows {
		for _, line := range r.remarks() {
			lines = append(lines, r.machine+": "+line)
		}
	}
	for _, o := range t.omitted {
		lines = append(lines, "moved to test-vm-full, as it does not fit the time: "+o)
	}
	return lines
}
