// Command demo shows what evictd does: on a containerd of its own it runs three pods that stay within their bounds
// and one that does not, starts evictd, and prints what happens as it happens, in seconds since the start.
//
// It needs root, Go and either containerd and runc or a network to fetch Debian's packages from. Everything it makes
// lives below one temporary directory and one cgroup, and is gone when it ends, by success, failure or ^C. The exit
// code is 0 if all went as it should: the hog evicted, nobody else, the memory back.
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

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dryRun := flags.Bool("dry-run", false, "let evictd say what it would do, and do nothing")
	executable := flags.String("evictd", daemon.Executable, "`FILE` to run as evictd")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitUsage
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "demo: unexpected argument %q\n", flags.Arg(0))
		return exitUsage
	}

	// A second ^C must not leave a half removed node behind: all of them only end the demonstration.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := show(ctx, *executable, *dryRun, stdout)
	switch {
	case errors.Is(ctx.Err(), context.Canceled) && !errors.As(err, new(untidyError)):
		fmt.Fprintln(stderr, "demo: interrupted, and nothing is left behind")
		return exitFailure
	case err != nil:
		fmt.Fprintf(stderr, "demo: %v\n", err)
		return exitFailure
	}
	return exitOK
}

// longest is how long a demonstration may take from the private containerd's start on: ten seconds on an idle machine.
const longest = 3 * time.Minute

// show makes a stage, plays on it and removes it.
func show(ctx context.Context, executable string, dryRun bool, stdout io.Writer) (err error) {
	if err := prepare(ctx, executable, stdout); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "evictd-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if left := os.RemoveAll(dir); left != nil {
			err = errors.Join(err, untidyError{left})
		}
	}()
	t := newTimeline(stdout)
	t.chapter("A private containerd, below %s", dir)
	starting := &voice{timeline: t}
	n, err := node.Start(ctx, node.Options{Dir: filepath.Join(dir, "node"), MemoryLimit: podsLimit, Log: starting})
	if err != nil {
		return err
	}
	starting.silent.Store(true)
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("not done after %v", longest))
	defer cancel()
	p := &play{timeline: t, node: n, dir: dir, executable: executable, dryRun: dryRun}
	err = errors.Join(p.perform(ctx), p.tidy())
	if err == nil {
		t.verdict("nothing is left behind: no process, cgroup, mount or file")
	}
	return err
}

// prepare finds what the demonstration needs, and fetches containerd where there is none.
func prepare(ctx context.Context, executable string, stdout io.Writer) error {
	if _, err := os.Stat(executable); err != nil {
		return fmt.Errorf("find evictd: %w (make build makes it)", err)
	}
	err := node.Check("")
	if errors.Is(err, node.ErrNoContainerd) {
		fmt.Fprintln(stdout, "no containerd and runc on this machine: unpacking Debian's into a cache directory, installing nothing")
		if err := node.Fetch(ctx, "", stdout); err != nil {
			return err
		}
		err = node.Check("")
	}
	if err != nil {
		return fmt.Errorf("needs %w", err)
	}
	return nil
}

// untidyError says that something could not be removed.
type untidyError struct{ error }

// tidy removes everything, and makes sure of it.
func (p *play) tidy() error {
	var err error
	if p.daemon != nil {
		err = p.daemon.Stop()
	}
	if closed := p.node.Close(); closed != nil {
		err = errors.Join(err, untidyError{closed})
	}
	if left := p.node.Leftovers(); len(left) > 0 {
		err = errors.Join(err, untidyError{fmt.Errorf("left behind: %s", strings.Join(left, "; "))})
	}
	return err
}
