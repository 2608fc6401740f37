package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/tests/vm/image"
)

// resultsDir keeps the last result of each command on each machine of the matrix: results.json, which a run changes only
// where it has something new to say, and results.md, which is made of it for people.
const resultsDir = "tests/vm"

// entry is the last result of a command, which is a suite or a part of one, on a machine.
type entry struct {
	Machine string `json:"machine"`
	Suite   string `json:"suite"`
	Command string `json:"command"`
	Kernel  string `json:"kernel"`
	// Date is the day and Commit the evictd that was run, with "-dirty" if it was changed since.
	Date    string   `json:"date"`
	Commit  string   `json:"commit"`
	Result  string   `json:"result"`
	Seconds int      `json:"seconds"`
	Passed  int      `json:"passed,omitempty"`
	Failed  int      `json:"failed,omitempty"`
	Skipped int      `json:"skipped,omitempty"`
	Remarks []string `json:"remarks,omitempty"`
}

// place is a suite on a machine.
type place struct{ machine, suite string }

func (e entry) place() place { return place{e.Machine, e.Suite} }

// results are entries in the order of the matrix.
type results []entry

// entriesOf are a machine's results.
func entriesOf(r record, now time.Time, commit string) results {
	var all results
	for _, p := range r.planned {
		w := row{}
		w.add(p, r.report.Results)
		all = append(all, entry{
			Machine: r.variant.name, Suite: p.suite, Command: p.command.Name, Kernel: r.report.Release,
			Date: now.Format(time.DateOnly), Commit: commit, Result: w.verdict(), Seconds: int(w.took.Round(time.Second).Seconds()),
			Passed: w.outcome.passed, Failed: w.outcome.failed, Skipped: len(w.outcome.skipped), Remarks: w.remarks(),
		})
	}
	// What befell the machine while no command ran stands with its first.
	for _, l := range lossesOf(r) {
		if len(all) > 0 {
			all[0].Result, all[0].Remarks = failed, append([]string{"LOST " + l.why}, all[0].Remarks...)
		}
	}
	return all
}

// merge returns what is known after a run: its own entries, and of those before it what it did not touch and the matrix
// still has. A suite that was run as a whole, and not by classes, leaves none.
func (r results) merge(run results, whole bool, matrix []place) results {
	var all results
	for _, at := range matrix {
		var here results
		again := false
		for _, e := range run {
			if e.place() == at {
				here, again = append(here, e), true
			}
		}
		for _, e := range r {
			known := slices.ContainsFunc(here, func(n entry) bool { return n.Command == e.Command })
			if e.place() == at && !known && (!again || !whole) {
				here = append(here, e)
			}
		}
		slices.SortStableFunc(here, func(a, b entry) int { return cmp.Compare(a.rank(), b.rank()) })
		all = append(all, here...)
	}
	return all
}

// rank is the place of an entry among those of its suite: of classes, that in which they are listed.
func (e entry) rank() int {
	return slices.IndexFunc(classesOf(e.Suite), func(c class) bool { return e.Suite+"/"+c.name == e.Command })
}

// missing are the classes of a suite on a machine of the matrix that have no entry.
func (r results) missing(v variant, s suite) []string {
	var names []string
	for _, c := range s.classes {
		if c.in(profileFull) && v.hasClass(c) && !slices.ContainsFunc(r, func(e entry) bool { return e.Machine == v.name && e.Command == s.name+"/"+c.name }) {
			names = append(names, c.name)
		}
	}
	return names
}

// places are all suites on all machines of the full profile, in order. A suite that has nothing to run on a machine has
// none.
func places() []place {
	var all []place
	eachPlace(func(v variant, s suite) { all = append(all, place{v.name, s.name}) })
	return all
}

func eachPlace(f func(variant, suite)) {
	for _, v := range matrix(image.Series()) {
		for _, s := range suites {
			if slices.Contains(s.profiles, profileFull) && v.has(s) && (s.commands == nil || s.commands(v) != nil) {
				f(v, s)
			}
		}
	}
}

