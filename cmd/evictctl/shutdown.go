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
		Short: "Plan, replay and begin a shutdown of the node",
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(newShutdownPlanCommand(), newShutdownSimulateCommand(), newShutdownBeginCommand(), newShutdownCancelCommand())
	return cmd
}

func newShutdownSimulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate FILE...",
		Short: "Replay a shutdown: who would have been stopped when?",
		Long: `Simulate replays scenarios of a shutdown: files that hold a configuration, the
pods of a node, how long each takes to stop, and when the shutdown begins or is
called off. It prints who would be asked to stop when, and what each would be
given, by the code that evictd itself runs, with simulated time and on any
machine. FILE may be - for the standard input.

A pod without stopsAfter never stops by itself: it is killed when its time is
up. inhibitDelayMax is how long the shutdown may be held up; without it that is
as long as the groups need.

With -o json it prints one object a line: the groups, then every instant at
which something happened.

It exits with 0 when all scenarios were replayed, and with 1 when a file is
invalid; then it prints everything that is wrong with all of them, and replays
none.`,
		Example: `  # How long does the database get when the others are quick?
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
		Short: "Show what a shutdown would do to the pods that run now",
		Long: `Show what a shutdown of the node would do to the pods that run now: the groups
in the order in which they stop, what each pod would be given, and whether logind
lets the shutdown be held up for that long. While a shutdown goes on, show how far
it has come.

A grace is what a pod has if all those before it take all of their time; what
they leave over goes to the later groups.`,
		Args: cobra.NoArgs,
		Example: `  evictctl shutdown plan

  # Is a shutdown held up for the pods at all?
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
		Short: "Stop the pods as if the node went down, and wait for that",
		Long: `Stop the pods as if the node went down, group by group, and wait until that is
over. It is for the shutdown scripts of hosts without logind; where there is one
evictd hears of a shutdown by itself.

New pods are stopped until evictctl shutdown cancel, or the end of the node.

It exits with 1 when evictd does not stop the pods, and says why: in dry run too,
where it only shows which pods would be stopped.`,
		Args: cobra.NoArgs,
		Example: `  # In a shutdown script, before the container runtime is stopped
  evictctl shutdown begin

  evictctl shutdown begin --wait=false && evictctl shutdown plan`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	wait := cmd.Flags().Bool("wait", true, "wait until the pods are gone, or their time is up")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client := control.NewClient(*socket)
		s, err := client.BeginShutdown(cmd.Context())
		for err == nil && *wait && s.Phase == phaseStopping {
			select {
			case <-cmd.Context().Done():
				return cmd.Context().Err()
			case <-time.After(lookAgain):
			}
			s, err = client.Shutdown(cmd.Context())
		}
		switch {
		case err != nil:
			return withRemedy(err)
		case s.CalledOff && *wait:
			return errors.New("the shutdown was called off")
		}
		if err := printShutdown(cmd, &s, *format); err != nil {
			return err
		}
		return dryRunError(&s)
	}
	return cmd
}

// dryRunError is the error of a begin that stopped no pod because evictd is in
// dry run: a shutdown script must not take the pods for stopped.
func dryRunError(s *control.Shutdown) error {
	if !s.DryRun && s.WouldStop == 0 {
		return nil
	}
	return fmt.Errorf("dry run: no pod is stopped%s; evictctl status says why", wouldStop(s))
}

// wouldStop says how many pods dry run has left alone; nothing before they are
// listed.
func wouldStop(s *control.Shutdown) string {
	if s.WouldStop == 0 {
		return ""
	}
	return ", " + counted(s.WouldStop, "pod") + " would be"
}

// counted is a number with its noun.
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
		Long: `Call a shutdown off that evictctl shutdown begin has begun: no further pod is
asked to stop, and new ones are welcome. Those that were asked already go on with
that. A shutdown that logind has told of is logind's to call off.`,
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
	// lookAgain is how often begin looks how far it has come.
	lookAgain = 200 * time.Millisecond
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
			rows = append(rows, append(group, "nobody", "-", "-", "-"))
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

// podStatus says a status of control.ShutdownPod in words.
func podStatus(status string) string {
	if status == string(shutdown.Pretended) {
		return "would be stopped"
	}
	return status
}

// shutdownLine says how evictd stands to a shutdown.
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
			return "over, " + counted(s.Running, "pod") + " still running, " + text + ", it took " + between(s.Began, s.Over)
		}
		return "the pods are stopped, " + text + ", it took " + between(s.Began, s.Over)
	}
	switch {
	case len(s.Why) > 0:
		return "left alone; " + strings.Join(s.Why, "; ")
	case s.DryRun:
		return "dry run, nothing is stopped nor held up"
	case s.Held:
		return "held up for the pods"
	}
	return "heard of only from evictctl shutdown begin"
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
