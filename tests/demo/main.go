// Command demo shows an eviction: it runs three pods with constant memory and a hog on a private containerd, starts
// evictd, and prints what happens, with the seconds since the start.
//
// It needs root, Go, and containerd and runc, or a network to fetch Debian's packages. All of its files are below one
// temporary directory, all of its processes below one cgroup, and it removes both when it ends, by success, failure
// or ^C. The exit code is 0 if the hog and no other pod was evicted, and memory.available has recovered.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/evictd/evictd/tests/daemon"
	"github.com/evictd/evictd/tests/node"
)

func main() {
	d := &demo{start: time.Now()}
	flag.BoolVar(&d.dryRun, "dry-run", false, "run evictd in dry run")
	flag.StringVar(&d.executable, "evictd", daemon.Executable, "`FILE` to run as evictd")
	flag.Parse()
	// The signals only cancel ctx, also a second ^C, so that the node is always removed completely.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := d.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

// run starts a node, runs the steps of the demo on it and removes it.
func (d *demo) run(ctx context.Context) (err error) {
	if _, err := os.Stat(d.executable); err != nil {
		return fmt.Errorf("find evictd: %w (make build builds it)", err)
	}
	if err := node.Check(""); errors.Is(err, node.ErrNoContainerd) {
		fmt.Println("no containerd and runc on this machine: unpacking Debian's into a cache directory, installing nothing")
		if err := node.Fetch(ctx, "", os.Stdout); err != nil {
			return err
		}
	}
	if err := node.Check(""); err != nil {
		return fmt.Errorf("needs %w", err)
	}
	if d.dir, err = os.MkdirTemp("", "evictd-demo-"); err != nil {
		return err
	}
	fmt.Printf("\nA private containerd, below %s\n", d.dir)
	d.node, err = node.Start(ctx, node.Options{Dir: filepath.Join(d.dir, "node"), MemoryLimit: podsLimit, Log: os.Stdout})
	if err != nil {
		return errors.Join(err, os.RemoveAll(d.dir))
	}
	for _, step := range []func(context.Context) error{d.runPods, d.startDaemon, d.growHog, d.check} {
		if err == nil {
			err = step(ctx)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx) // the signal
	}
	if d.daemon != nil {
		err = errors.Join(err, d.daemon.Stop())
	}
	err = errors.Join(err, d.node.Close(), os.RemoveAll(d.dir))
	if left := d.node.Leftovers(); len(left) > 0 {
		return errors.Join(err, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	fmt.Println("  ok  nothing is left behind: no process, cgroup, mount or file")
	return err
}
