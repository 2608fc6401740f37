package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/scenario"
	"github.com/evictd/evictd/agent/shutdown"
)

func newShutdownCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "shutdown",
		Short: "Plan, simulate and begin a graceful node shutdown",
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newShutdownPlanCommand(), newShutdownSimulateCommand(), newShutdownBeginCommand(), newShutdownCancelCommand())
	return cmd
}

func newShutdownSimulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate FILE...",
		Short: "Replay a shutdown scenario and show which pods stop when",
		Long: `Simulate replays shutdown scenarios: files with a configuration, the pods of a
node, how long each takes to stop, and when the shutdown begins or is canceled.
It prints when evictd would ask each pod to stop, and with which grace period. It
runs evictd's own code with simulated time, on any machine. FILE may be - for the
standard input.

A pod without stopsAfter never stops by itself: it is killed when its time is up.
inhibitDelayMax is how long the shutdown may be delayed; the default is as long as
the groups need.

With -o json it prints one object per line: the groups, then every event.

It exits with 0 if all scenarios were replayed. If a file is invalid, it prints the
errors of all files, replays none and exits with 1.`,
		Example: `  # How long does the database get if the other pods stop fast?
  cat >node.yaml <<EOF
  apiVersion: evictd.io/v1alpha1
  kind: ShutdownScenario
  config:
    shutdownGracePeriodByPodPriority:
    - {priority: 0, shutdownGracePeriodSeconds: 60}
    - {priority: 1000, shutdownGracePeriodSeconds: 30}
  pods:
  - {namespace: default, name: web, stopsAfter: 5s}
  - {namespace: default, name: db, priority: 1000, terminationGracePeriodSeconds: 300}
  steps:
  - {at: 0s, begin: true}
  EOF
  evictctl shutdown simulate node.yaml`,
		Args: cobra.MinimumNArgs(1),
	}
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		return replay(cmd, files, *format, scenario.ParseShutdown, func(s *scenario.Shutdown) []strict.Problem { return s.Notices })
	}
	return cmd
}

func newShutdownPlanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show how a node shutdown would stop the running pods",
		Long: `Show how a node shutdown would stop the running pods: the groups in the order in
which they stop, the grace period of each pod, and whether logind allows to delay
the shutdown for that long. During a shutdown, show its progress.

The plan assumes that all pods use their whole time; later groups get the time
that earlier ones do not use.`,
		Args: cobra.NoArgs,
		Example: `  evictctl shutdown plan

  # Does evictd delay a shutdown for the pods?
  evictctl shutdown plan -o json | jq '.held, .why[]'`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := control.NewClient(*socket).Shutdown(cmd.Context())
		if err != nil {
			return withRemedy(err)
		}
		return printShutdown(cmd, &s, *format)
	}
	return cmd
}

func printShutdown(cmd *cobra.Command, s *control.Shutdown, format output) error {
	if format == outputJSON {
		return printJSON(cmd.OutOrStdout(), s)
	}
	return shutdownPage(s).print(cmd.OutOrStdout())
}

func newShutdownBeginCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "begin",
		Short: "Stop the pods as in a node shutdown, and wait until they are gone",
		Long: `Stop the pods as in a node shutdown, group by group, and wait until they are gone.
Use it in the shutdown scripts of hosts without logind; logind notifies evictd by
itself.

New pods are stopped too, until evictctl shutdown cancel or the end of the node.

If evictd does not stop the pods, the command prints the reason and exits with 1.
So it does in dry run, after it has shown which pods would be stopped.`,
		Args: cobra.NoArgs,
		Example: `  # In a shutdown script, before the container runtime is stopped
  evictctl shutdown begin

  evictctl shutdown begin --wait=false && evictctl shutdown plan`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	wait := cmd.Flags().Bool("wait", true, "wait until the pods are gone or their time is up")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client := control.NewClient(*socket)
		s, err := client.BeginShutdown(cmd.Context())
		for err == nil && *wait && s.Phase == phaseStopping {
			select {
			case <-cmd.Context().Done():
				return cmd.Context().Err()
			case <-time.After(pollInterval):
			}
			s, err = client.Shutdown(cmd.Context())
		}
		switch {
		case err != nil:
			return withRemedy(err)
		case s.Canceled && *wait:
			return errors.New("the shutdown was canceled")
		}
		if err := printShutdown(cmd, &s, *format); err != nil {
			return err
		}
		return dryRunError(&s)
	}
	return cmd
}

