// Command demo shows what evictd does: on a containerd of its own it runs three pods that stay within their bounds
// and one that does not, starts evictd, and prints what happens, in seconds since the start.
//
// It needs root, Go and either containerd and runc or a network to fetch Debian's packages from. Everything it makes
// lives below one temporary directory and one cgroup, and is gone when it ends, by success, failure or ^C. The exit
// code is 0 if all went as it should: the hog evicted, no other pod, the memory back.
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
	d := demo{out: os.Stdout}
	flag.BoolVar(&d.dryRun, "dry-run", false, "let evictd say what it would do, and do nothing")
	flag.StringVar(&d.executable, "evictd", daemon.Executable, "`FILE` to run as evictd")
	flag.Parse()
	os.Exit(d.run())
}

func (d *demo) run() int {
	// A second ^C must not leave a half removed node behind: all of them only end the demonstration.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := d.show(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		return 1
	}
	return 0
}

// show starts a node, plays on it and removes it.
func (d *demo) show(ctx context.Context) error {
	if _, err := os.Stat(d.executable); err != nil {
		return fmt.Errorf("find evictd: %w (make build makes it)", err)
	}
	if err := node.Check(""); errors.Is(err, node.ErrNoContainerd) {
		fmt.Fprintln(d.out, "no containerd and runc on this machine: unpacking Debian's into a cache directory, installing nothing")
		if err := node.Fetch(ctx, "", d.out); err != nil {
			return err
		}
	}
	if err := node.Check(""); err != nil {
		return fmt.Errorf("needs %w", err)
	}
	var err error
	if d.dir, err = os.MkdirTemp("", "evictd-demo-"); err != nil {
		return err
	}
	// Times of other processes come without the monotonic clock, so that all are compared by the wall's.
	d.start = time.Now().Round(0)
	d.chapter("A private containerd, below %s", d.dir)
	n, err := node.Start(ctx, node.Options{Dir: filepath.Join(d.dir, "node"), MemoryLimit: podsLimit, Log: d})
	if err != nil {
		return errors.Join(err, os.RemoveAll(d.dir))
	}
	d.node = n
	err = d.play(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // which says what interrupted it
	}
	left := n.Close()
	if things := n.Leftovers(); len(things) > 0 {
		left = errors.Join(left, fmt.Errorf("left behind: %s", strings.Join(things, "; ")))
	}
	if left = errors.Join(left, os.RemoveAll(d.dir)); left == nil {
		d.ok("nothing is left behind: no process, cgroup, mount or file")
	}
	return errors.Join(err, left)
}
