// Command demo shows a fence: on a real Kubernetes control plane with two machines, one is cut off from the network. It
// prints what happens, with the seconds since then, until the machine is back and its pod runs on the other one.
//
// It needs Go, and a network to fetch the programs of Kubernetes and Debian's openipmi, which are installed nowhere. It
// needs no root. All of its files are below one temporary directory; it removes that, and ends its processes, by
// success, failure or ^C. The exit code is 0 if nothing was released before the machine was off.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/tests/controlplane"
	"github.com/evictd/evictd/tests/fencing"
)

const (
	// lost is the machine that is cut off, other the one that takes its pod.
	lost, other = "a", "b"
	// timeout bounds the fence, which takes 40 s.
	timeout = 5 * time.Minute
	// printInterval is the interval at which new events are printed.
	printInterval = 100 * time.Millisecond
)

func main() {
	ctx, stop := ossignal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo-fence: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	if err := fencing.Fetch(ctx, os.Stdout); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	fmt.Printf("\nKubernetes %s with the machines %s and %s, each with a BMC\n", controlplane.Version, lost, other)
	c, err := fencing.Start(ctx, lost, other)
	if err != nil {
		return err
	}
	err = demonstrate(ctx, c)
	err = errors.Join(err, c.Close())
	if left := c.Leftovers(); len(left) > 0 {
		return errors.Join(err, fmt.Errorf("left behind: %s", strings.Join(left, "; ")))
	}
	fmt.Println("  ok  nothing is left behind: no process and no file")
	return err
}

func demonstrate(ctx context.Context, c *fencing.Cluster) error {
	if err := c.Install(ctx, "."); err != nil {
		return err
	}
	if err := c.Configure(ctx, fencing.Enforce); err != nil {
		return err
	}
	controller, err := c.StartController(fencing.Executable, "demo")
	if err != nil {
		return err
	}
	boot := c.Machines[lost].BootID()
	start := time.Now()
	c.Machines[lost].Isolate()
	fmt.Printf("\nSeconds since %s was cut off from the network. Its machine is on, and its pod still writes to its volume.\n", lost)
	if err := follow(ctx, c, start); err != nil {
		return fmt.Errorf("%w; evictd-controller's log:\n%s", err, controller.Log())
	}
	return check(ctx, c, boot)
}

// follow prints the events until the machine is back.
func follow(ctx context.Context, c *fencing.Cluster, start time.Time) error {
	done := make(chan error, 1)
	go func() { done <- c.AwaitRecovery(ctx, lost, other) }()
	printed := map[fencing.Event]bool{}
	for {
		var err error
		ended := false
		select {
		case err = <-done:
			ended = true
		case <-time.After(printInterval):
		}
		events, readErr := c.Timeline.Events()
		for _, e := range events {
			if !printed[e] && !e.At.Before(start) {
				printed[e] = true
				fmt.Print(fencing.Print([]fencing.Event{e}, start))
			}
		}
		if ended || readErr != nil {
			return errors.Join(err, readErr)
		}
	}
}

// check prints what was checked. It returns an error if something was released too early.
func check(ctx context.Context, c *fencing.Cluster, boot string) error {
	fmt.Println("\nChecks")
	events, err := c.Timeline.Events()
	if err != nil {
		return err
	}
	if early := append(fencing.Violations(events), c.Storage.Conflicts()...); len(early) > 0 {
		return fmt.Errorf("released too early: %s", strings.Join(early, "; "))
	}
	fmt.Printf("  ok  no pod and no volume of %s was released while its machine was on\n", lost)
	if err := fencing.CheckRecovery(events, lost); err != nil {
		return err
	}
	s, err := c.Snapshot(ctx)
	if err != nil {
		return err
	}
	off, _ := fencing.Find(events, fencing.CommandOff)
	proof := s.Fences[lost].State.Proof
	if err := fencing.CheckProof(proof, off.At, fence.DefaultTimings().ProofInterval.Duration); err != nil {
		return err
	}
	for _, r := range proof.Readings {
		fmt.Printf("  ok  %s read %s, %.1f s after the machine was off\n", r.Device, r.Power, r.Started.Sub(off.At).Seconds())
	}
	if c.Machines[lost].BootID() == boot {
		return fmt.Errorf("%s has its old boot ID", lost)
	}
	fmt.Printf("  ok  %s is back with a new boot ID, its quarantine is gone\n", lost)
	fmt.Printf("  ok  the replacement of %s runs on %s with the volume\n", fencing.PodName, s.PodNode)
	return nil
}
