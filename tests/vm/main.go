// Command vm runs evictd's tests in virtual machines, on the kernels and the cgroup hierarchy that nodes have.
//
//	go run ./tests/vm -kernel 6.1,6.12 -profile test
//	go run ./tests/vm -kernel 6.12 -suite native -driver systemd
//	go run ./tests/vm -kernel 6.1 -shell
//
// See README.md. The exit code is 0 if all planned commands ran and passed, 1 if not, 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/evictd/evictd/tests/vm/image"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// options are the values of the flags.
type options struct {
	kernels  []string
	suites   []string // nil for the profile's
	classes  []string // of native and service; nil for the profile's
	packages []string // of the suites that are Go tests; nil for all
	machines []string // nil for the profile's
	profile  string
	driver   string
	run      string
	parallel int
	out      string
	shell    bool
}

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "vm: %v; see -help\n", err)
		return exitUsage
	}
	// The signals only cancel ctx, also a second ^C, so that the machines are always ended and removed.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	vm := &runner{options: o, out: newPrinter(stdout)}
	work := vm.test
	if o.shell {
		work = vm.shell
	}
	err = work(ctx)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "vm: interrupted, and nothing is left running")
		return exitFailure
	case errors.Is(err, errFailed):
		return exitFailure
	case err != nil:
		fmt.Fprintf(stderr, "vm: %v\n", err)
		return exitFailure
	}
	return exitOK
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("vm", flag.ContinueOnError)
	flags.SetOutput(stderr)
	kernels := flags.String("kernel", strings.Join(image.Series(), ","), "`KERNELS` to boot")
	suiteList := flags.String("suite", "", "`SUITES` to run, whatever their duration; empty for the profile's: "+strings.Join(suiteNames(), ", "))
	classList := flags.String("class", "", "only these `CLASSES` of the suites that have classes, such as more-soft of native")
	packageList := flags.String("package", "", "only these `PACKAGES` of the suites of Go tests, such as kernel/psi,bpf")
	machines := flags.String("machine", "", "only these `MACHINES` of the profile, by the names in its table, such as 6.1-cgroupfs-v1")
	flags.StringVar(&o.profile, "profile", profileTest, "tests to run: smoke (minutes), test (12 minutes per kernel) or full (the whole matrix)")
	flags.StringVar(&o.driver, "driver", "systemd", "cgroup `DRIVER` of the tests' nodes: systemd or cgroupfs")
	flags.StringVar(&o.run, "run", "", "`REGEXP` of the tests to run in the suites that are Go tests, as in go test -run")
	flags.IntVar(&o.parallel, "parallel", 2, "number of machines that run at once")
	flags.StringVar(&o.out, "out", ".build/vm", "`DIR` that gets the logs")
	flags.BoolVar(&o.shell, "shell", false, "boot the first kernel to a shell on this terminal; poweroff or ^A x ends it")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.kernels = strings.Split(*kernels, ",")
	for _, k := range o.kernels {
		if !slices.Contains(image.Series(), k) {
			return o, fmt.Errorf("-kernel: there is no kernel %q; want one of %s", k, strings.Join(image.Series(), ", "))
		}
	}
	if *suiteList != "" {
		o.suites = strings.Split(*suiteList, ",")
	}
	if *classList != "" {
		o.classes = strings.Split(*classList, ",")
	}
	if *packageList != "" {
		o.packages = strings.Split(*packageList, ",")
	}
	if *machines != "" {
		o.machines = strings.Split(*machines, ",")
	}
	for _, c := range o.classes {
		if !slices.Contains(classNames(), c) {
			return o, fmt.Errorf("-class: there is no class %q; want one of %s", c, strings.Join(classNames(), ", "))
		}
	}
	for _, s := range o.suites {
		if !slices.Contains(suiteNames(), s) {
			return o, fmt.Errorf("-suite: there is no suite %q; want one of %s", s, strings.Join(suiteNames(), ", "))
		}
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case !slices.Contains([]string{profileSmoke, profileTest, profileFull}, o.profile):
		return o, fmt.Errorf("-profile: there is no profile %q", o.profile)
	case o.driver != "systemd" && o.driver != "cgroupfs":
		return o, fmt.Errorf("-driver: there is no driver %q", o.driver)
	case o.parallel < 1:
		return o, fmt.Errorf("-parallel: %d is not positive", o.parallel)
	}
	return o, nil
}
