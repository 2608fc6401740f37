package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/evictd/evictd/agent/fence/execute"
)

// runExecute runs one action of one fence agent, as the pod of a Job of evictd-controller does. It writes nothing but
// its report and errors that have no value of the request.
func runExecute(args []string, stderr io.Writer) int {
	o := execute.Options{NodeName: os.Getenv("NODE_NAME")}
	flags := flag.NewFlagSet("evictd-controller execute", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), `evictd-controller execute runs one action of one fence agent. evictd-controller starts it in
the pod of a Job. The exit status is 0 after off and on, and after status of a machine that is
on, 2 after status of one that is off, 1 if the agent failed, and 3 if nothing was sent.

`)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.Request, "request", "", "read the request from `FILE`")
	flags.StringVar(&o.Report, "report", "/dev/termination-log", "write the report to `FILE`")
	flags.StringVar(&o.AgentsDirectory, "fence-agents-dir", "/usr/sbin", "run the fence agent in `DIR`")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	problem := ""
	switch {
	case flags.NArg() > 0:
		problem = fmt.Sprintf("unexpected argument %q", flags.Arg(0))
	case o.Request == "":
		problem = "--request is missing: evictd-controller starts this command in the pods of its Jobs"
	}
	if problem != "" {
		fmt.Fprintln(stderr, "evictd-controller execute:", problem)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	report, err := execute.Run(ctx, o)
	if err != nil {
		fmt.Fprintln(stderr, "evictd-controller execute:", err)
	} else if report.Error != "" {
		fmt.Fprintf(stderr, "evictd-controller execute: %s: %s\n", report.Result, report.Error)
	}
	return report.ExitCode()
}
