package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// table is the result of one run, printed to a terminal.
type table struct {
	results results
	omitted []string
}

func newTable(records []record) *table {
	t := &table{}
	for _, r := range records {
		for _, o := range r.omitted {
			t.omitted = append(t.omitted, r.variant.name+" "+o)
		}
		t.results = append(t.results, entriesOf(r, time.Time{}, "")...)
	}
	return t
}

func (t *table) passed() bool {
	return len(t.results) > 0 && !slices.ContainsFunc(t.results, func(e entry) bool { return e.Result != ok })
}

// print writes a row for each suite on each machine, and then failures, skips and omitted commands.
func (t *table) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nmachine\tsuite\tresult\ttime\ttests")
	var done []place
	for _, e := range t.results {
		if p := e.place(); !slices.Contains(done, p) {
			done = append(done, p)
			s := t.results.at(p).sum()
			fmt.Fprintf(w, "%s\t%s\t%s\t%d s\t%s\n", s.Machine, s.Suite, s.Result, s.Seconds, s.tests())
		}
	}
	w.Flush()
	for _, line := range t.results.notOK() {
		fmt.Fprintln(out, line)
	}
	for _, s := range t.results.skips() {
		fmt.Fprintf(out, "skipped on %s: %s: %s\n", strings.Join(s.machines, ", "), strings.Join(s.tests, ", "), s.reason)
	}
	for _, o := range t.omitted {
		fmt.Fprintln(out, "left to test-vm-full, because it exceeds the budget: "+o)
	}
}

// at returns the results of a suite on a machine.
func (r results) at(p place) results {
	var here results
	for _, e := range r {
		if e.place() == p {
			here = append(here, e)
		}
	}
	return here
}

// sum returns one entry with the sums of r, which are the results of a suite on a machine.
func (r results) sum() entry {
	s := entry{Machine: r[0].Machine, Suite: r[0].Suite, Kernel: r[0].Kernel, Result: ok}
	for _, e := range r {
		// The worst result: failed, then not run, then ok.
		if e.Result == failed || s.Result == ok {
			s.Result = e.Result
		}
		s.Seconds += e.Seconds
		s.Passed, s.Failed, s.Skipped = s.Passed+e.Passed, s.Failed+e.Failed, s.Skipped+e.Skipped
	}
	return s
}

// tests returns the non-zero counts as text.
func (e entry) tests() string {
	var counts []string
	for _, c := range []struct {
		n    int
		what string
	}{{e.Passed, "passed"}, {e.Failed, "failed"}, {e.Skipped, "skipped"}} {
		if c.n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", c.n, c.what))
		}
	}
	return strings.Join(counts, ", ")
}

// notOK returns a line for each remark on a command that failed or was not run.
func (r results) notOK() []string {
	var lines []string
	for _, e := range r {
		for _, remark := range e.Remarks {
			if !strings.HasPrefix(remark, skippedRemark) {
				lines = append(lines, e.Machine+" "+e.Suite+": "+remark)
			}
		}
	}
	return lines
}

// skip has the tests that were skipped for one reason on the same machines.
type skip struct {
	reason          string
	tests, machines []string
}

// skips returns the skipped tests, grouped by reason and machines. It drops the text after a reason and two spaces:
// that is an error with paths and PIDs, which differ from run to run.
func (r results) skips() []skip {
	var each []skip // of one test
	for _, e := range r {
		for _, remark := range e.Remarks {
			text, skipped := strings.CutPrefix(remark, skippedRemark)
			if !skipped {
				continue
			}
			tests, reason, _ := strings.Cut(text, ": ")
			reason, _, _ = strings.Cut(reason, ":  ")
			for test := range strings.SplitSeq(tests, ", ") {
				i := slices.IndexFunc(each, func(s skip) bool { return s.reason == reason && s.tests[0] == test })
				if i < 0 {
					i = len(each)
					each = append(each, skip{reason: reason, tests: []string{test}})
				}
				if !slices.Contains(each[i].machines, e.Machine) {
					each[i].machines = append(each[i].machines, e.Machine)
				}
			}
		}
	}
	var all []skip
	for _, s := range each {
		i := slices.IndexFunc(all, func(a skip) bool { return a.reason == s.reason && slices.Equal(a.machines, s.machines) })
		if i < 0 {
			all = append(all, s)
		} else {
			all[i].tests = append(all[i].tests, s.tests...)
		}
	}
	return all
}

// document returns results.md: a row for each suite on each machine, and then remarks and skips.
func (r results) document() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, "# The last results of the whole matrix\n\nWritten by `make test-vm-full`: the last result of each suite on each machine. Times are of emulated processors.")
	fmt.Fprintln(&b, "\n| machine | kernel | suite | result | time | tests | run on | commit |\n|---|---|---|---|---|---|---|---|")
	var remarks []string
	eachPlace(func(v variant, s suite) {
		here, missing := r.at(place{v.name, s.name}), r.missing(v, s)
		if len(here) == 0 {
			remarks = append(remarks, v.name+" "+s.name+": not run yet")
			return
		}
		sum := here.sum()
		if len(missing) > 0 {
			remarks = append(remarks, v.name+" "+s.name+": not run yet: "+strings.Join(missing, ", "))
			if sum.Result == ok {
				sum.Result = "ok in part"
			}
		}
		var dates, commits []string
		for _, e := range here {
			dates, commits = append(dates, e.Date), append(commits, e.Commit)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %d s | %s | %s | %s |\n", sum.Machine, sum.Kernel, sum.Suite, sum.Result, sum.Seconds, sum.tests(), list(dates), list(commits))
	})
	for _, s := range specials {
		if s.kernels != nil {
			remarks = append(remarks, fmt.Sprintf("%s only on %s: %s", s.name, strings.Join(s.kernels, ", "), s.why))
		}
	}
	fmt.Fprintln(&b)
	for _, line := range append(r.notOK(), remarks...) {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	fmt.Fprintln(&b, "\n## Skipped\n\n| reason | tests | machines |\n|---|---|---|")
	for _, s := range r.skips() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", s.reason, strings.Join(s.tests, ", "), strings.Join(s.machines, ", "))
	}
	return b.Bytes()
}

// list joins the distinct values in order.
func list(all []string) string {
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}