// dryRunError returns the error of begin in dry run, so that a shutdown script does
// not assume that the pods are stopped. It returns nil outside dry run.
func dryRunError(s *control.Shutdown) error {
	if !s.DryRun && s.WouldStop == 0 {
		return nil
	}
	return fmt.Errorf("dry run: no pod is stopped%s; see evictctl status for the reason", wouldStop(s))
}

// wouldStop returns how many pods dry run did not stop, and "" before they are
// listed.
func wouldStop(s *control.Shutdown) string {
	if s.WouldStop == 0 {
		return ""
	}
	return ", " + counted(s.WouldStop, "pod") + " would be"
}

// counted returns a number with its noun.
func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func newShutdownCancelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel",
		Short: "Stop no further pods",
		Long: `Cancel a shutdown that was begun by evictctl shutdown begin: evictd asks no further
pod to stop, and admits new pods. Pods that were asked already still stop. Only
logind can cancel a shutdown that logind has begun.`,
		Args:    cobra.NoArgs,
		Example: `  evictctl shutdown cancel`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := control.NewClient(*socket).CancelShutdown(cmd.Context())
		if err != nil {
			return withRemedy(err)
		}
		return printShutdown(cmd, &s, *format)
	}
	return cmd
}

const (
	phaseIdle     = "idle"
	phaseStopping = "stopping"
	// pollInterval is how often begin requests the progress. It delays a shutdown
	// script by at most that time.
	pollInterval = 200 * time.Millisecond
)

func shutdownPage(s *control.Shutdown) *page {
	p := &page{}
	p.line("shutdown:  %s", shutdownLine(s))
	p.line("needs:     %s", seconds(s.NeedsSeconds))
	switch {
	case s.LimitSeconds == nil:
		p.line("logind:    not connected: %s", s.LogindError)
	case s.LogindError != "":
		p.line("logind:    allows %s: %s", seconds(*s.LimitSeconds), s.LogindError)
	default:
		p.line("logind:    allows %s", seconds(*s.LimitSeconds))
	}
	p.line("last:      %s", lastLine(s))
	var rows [][]string
	for i, g := range s.Groups {
		group := []string{strconv.FormatInt(int64(g.Priority), 10), seconds(g.TimeSeconds)}
		if s.Current != nil && *s.Current == i {
			group[0] += " now"
		}
		if len(g.Pods) == 0 {
			rows = append(rows, append(group, "no pod", "-", "-", "-"))
		}
		for _, pod := range g.Pods {
			wave := "first"
			switch {
			case pod.Refused:
				wave = "refused"
			case pod.Last:
				wave = "last"
			}
			rows = append(rows, append(group, pod.Pod, wave, seconds(pod.GraceSeconds), podStatus(pod.Status)))
			group = []string{"", ""}
		}
	}
	p.table([]string{"FROM PRIORITY", "TIME", "POD", "WAVE", "GRACE", "STATUS"}, rows)
	return p
}

// podStatus returns the text for a status of control.ShutdownPod.
func podStatus(status string) string {
	if status == string(shutdown.StoppedInDryRun) {
		return "would be stopped"
	}
	return status
}

// shutdownLine returns the progress of a shutdown, or what evictd does in one.
func shutdownLine(s *control.Shutdown) string {
	if s.Phase != phaseIdle {
		by := "logind's"
		if s.Manual {
			by = "an operator's"
		}
		text := by + ", since " + between(s.Began, s.At)
		switch {
		case s.DryRun || s.WouldStop > 0:
			return "dry run, no pod is stopped" + wouldStop(s) + "; " + text
		case s.Phase == phaseStopping:
			return "stopping the pods, " + text
		case s.Running > 0:
			return "over, " + counted(s.Running, "pod") + " still running, " + text + ", it took " + between(s.Began, s.Ended)
		}
		return "the pods are stopped, " + text + ", it took " + between(s.Began, s.Ended)
	}
	switch {
	case len(s.Why) > 0:
		return "pods are not stopped; " + strings.Join(s.Why, "; ")
	case s.DryRun:
		return "dry run, no pod is stopped and the shutdown is not delayed"
	case s.Inhibited:
		return "delayed until the pods are stopped"
	}
	return "pods are stopped only by evictctl shutdown begin"
}

func lastLine(s *control.Shutdown) string {
	text := string(s.Last.Reason)
	if s.Last.Clean != nil {
		text = "clean"
		if !*s.Last.Clean {
			text = "not clean, " + string(s.Last.Reason)
		}
	}
	if s.Last.Detail != "" {
		text += ", " + s.Last.Detail
	}
	return text
}
