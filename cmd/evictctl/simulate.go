package main

import (
	"bufio"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/scenario"
)

func newSimulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate FILE...",
		Short: "Replay a timeline of observations: what would have been evicted?",
		Long: `Simulate replays scenarios: files that hold a configuration, the pods of a node
and, step by step, what was observed of it. It prints what evictd would have
decided in each step, by the code that evictd itself runs, with simulated time
and on any machine. FILE may be - for the standard input.

With -o json it prints one object a line: the pods and thresholds, then every
step.

It exits with 0 when all scenarios were replayed, and with 1 when a file is
invalid; then it prints everything that is wrong with all of them, and replays
none.`,
		Example: `  # What would a threshold of 1Gi have done to this node?
  cat >node.yaml <<EOF
  apiVersion: evictd.io/v1alpha1
  kind: Scenario
  node: {capacity: {memory: 10Gi}}
  config:
    evictionHard: {memory.available: 1Gi}
  pods:
  - namespace: default
    name: web
    containers: [{name: c, requests: {memory: 100Mi}, usage: {memory: 700Mi}}]
  steps:
  - {at: 0s, signals: {memory.available: 1500Mi}}
  - {at: 10s, signals: {memory.available: 700Mi}}
  EOF
  evictctl simulate node.yaml

  # Only the evictions
  evictctl simulate -o json node.yaml | jq -c '.evictions[]?'`,
		Args: cobra.MinimumNArgs(1),
	}
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		scenarios, err := readScenarios(cmd.InOrStdin(), files)
		if err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), err)
			return errReported
		}
		out := bufio.NewWriter(cmd.OutOrStdout())
		for i, s := range scenarios {
			printNotices(cmd.ErrOrStderr(), s.Notices)
			if *format == outputJSON {
				err = s.WriteJSON(out)
			} else {
				err = writeScenario(out, s, i, files)
			}
			if err != nil {
				return err
			}
		}
		return out.Flush()
	}
	return cmd
}

// readScenarios reads all files. The error holds what is wrong with any.
func readScenarios(stdin io.Reader, files []string) ([]*scenario.Scenario, error) {
	var scenarios []*scenario.Scenario
	var errs []error
	for _, file := range files {
		s, err := readScenario(stdin, file)
		scenarios, errs = append(scenarios, s), append(errs, err)
	}
	return scenarios, strict.Join(errs...)
}

func readScenario(stdin io.Reader, file string) (*scenario.Scenario, error) {
	read := func() ([]byte, error) { return strict.ReadFile(file) }
	name := file
	if file == "-" {
		read, name = func() ([]byte, error) { return strict.Read(stdin) }, "<stdin>"
	}
	data, err := read()
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	return scenario.Parse(name, data)
}

// writeScenario prints a scenario for people, under its name where there are
// several.
func writeScenario(w io.Writer, s *scenario.Scenario, i int, files []string) error {
	if len(files) > 1 {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n\n", files[i])
	}
	return s.WriteText(w)
}
