// Command bench measures evictd on this machine, prints the results and stores them in a file. Its steps are:
//
//	decision     time and memory of one decision and of one observation, by go test -bench
//	affinity     time and memory of a pass over the pods of a large cluster, by go test -bench
//	idle         CPU time and memory of an idle evictd on a node with many pods
//	cgroups      the same by the number of cgroups
//	bursts       time until a process that allocates gigabytes is killed: by evictd, by each of its lanes, by earlyoom,
//	             and by a process that polls on a CPU of its own, which is the lower bound
//	survival     whether other pods survive such a burst
//	percentiles  the same as bursts for many crossings by a small victim
//	conditions   the same for evictd under conditions that make it slower
//	cluster      evictions on a node of a cluster, by evictd and by the kubelet; needs the programs of
//	             tests/cluster/fetch.sh
//	footprint    size and memory of evictd, of one before it knew an API server, and of evictd-kube; needs the same programs
//	             and the history in git
//	fence        release of a lost node's volume, by evictd-controller, by hand and by kube-controller-manager alone; needs the
//	             programs of tests/cluster/fetch.sh and tests/bmc/fetch.sh
//	controller   requests and memory of an idle evictd-controller in a cluster of 1,000 nodes; needs the same programs
//	delay        time from the change of a node's label until the eviction of a pod that no longer fits is accepted; needs the
//	             programs of tests/cluster/fetch.sh
//	bombs        time until a fork bomb is ended, and how many tasks could still be created then
//	vm           evictd, earlyoom and systemd-oomd on the unified hierarchy; only in a virtual machine
//	cold         evictions with and without proactive reclaim, on a node with swap; only in a virtual machine
//
// All steps but decision, affinity, footprint, fence, controller and delay run a private containerd; those and footprint
// need root.
//
// # How it is measured
//
// All contenders are measured in the same way, from outside. A thread of this program, whose real-time priority is above
// that of evictd, samples /proc/meminfo every 0.1 ms and computes the amount that the contender compares with its
// threshold. The crossing lies between the last sample above the threshold and the first below. Its time is interpolated
// between the two; their distance is stored as the uncertainty of the crossing. The kernel's tracing (signal_generate)
// records the first SIGKILL to a process of the victim, from whatever sender. Both times are of CLOCK_MONOTONIC. evictd's
// own record is used for two things only: the lane that raised the alarm, and the parts of the time between crossing and
// SIGKILL (partNames). The kernel's tracing also records when the thread that sent the signal got a CPU.
//
// A contender may kill before the sampled crossing, because the kernel charges memory in batches and counts it per CPU
// first. Such a crossing counts with its negative time, or as "early" if no sample was below the threshold.
//
// The victim's process is the first process of a container. At 200 MiB/s another container of the same pod has allocated
// most of the memory beforehand. A victim really allocates the memory, but the machine keeps a reserve: the pods have
// limits, and the sampling thread kills the victim if the reserve is reached. The helper processes that allocate in
// parallel, or huge pages, join the victim's cgroup from outside.
//
// The step cluster is measured in tests/cluster in the same way, except that it samples the memory of all pods.
//
// Results of a machine that does other work are of little use; the load average is stored with them. Only ratios are
// comparable between machines.
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
	if len(os.Args) > 1 && helpers[os.Args[1]] != nil {
		if err := helpers[os.Args[1]](os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(exitFailure)
		}
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// options are the values of the flags.
type options struct {
	executable   string
	earlyoom     string
	bursts       int
	crossings    int // per contender in step percentiles, for those with many
	perCondition int // crossings
	bombs        int
	survivals    int
	evictions    int // per contender in step cluster
	fences       int // per contender in step fence
	forcedDetach bool
	pods         int
	idle         time.Duration
	cgroups      []int
	vm           bool
	name         string // of the machine, in the results
	dir          string // of the results
	verbose      bool
}

// setQuick reduces all numbers to a test of whether the steps work.
func (o *options) setQuick() {
	o.bursts, o.crossings, o.perCondition, o.bombs, o.survivals = 1, 10, 3, 1, 3
	o.evictions = 3
	o.fences, o.forcedDetach = 2, false
	o.pods, o.idle, o.cgroups = 10, 5*time.Second, []int{0, 500}
}

// step is one of the measurements.
type step struct {
	name    string
	measure func(ctx context.Context, o options, b *resultSet, out io.Writer) error
	vm      bool
}

// steps are all steps, in the order in which they run.
var steps = []step{
	{name: "decision", measure: goBenchmarks("One decision and one observation", decisionBenchmarks, "Step|Observation", "./agent/evict", "./agent/memory")},
	{name: "affinity", measure: goBenchmarks("Node affinity, one pass", affinityBenchmarks, "Matches|LabelGone|Step|Filter", "./agent/affinity", "./agent/affinity/extender", "./agent/controller/affinity")},
	{name: "idle", measure: onNode(idle)},
	{name: "cgroups", measure: onNode(cgroupCounts)},
	{name: "bursts", measure: onNode(bursts)},
	{name: "survival", measure: onNode(survival)},
	{name: "percentiles", measure: onNode(percentiles)},
	{name: "conditions", measure: onNode(underConditions)},
	{name: "cluster", measure: onCluster},
	{name: "footprint", measure: footprints},
	{name: "fence", measure: fences},
	{name: "controller", measure: idleController},
	{name: "delay", measure: labelDelays},
	{name: "bombs", measure: onNode(forkBombs)},
	{name: "vm", measure: onNode(vmContenders), vm: true},
	{name: "cold", measure: onNode(proactiveReclaim), vm: true},
}

// The files in the directory of -results.
const (
	resultsFile = "results.jsonl"
	tableFile   = "results.md"
	chartFile   = "results.svg"
	// causesFile is written by hand: the reasons for missed goals. The document includes it.
	causesFile = "causes.md"
)

// run does the work of main and returns the exit code.
//
// Complexity: a straight sequence of steps, each of which a flag or a failure may skip.
//
//gocyclo:ignore
func run(args []string, stdout, stderr io.Writer) int {
	o := options{cgroups: []int{0, 100, 500, 2000}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.executable, "evictd", daemon.Executable, "`FILE` to run as evictd; "+node.ProgramsEnv+" takes precedence")
	flags.StringVar(&o.earlyoom, "earlyoom", "earlyoom", "`FILE` to run as earlyoom, a path or a name in PATH; skipped if not found")
	flags.IntVar(&o.bursts, "bursts", 20, "number of bursts per contender and speed")
	flags.IntVar(&o.crossings, "crossings", 500, "number of crossings by a small victim for evictd with all lanes and with BPF alone; the other contenders get a tenth")
	flags.IntVar(&o.perCondition, "hard", 40, "number of crossings under each condition")
	flags.IntVar(&o.bombs, "bombs", 10, "number of fork bombs per contender")
	flags.IntVar(&o.survivals, "survivals", 50, "number of bursts on a node with other pods")
	flags.IntVar(&o.evictions, "evictions", 15, "number of evictions per contender on a node of a cluster")
	flags.IntVar(&o.fences, "fences", 20, "number of lost nodes for evictd-controller and by hand in step fence")
	flags.BoolVar(&o.forcedDetach, "forced-detach", true, "measure in step fence what kube-controller-manager does alone, which adds 8 min")
	flags.IntVar(&o.pods, "pods", 100, "number of pods while evictd is idle")
	flags.DurationVar(&o.idle, "idle", 30*time.Second, "how long the CPU time of an idle evictd is measured")
	flags.BoolVar(&o.vm, "vm", false, "run the steps for a virtual machine, and print the results")
	flags.StringVar(&o.name, "name", native, "`NAME` of this machine in the results; results of the same machine are replaced, those of others are kept")
	flags.StringVar(&o.dir, "results", "", "`DIR` in which to store the results; empty stores nothing")
	flags.BoolVar(&o.verbose, "v", false, "print each crossing")
	quick := flags.Bool("quick", false, "run each step with small numbers")
	only := flags.String("only", "", "`STEPS` to run, such as idle,bursts; empty runs all but vm and cold")
	merge := flags.String("merge", "", "run no step; add the results that benchmarks in virtual machines printed into `FILES`, separated by commas")
	render := flags.Bool("render", false, "run no step; write the document and the chart from the results")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case o.name == "":
		fmt.Fprintln(stderr, "bench: -name is empty; see -help")
		return exitUsage
	case flags.NArg() > 0 || min(o.bursts, o.crossings, o.perCondition, o.bombs, o.survivals, o.evictions, o.fences, o.pods) < 1 || o.idle <= 0:
		fmt.Fprintln(stderr, "bench: unexpected arguments, or a number below 1; see -help")
		return exitUsage
	case (*merge != "" || *render) && o.dir == "":
		fmt.Fprintln(stderr, "bench: -merge and -render need -results")
		return exitUsage
	}
	if *quick {
		o.setQuick()
	}
	chosen, err := selectSteps(*only, o.vm)
	if err != nil {
		fmt.Fprintf(stderr, "bench: -only: %v\n", err)
		return exitUsage
	}
	if *merge != "" || *render {
		chosen = nil
	}
	var results resultSet
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
		if err := results.load(filepath.Join(o.dir, resultsFile)); err != nil {
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
			// Published after each step, so that a later failure loses no results.
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

// selectSteps returns the steps of a comma-separated list, in the order of steps. For an empty list it returns those
// for a virtual machine or those for other machines. It fails if a step does not exist.
func selectSteps(list string, vm bool) ([]step, error) {
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
