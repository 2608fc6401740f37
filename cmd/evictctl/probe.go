package main

import (
	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/probe"
)

// probed is what probe prints as JSON.
type probed struct {
	Features []probe.Feature `json:"features"`
	// Daemon is what the running evictd adds; null where it could not be asked,
	// which DaemonError then explains.
	Daemon      *probedDaemon `json:"daemon"`
	DaemonError string        `json:"daemonError,omitempty"`
}

// probedDaemon is the part of a daemon's status that a probe is about.
type probedDaemon struct {
	Mode    control.Mode               `json:"mode"`
	Runtime control.Runtime            `json:"runtime"`
	Lanes   control.List[control.Lane] `json:"lanes"`
}

func newProbeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Show what this kernel and these privileges allow, and what is missing",
		Long: `Show what this kernel, its cgroup tree and these privileges allow, and what is
missing for better. Each thing is tried and leaves nothing behind. The answers
hold for whoever asks: run it as the user, and where, evictd runs.

Where evictd is running its own mode, runtime and lanes are shown too; without
it the rest is shown all the same.`,
		Args: cobra.NoArgs,
		Example: `  sudo evictctl probe

  # What is missing?
  evictctl probe -o json | jq '.features[] | select(.supported != "yes")'`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	procfs := cmd.Flags().String("path.procfs", "/proc", "the node's procfs `directory`")
	sysfs := cmd.Flags().String("path.sysfs", "/sys", "the node's sysfs `directory`")
	cgroupfs := cmd.Flags().String("path.cgroupfs", "/sys/fs/cgroup", "the node's cgroup `directory`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		answer := probed{Features: probe.Run(kernel.FS(*procfs), kernel.FS(*sysfs), kernel.FS(*cgroupfs))}
		s, err := control.NewClient(*socket).Status(cmd.Context())
		if err != nil {
			answer.DaemonError = withRemedy(err).Error()
		} else {
			answer.Daemon = &probedDaemon{Mode: s.Mode, Runtime: s.Runtime, Lanes: s.Lanes}
		}
		if *format == outputJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		return probePage(&answer, &s).print(cmd.OutOrStdout())
	}
	return cmd
}

func probePage(answer *probed, s *control.Status) *page {
	p := &page{}
	if d := answer.Daemon; d != nil {
		p.line("mode:        %s", mode(d.Mode))
		p.line("runtime:     %s", runtimeLine(d.Runtime, s.At))
		p.table(laneHeads, laneRows(d.Lanes))
	} else {
		p.line("mode, runtime and lanes are not known: %s", answer.DaemonError)
	}
	var rows [][]string
	for _, f := range answer.Features {
		rows = append(rows, []string{f.Name, f.Supported.String(), orDash(f.Detail)})
	}
	p.table([]string{"FEATURE", "SUPPORTED", "DETAIL"}, rows)
	rows = nil
	for _, f := range answer.Features {
		if f.Missing != "" {
			rows = append(rows, []string{f.Name, f.Missing})
		}
	}
	p.table([]string{"FOR BETTER", "IT TAKES"}, rows)
	return p
}