// readResults reads results.json; there are none before the first run.
func readResults(dir string) (results, error) {
	text, err := os.ReadFile(filepath.Join(dir, "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("read results: %s: %w", filepath.Join(dir, "results.json"), err)
	}
	return r, nil
}

// write replaces both files.
func (r results) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "results.md"), r.document(), 0o644); err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// document is results.md: a row for each suite on each machine.
func (r results) document() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, "# The whole matrix, as last run\n\nWritten by `make test-vm-full`, of each part what it was when it was run last. Times are of emulated processors.")
	fmt.Fprintln(&b, "\n| machine | kernel | suite | result | time | tests | run on | commit |\n|---|---|---|---|---|---|---|---|")
	var remarks, absent []string
	eachPlace(func(v variant, s suite) {
		var here results
		for _, e := range r {
			if e.place() == (place{v.name, s.name}) {
				here = append(here, e)
			}
		}
		missing := r.missing(v, s)
		if len(here) == 0 {
			if last := len(absent) - 1; last >= 0 && strings.HasPrefix(absent[last], v.name+": ") {
				absent[last] += ", " + s.name
			} else {
				absent = append(absent, v.name+": not run yet: "+s.name)
			}
			return
		}
		fmt.Fprintln(&b, here.line(missing))
		for _, e := range here {
			for _, line := range e.Remarks {
				remarks = append(remarks, e.Machine+" "+e.Suite+": "+line)
			}
		}
		if len(missing) > 0 {
			remarks = append(remarks, v.name+" "+s.name+": not run yet: "+strings.Join(missing, ", "))
		}
	})
	remarks = append(remarks, absent...)
	for _, s := range specials {
		if s.kernels != nil {
			remarks = append(remarks, fmt.Sprintf("%s only on %s: %s", s.name, strings.Join(s.kernels, ", "), s.why))
		}
	}
	fmt.Fprintln(&b)
	for _, line := range remarks {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	return b.Bytes()
}

// line is the row of a suite on a machine, of which the classes that are missing have not been run.
func (r results) line(missing []string) string {
	verdict, seconds := ok, 0
	var o outcome
	var dates, commits []string
	for _, e := range r {
		// The worst of them: failed, then not run, then ok.
		if e.Result == failed || verdict == ok {
			verdict = e.Result
		}
		seconds += e.Seconds
		o.passed, o.failed = o.passed+e.Passed, o.failed+e.Failed
		o.skipped = append(o.skipped, make([]string, e.Skipped)...)
		dates, commits = append(dates, e.Date), append(commits, e.Commit)
	}
	if verdict == ok && len(missing) > 0 {
		verdict = "ok in part"
	}
	tests := ""
	if o.passed+o.failed+len(o.skipped) > 0 {
		tests = o.String()
	}
	slices.Sort(dates)
	slices.Sort(commits)
	return fmt.Sprintf("| %s | %s | %s | %s | %d s | %s | %s | %s |", r[0].Machine, r[0].Kernel, r[0].Suite, verdict, seconds, tests,
		strings.Join(slices.Compact(dates), ", "), strings.Join(slices.Compact(commits), ", "))
}

// keep enters the results of a machine, of whole suites or of some of their classes.
func (r record) keep(dir string, now time.Time, commit string, whole bool) error {
	before, err := readResults(dir)
	if err != nil {
		return err
	}
	return before.merge(entriesOf(r, now, commit), whole, places()).write(dir)
}

// commit names the evictd in the working directory, "unknown" where git does not. That results were written changes
// no evictd.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=10", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	if exec.CommandContext(ctx, "git", "diff", "--quiet", "HEAD", "--", ".", ":!"+resultsDir+"/results.*").Run() != nil {
		name += "-dirty"
	}
	return name
}
