// Command bench prints the figures of evictd on this machine:
//
//	decision  the cost of one decision and of one observation, by go test -bench
//	idle      CPU time and memory of evictd beside many pods while nothing happens
//	bursts    how soon a hog at full speed is stopped, by evictd and by earlyoom in turns
//
// The last two run a private containerd, and need root. A burst takes memory for real, but never more than leaves
// the machine its reserve: the pods are limited, and the witness kills the hog where the limit is not enough.
// Figures of a machine that is busy otherwise say little; what the witness missed is printed beside them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
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

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are what the flags say.
type options struct {
	executable string
	earlyoom   string
	bursts     int
	pods       int
	idle       time.Duration
}

// step is one of the things that are measured.
type step struct {
	name    string
	measure func(ctx context.Context, o options, out io.Writer) error
}

// steps are in order.
var steps = []step{
	{"decision", decision},
	{"idle", onNode(idle)},
	{"bursts", onNode(bursts)},
}

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.executable, "evictd", daemon.Executable, "`FILE` to run as evictd")
	flags.StringVar(&o.earlyoom, "earlyoom", "earlyoom", "`FILE` to run as earlyoom, a path or a name in PATH; evictd bursts alone where it is not found")
	flags.IntVar(&o.bursts, "bursts", 20, "how many bursts each gets")
	flags.IntVar(&o.pods, "pods", 100, "how many pods there are while evictd is idle")
	flags.DurationVar(&o.idle, "idle", 30*time.Second, "how long evictd is watched while it is idle")
	only := flags.String("only", "", "`STEPS` to run, such as idle,bursts; empty is all: decision, idle and bursts")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0 || o.bursts < 1 || o.pods < 1 || o.idle <= 0:
		fmt.Fprintln(stderr, "bench: unexpected arguments, or a number below 1; see -help")
		return exitUsage
	}
	chosen, err := choose(*only)
	if err != nil {
		fmt.Fprintf(stderr, "bench: -only: %v\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	code := exitOK
	for _, s := range chosen {
		if err := s.measure(ctx, o, stdout); err != nil {
			fmt.Fprintf(stderr, "bench: %s: %v\n", s.name, err)
			code = exitFailure
		}
		if ctx.Err() != nil {
			return exitFailure
		}
	}
	return code
}

// choose returns the steps of a list, in their order; of an empty one all.
func choose(list string) ([]step, error) {
	if list == "" {
		return steps, nil
	}
	names := strings.Split(list, ",")
	for _, name := range names {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			return nil, fmt.Errorf("there is no step %q", name)
		}
	}
	return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return !slices.Contains(names, s.name) }), nil
}

// decision runs the benchmarks of the packages that decide and observe.
func decision(ctx context.Context, _ options, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	fmt.Fprintln(out, "One decision (Step, by pods) and one observation:")
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "Step|Observation", "-benchmem", "./agent/evict", "./agent/lanes")
	cmd.Stdout, cmd.Stderr = out, out
	return cmd.Run()
}

// stage is a node to measure on.
type stage struct {
	options
	node *node.Node
	dir  string
	out  io.Writer
}

// onNode makes a step of one that needs a node.
func onNode(measure func(context.Context, *stage) error) func(context.Context, options, io.Writer) error {
	return func(ctx context.Context, o options, out io.Writer) (err error) {
		if _, err := os.Stat(o.executable); err != nil {
			return fmt.Errorf("find evictd: %w (make build makes it)", err)
		}
		if err := node.Check(""); err != nil {
			return fmt.Errorf("needs %w", err)
		}
		dir, err := os.MkdirTemp("", "evictd-bench-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		n, err := node.Start(ctx, node.Options{Dir: filepath.Join(dir, "node")})
		if err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, n.Close())
			if left := n.Leftovers(); len(left) > 0 {
				err = errors.Join(err, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
			}
		}()
		return measure(ctx, &stage{options: o, node: n, dir: dir, out: out})
	}
}
