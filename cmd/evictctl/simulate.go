package main

import (
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
		return replay(cmd, files, *format, scenario.Parse, func(s *scenario.Scenario) []strict.Problem { return s.Notices })
	}
	return cmd
}
