package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/config/strict"
)

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Validate and print configurations",
		RunE:  needsSubcommand,
		Example: `  evictctl config check /etc/evictd/config.yaml
  evictctl config dump --kubelet-config /var/lib/kubelet/config.yaml`,
	}
	cmd.AddCommand(newConfigCheckCommand())
	cmd.AddCommand(newConfigDumpCommand())
	return cmd
}

func newConfigCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Validate configuration files",
		Long: `Check reads AgentConfiguration files in the same way as evictd, and prints all
errors at once, each as

  FILE:LINE: FIELD: error; what is allowed

It needs no running evictd and changes nothing. Lines that begin with "notice:" are
remarks on valid configurations.

It exits with 0 if all files are valid, and with 1 if one is not.`,
		Example: `  # Before you roll out a configuration
  evictctl config check config.yaml

  # In a machine-readable format
  evictctl config check -o json *.yaml`,
		Args: cobra.MinimumNArgs(1),
	}
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		verdicts, valid := make([]verdict, 0, len(files)), true
		for _, file := range files {
			v := checkFile(file)
			verdicts = append(verdicts, v)
			valid = valid && v.Valid
		}
		if err := printVerdicts(cmd.OutOrStdout(), cmd.ErrOrStderr(), *format, verdicts); err != nil {
			return err
		}
		if !valid {
			return errReported
		}
		return nil
	}
	return cmd
}

// verdict is the result of checking one file.
type verdict struct {
	File    string           `json:"file"`
	Valid   bool             `json:"valid"`
	Errors  []strict.Problem `json:"errors"`
	Notices []strict.Problem `json:"notices"`
}

func checkFile(file string) verdict {
	v := verdict{File: file, Errors: []strict.Problem{}, Notices: []strict.Problem{}}
	c, err := config.Load(config.Options{Path: file, PathGiven: true})
	var problems strict.Problems
	switch {
	case err == nil:
		v.Valid = true
		v.Notices = append(v.Notices, c.Notices...)
	case errors.As(err, &problems):
		v.Errors = problems
	default:
		v.Errors = append(v.Errors, strict.Problem{Message: err.Error()})
	}
	return v
}

func printVerdicts(stdout, stderr io.Writer, format output, verdicts []verdict) error {
	if format == outputJSON {
		return printJSON(stdout, struct {
			Files []verdict `json:"files"`
		}{verdicts})
	}
	for _, v := range verdicts {
		for _, p := range v.Errors {
			fmt.Fprintln(stderr, p)
		}
		printNotices(stderr, v.Notices)
		if v.Valid {
			if _, err := fmt.Fprintf(stdout, "%s: valid\n", v.File); err != nil {
				return err
			}
		}
	}
	return nil
}

func printNotices(stderr io.Writer, notices []strict.Problem) {
	for _, n := range notices {
		fmt.Fprintln(stderr, "notice:", n)
	}
}

func newConfigDumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the configuration in force and the origin of each value",
		Long: `Dump reads the configuration in the same way as evictd with the same flags, and
prints every value in force with its origin: default, kubelet (a
KubeletConfiguration), file (the AgentConfiguration) or flag. The output is a valid
AgentConfiguration.`,
		Example: `  # What is the default configuration?
  evictctl config dump

  # Which values would come from the kubelet?
  evictctl config dump --kubelet-config /var/lib/kubelet/config.yaml

  # All values that are not defaults
  evictctl config dump -o json | jq '.[] | select(.origin != "default")'`,
		Args: cobra.NoArgs,
	}
	o := config.Options{}
	cmd.Flags().StringVar(&o.Path, "config", config.DefaultPath, "read the AgentConfiguration from `FILE`; the default file may be missing")
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "switch dry run on, as evictd --dry-run does")
	cmd.Flags().StringVar(&o.KubeletPath, "kubelet-config", "", "read eviction and shutdown settings from the KubeletConfiguration `FILE`; --config overrides it field by field")
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.PathGiven = cmd.Flags().Changed("config")
		c, err := config.Load(o)
		if err != nil {
			return reportLoad(cmd.ErrOrStderr(), err)
		}
		printNotices(cmd.ErrOrStderr(), c.Notices)
		if *format == outputJSON {
			values, err := c.Values()
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), values)
		}
		text, err := c.Dump()
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write(text)
		return err
	}
	return cmd
}

// reportLoad prints the problems of files in the format of check, FILE:LINE:, which
// editors understand. It returns other errors.
func reportLoad(stderr io.Writer, err error) error {
	var problems strict.Problems
	if !errors.As(err, &problems) {
		return err
	}
	fmt.Fprintln(stderr, problems)
	return errReported
}
