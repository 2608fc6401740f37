package main

import (
	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/probe"
)

// probed is the JSON output of probe.
type probed struct {
	Features []probe.Feature `json:"features"`
	// Daemon is from the running evictd. It is null if the request failed, for the
	// reason in DaemonError.
	Daemon      *probedDaemon `json:"daemon"`
	DaemonError string        `json:"daemonError,omitempty"`
}

// probedDaemon is the part of evictd's status that probe shows.
type probedDaemon struct {
	Mode    control.Mode               `json:"mode"`
	Runtime control.Runtime            `json:"runtime"`
	Lanes   control.List[control.Lane] `json:"lanes"`
	// Kubelet is the kubelet's configuration; absent if no evictd-kube is configured.
	Kubelet *control.KubeletConfiguration `json:"kubelet,omitempty"`
}

func newProbeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "probe",
		Short: "Show which features the kernel and your privileges support",
		Long: `Show which features the kernel, its cgroup tree and your privileges support, and
what is missing. Each feature is tried, and the test leaves nothing behind. The
results are valid for the user and container in which you run the command: run it
as the same user, and in the same place, as evictd.

If evictd is running, the command shows its mode, runtime and lanes too, and how the
configuration of the kubelet next to it differs from what fits evictd's (evictctl
kubelet-config), with the consequence and the remedy.`,
		Args: cobra.NoArgs,
		Example: `  sudo evictctl probe

  # What is missing?
  evictctl probe -o json | jq '.features[] | select(.supported != "yes")'`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	procfs := cmd.Flags().String("path.procfs", "/proc", "`directory` of the node's proc filesystem")
	sysfs := cmd.Flags().String("path.sysfs", "/sys", "`directory` of the node's sys filesystem")
	cgroupfs := cmd.Flags().String("path.cgroupfs", "/sys/fs/cgroup", "`directory` of the node's cgroup filesystem")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		answer := probed{Features: probe.Run(kernel.FS(*procfs), kernel.FS(*sysfs), kernel.FS(*cgroupfs))}
		s, err := control.NewClient(*socket).Status(cmd.Context())
		if err != nil {
			answer.DaemonError = withRemedy(err).Error()
		} else {
			answer.Daemon = &probedDaemon{Mode: s.Mode, Runtime: s.Runtime, Lanes: s.Lanes}
			if s.Kubernetes != nil {
				answer.Daemon.Kubelet = &s.Kubernetes.Kubelet
			}
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
		if d.Kubelet != nil {
			p.line("kubelet:     %s", kubeletLine(d.Kubelet))
			p.table(differenceHeads, differenceRows(d.Kubelet))
		}
		p.table(laneHeads, laneRows(d.Lanes))
	} else {
		p.line("mode, runtime and lanes are unknown: %s", answer.DaemonError)
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
	p.table([]string{"FEATURE", "REQUIRES"}, rows)
	return p
}
