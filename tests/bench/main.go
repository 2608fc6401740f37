// Command bench prints the figures of evictd on this machine, and keeps them in a file:
//
//	decision     the cost of one decision and of one observation, by go test -bench
//	idle         CPU time and memory of evictd beside many pods while nothing happens
//	cgroups      the same by the number of cgroups
//	bursts       how soon a hog that takes gigabytes is stopped: by evictd, by each of its lanes, by earlyoom, and by a
//	             process that polls on a processor of its own, which is the limit
//	survival     whether pods beside such a burst live
//	percentiles  the same for many crossings by a small victim
//	conditions   the same for evictd while something makes it harder
//	bombs        how soon a fork bomb is ended, and how many tasks could still be begun by then
//	vm           evictd, earlyoom and systemd-oomd on the unified hierarchy: for a virtual machine, and only there
//	cold         evictions with reclaim of cold memory and without, on a node with swap: for a virtual machine as well
//
// All but the first run a private containerd, and need root.
//
// # What is measured, and by whom
//
// All contenders are measured alike, from outside. A thread of this program, which runs before all others, samples
// /proc/meminfo every 0.1 ms: the amount that the contender compares with its threshold. The crossing lies between the
// last sample above the threshold and the first below; where a steady fall from the one to the other meets the threshold
// is taken for its time. How far apart the two were is kept as the doubt of each figure. The kernel's own tracing
// (signal_generate) tells when the first SIGKILL was sent to a process of the victim, whoever sent it and in whatever
// way. Both times are of CLOCK_MONOTONIC. What a contender says of itself is used for two things alone: what raised
// evictd's alarm, and how the time between the two is divided (partNames). The kernel's tracing also records when the
// thread that sent the signal got a processor.
//
// A contender may kill before the crossing, as this thread sees it: the kernel charges memory in batches, and counts it
// per processor first. Such a crossing counts with its negative time, or as "early" if no sample was below at all.
//
// The hog is the first process of a container, or with 200 MiB/s one of a pod whose other container already holds most of
// the memory. A victim takes memory for real, but never more than leaves the machine its reserve: the pods are limited,
// and the witness kills the victim where the limit is not enough. What takes the processors for 16 allocating processes
// and huge pages joins the victim's container from outside.
//
// Figures of a machine that is busy otherwise say little; its load average is kept with them. Only ratios carry over to
// another machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	if len(os.Args) > 1 && actors[os.Args[1]] != nil {
		if err := actors[os.Args[1]](os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(exitFailure)
		}
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are what the flags say.
type options struct {
	executable string
	earlyoom   string
	bursts     int
	crossings  int // of the contenders that get many
	hard       int // of each condition
	bombs      int
	survivals  int
	pods       int
	idle       time.Duration
	cgroups    []int
	vm         bool
	name       string // of the machine, in the results
	dir        string // of the results
	verbose    bool
}

// quicken makes everything small enough for a look at whether it works.
func (o *options) quicken() {
	o.bursts, o.crossings, o.hard, o.bombs, o.survivals = 1, 10, 3, 1, 3
	o.pods, o.idle, o.cgroups = 10, 5*time.Second, []int{0, 500}
}

// step is one of the things that are measured.
type step struct {
	name    string
	measure func(ctx context.Context, o options, b *book, out io.Writer) error
	vm      bool
}

// steps are in order.
var steps = []step{
	{name: "decision", measure: decisions},
	{name: "idle", measure: onNode(idle)},
	{name: "cgroups", measure: onNode(crowds)},
	{name: "bursts", measure: onNode(bursts)},
	{name: "survival", measure: onNode(survival)},
	{name: "percentiles", measure: onNode(percentiles)},
	{name: "conditions", measure: onNode(hardships)},
	{name: "bombs", measure: onNode(forkBombs)},
	{name: "vm", measure: onNode(rivals), vm: true},
	{name: "cold", measure: onNode(coldMemory), vm: true},
}

// The files of the results, below the directory of -results.
const (
	bookFile    = "results.jsonl"
	tableFile   = "results.md"
	pictureFile = "results.svg"
	// causesFile is written by hand: why figures are missed. The table takes it in.
	causesFile = "causes.md"
)

