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

// The results of a command.
const (
	ok     = "ok"
	failed = "FAIL"
	notRun = "not run"
)

// The remark on tests that were skipped begins so, and goes on as in "TestA, TestB: needs root".
const skippedRemark = "skipped: "

// entriesOf are a machine's results.
func entriesOf(r record, now time.Time, commit string) results {
	var all results
	for _, p := range r.planned {
		e := entry{
			Machine: r.variant.name, Suite: p.suite, Command: p.command.Name, Kernel: r.report.Release,
			Date: now.Format(time.DateOnly), Commit: commit,
		}
		i := slices.IndexFunc(r.report.Results, func(r machine.Result) bool { return r.Command == p.command.Name })
		if i < 0 {
			e.Result, e.Remarks = notRun, []string{"not run, as the machine ended: " + p.command.Name}
		} else {
			e.enter(r.report.Results[i], p.goTest)
		}
		all = append(all, e)
	}
	// What happened to the machine while no command ran is entered with its first command.
	for _, why := range lossesOf(r) {
		if len(all) == 0 {
			all = results{{Machine: r.variant.name, Suite: "boot", Command: "boot"}}
		}
		all[0].Result, all[0].Remarks = failed, append([]string{"LOST " + why}, all[0].Remarks...)
	}
	return all
}

// enter takes over the result of the command.
func (e *entry) enter(r machine.Result, goTest bool) {
	e.Result, e.Seconds = ok, int(r.Duration.Round(time.Second).Seconds())
	var o outcome
	err := r.Err
	if goTest {
		var noTests error
		o, noTests = outcomeOf(r.Output)
		e.Passed, e.Failed, e.Skipped = o.passed, o.failed, len(o.skipped)
		if err = errors.Join(err, noTests); err != nil && len(o.broken) > 0 {
			err = fmt.Errorf("%s: %w", strings.Join(o.broken, ", "), err)
		}
	}
	if err != nil {
		e.Result, e.Remarks = failed, []string{"FAIL " + e.Command + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")}
	}
	for _, s := range byReason(o.skipped) {
		e.Remarks = append(e.Remarks, skippedRemark+s)
	}
}

// lossesOf is what happened to a machine outside of its commands.
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
