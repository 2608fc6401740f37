package main

import (
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
	"github.com/evictd/evictd/tests/vm/machine"
)

// resultsDir has the last result of each command on each machine of the matrix: results.json, in which a run replaces
// only its own entries, and results.md, which is generated from it.
const resultsDir = "tests/vm"

// entry is the last result of a command on a machine. A command runs a suite or a part of one.
type entry struct {
	Machine string `json:"machine"`
	Suite   string `json:"suite"`
	Command string `json:"command"`
	Kernel  string `json:"kernel"`
	// Date is the day of the run. Commit is the tested commit, with "-dirty" for a changed working directory.
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

// The results of a command.
const (
	ok     = "ok"
	failed = "FAIL"
	notRun = "not run"
)

// skippedRemark is the prefix of a remark on skipped tests: "skipped: TestA, TestB: needs root".
const skippedRemark = "skipped: "

// entriesOf returns the results of a machine.
func entriesOf(r record, now time.Time, commit string) results {
	var all results
	for _, p := range r.planned {
		e := entry{
			Machine: r.variant.name, Suite: p.suite, Command: p.command.Name, Kernel: r.report.Release,
			Date: now.Format(time.DateOnly), Commit: commit,
		}
		i := slices.IndexFunc(r.report.Results, func(r machine.Result) bool { return r.Command == p.command.Name })
		if i < 0 {
			e.Result, e.Remarks = notRun, []string{"not run, because the machine ended: " + p.command.Name}
		} else {
			e.enter(r.report.Results[i], p.goTest)
		}
		all = append(all, e)
	}
	// A problem of the machine while no command ran is recorded with its first command.
	for _, why := range lossesOf(r) {
		if len(all) == 0 {
			all = results{{Machine: r.variant.name, Suite: "boot", Command: "boot"}}
		}
		all[0].Result, all[0].Remarks = failed, append([]string{"LOST " + why}, all[0].Remarks...)
	}
	return all
}

// enter sets the fields of an entry from the result of its command.
func (e *entry) enter(r machine.Result, goTest bool) {
	e.Result, e.Seconds = ok, int(r.Duration.Round(time.Second).Seconds())
	var o outcome
	err := r.Err
	if goTest {
		var noTests error
		o, noTests = outcomeOf(r.Output)
		e.Passed, e.Failed, e.Skipped = o.passed, o.failed, len(o.skipped)
		if err = errors.Join(err, noTests); err != nil && len(o.failures) > 0 {
			err = fmt.Errorf("%s: %w", strings.Join(o.failures, ", "), err)
		}
	}
	if err != nil {
		e.Result, e.Remarks = failed, []string{"FAIL " + e.Command + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	for _, s := range byReason(o.skipped) {
		e.Remarks = append(e.Remarks, skippedRemark+s)
	}
}

// lossesOf returns the problems of a machine outside of its commands.
func lossesOf(r record) []string {
	var lost []string
	if r.err != nil {
		lost = append(lost, r.err.Error())
	}
	for _, e := range r.report.Troubles {
		if e.Command == "" && e.Trouble.Fails() {
			lost = append(lost, fmt.Sprintf("%s between the commands: %s", e.Trouble, e.Text))
		}
	}
	return lost
}

// merge returns the entries of a run and those of r that the run did not replace, for the places of the matrix. With
// whole, the run had all commands of its suites, so all previous entries of these suites are dropped.
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

// rank returns the index of an entry's class in its suite.
func (e entry) rank() int {
	return slices.IndexFunc(classesOf(e.Suite), func(c class) bool { return e.Suite+"/"+c.name == e.Command })
}

// missing returns the classes of a suite that have no entry for a machine of the matrix.
func (r results) missing(v variant, s suite) []string {
	var names []string
	for _, c := range s.classes {
		if c.in(profileFull) && v.hasClass(c) && !slices.ContainsFunc(r, func(e entry) bool { return e.Machine == v.name && e.Command == s.name+"/"+c.name }) {
			names = append(names, c.name)
		}
	}
	return names
}

// places returns all pairs of machine and suite of the full profile, in order, without suites that have no command on
// a machine.
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

// readResults reads results.json. It returns no results if the file does not exist.
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

// save merges the results of a machine into the files. whole means that all commands of its suites ran.
func (r record) save(dir string, now time.Time, commit string, whole bool) error {
	before, err := readResults(dir)
	if err != nil {
		return err
	}
	return before.merge(entriesOf(r, now, commit), whole, places()).write(dir)
}

// commit returns the commit of the working directory, or "unknown" if git fails. Changed results do not make it dirty.
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