// run is main without the exit.
//
// Complexity: a straight sequence of steps, each of which a flag or a failure may leave out.
//
//gocyclo:ignore
func run(args []string, stdout, stderr io.Writer) int {
	o := options{cgroups: []int{0, 100, 500, 2000}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.executable, "evictd", daemon.Executable, "`FILE` to run as evictd; that of "+node.ProgramsVariable+" comes first")
	flags.StringVar(&o.earlyoom, "earlyoom", "earlyoom", "`FILE` to run as earlyoom, a path or a name in PATH; where it is not found it is left out")
	flags.IntVar(&o.bursts, "bursts", 20, "how many bursts each gets at each speed")
	flags.IntVar(&o.crossings, "crossings", 500, "how many crossings by a small victim evictd with all lanes and with BPF alone get; the others get a tenth")
	flags.IntVar(&o.hard, "hard", 40, "how many crossings there are under each condition")
	flags.IntVar(&o.bombs, "bombs", 10, "how many fork bombs each gets")
	flags.IntVar(&o.survivals, "survivals", 50, "how many bursts there are beside calm pods")
	flags.IntVar(&o.pods, "pods", 100, "how many pods there are while evictd is idle")
	flags.DurationVar(&o.idle, "idle", 30*time.Second, "how long evictd is watched while it is idle")
	flags.BoolVar(&o.vm, "vm", false, "do what a virtual machine is for, and print the results")
	flags.StringVar(&o.name, "name", native, "`NAME` of this machine in the results: another one has others beside those that are there, and the same one takes their place")
	flags.StringVar(&o.dir, "results", "", "`DIR` whose results take up what is measured; empty keeps nothing")
	flags.BoolVar(&o.verbose, "v", false, "tell of each crossing")
	quick := flags.Bool("quick", false, "do little of everything")
	only := flags.String("only", "", "`STEPS` to run, such as idle,bursts; empty is all but vm and cold")
	merge := flags.String("merge", "", "run nothing; take over what benchmarks in virtual machines printed into `FILES`, separated by commas")
	render := flags.Bool("render", false, "run nothing; make table and picture of the results")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case o.name == "":
		fmt.Fprintln(stderr, "bench: -name is empty; see -help")
		return exitUsage
	case flags.NArg() > 0 || min(o.bursts, o.crossings, o.hard, o.bombs, o.survivals, o.pods) < 1 || o.idle <= 0:
		fmt.Fprintln(stderr, "bench: unexpected arguments, or a number below 1; see -help")
		return exitUsage
	case (*merge != "" || *render) && o.dir == "":
		fmt.Fprintln(stderr, "bench: -merge and -render need -results")
		return exitUsage
	}
	if *quick {
		o.quicken()
	}
	chosen, err := choose(*only, o.vm)
	if err != nil {
		fmt.Fprintf(stderr, "bench: -only: %v\n", err)
		return exitUsage
	}
	if *merge != "" || *render {
		chosen = nil
	}
	var results book
	if o.vm {
		results.out = stdout
	}
	code := exitOK
	fail := func(what string, err error) {
		if err != nil {
			fmt.Fprintf(stderr, "bench: %s: %v\n", what, err)
			code = exitFailure
		}
	}
	if o.dir != "" {
		if err := results.load(filepath.Join(o.dir, bookFile)); err != nil {
			fail("results", err)
			return code
		}
	}
	if *merge != "" {
		for file := range strings.SplitSeq(*merge, ",") {
			fail("merge", results.merge(file))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	for _, s := range chosen {
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		fail(s.name, s.measure(ctx, o, &results, stdout))
		fmt.Fprintf(stdout, "\n%s took %v.\n", s.name, time.Since(began).Round(time.Second))
		if o.dir != "" {
			// After each of them: what was measured is kept, whatever comes.
			fail("results", results.publish(o.dir))
		}
	}
	if o.dir != "" && len(chosen) == 0 && code == exitOK {
		fail("results", results.publish(o.dir))
	}
	if ctx.Err() != nil {
		return exitFailure
	}
	return code
}

// choose returns the steps of a list, in their order; of an empty one those that are for the machine.
func choose(list string, vm bool) ([]step, error) {
	if list == "" {
		return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.vm != vm }), nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			return nil, fmt.Errorf("there is no step %q", name)
		}
	}
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return !slices.Contains(names, s.name) }), nil
}
