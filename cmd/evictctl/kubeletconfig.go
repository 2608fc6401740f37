package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/config/kubeletconfig"
	"github.com/evictd/evictd/agent/control"
)

const outputYAML = "yaml"

func newKubeletConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubelet-config",
		Short: "Print what the kubelet next to evictd should be configured to do",
		Long: `Print the fields of a KubeletConfiguration that fit evictd's configuration: hard
thresholds below evictd's, so that evictd evicts first and the kubelet is the last
line of defence, no soft ones, and who stops the pods when the node shuts down.

Add the fields to the kubelet's configuration file, or put the output as a file
NAME.conf into the directory of the kubelet's flag --config-dir. The command reads
evictd's configuration file and needs no running evictd. evictctl probe compares the
configuration of the running kubelet.`,
		Example: `  evictctl kubelet-config

  # As a file of its own, for a kubelet with --config-dir
  evictctl kubelet-config > /etc/kubernetes/kubelet.conf.d/90-evictd.conf`,
		Args: cobra.NoArgs,
	}
	o := config.Options{}
	cmd.Flags().StringVar(&o.Path, "config", config.DefaultPath, "read the AgentConfiguration from `FILE`; the default file may be missing")
	format := cmd.Flags().StringP("output", "o", outputYAML, "output `format`: yaml or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *format != outputYAML && *format != string(outputJSON) {
			return usagef("--output is %q; want %s or %s", *format, outputYAML, outputJSON)
		}
		o.PathGiven = cmd.Flags().Changed("config")
		c, err := config.Load(o)
		if err != nil {
			return reportLoad(cmd.ErrOrStderr(), err)
		}
		printNotices(cmd.ErrOrStderr(), c.Notices)
		fragment := kubeletconfig.For(c)
		if *format == string(outputJSON) {
			return printJSON(cmd.OutOrStdout(), fragment)
		}
		_, err = cmd.OutOrStdout().Write(fragment.YAML())
		return err
	}
	return cmd
}

// kubeletLine describes what is known of the kubelet's configuration.
func kubeletLine(k *control.KubeletConfiguration) string {
	if !k.Known {
		text := "configuration not known"
		if k.Error != "" {
			text += ": " + k.Error
		}
		return text
	}
	text := "configuration read"
	if k.AgeSeconds != nil {
		text += " " + seconds(*k.AgeSeconds) + " ago"
	}
	if k.Error != "" {
		text += ", and now not: " + k.Error
	}
	for i, s := range k.Left {
		if i == 0 {
			text += "; evicts for "
		} else {
			text += ", "
		}
		text += s
	}
	switch n := len(k.Differences); n {
	case 0:
		text += "; fits evictd's"
	case 1:
		text += "; 1 difference, see evictctl probe"
	default:
		text += fmt.Sprintf("; %d differences, see evictctl probe", n)
	}
	return text
}

var differenceHeads = []string{"KUBELET'S", "IS", "FITS", "CONSEQUENCE AND REMEDY"}

func differenceRows(k *control.KubeletConfiguration) [][]string {
	var rows [][]string
	for _, d := range k.Differences {
		rows = append(rows, []string{d.Field, orDash(d.Kubelet), orDash(d.Want), d.Consequence + "; " + d.Remedy})
	}
	return rows
}
