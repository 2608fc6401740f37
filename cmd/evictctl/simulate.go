package main

import (
	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/config/strict"
	"github.com/evictd/evictd/agent/scenario"
)

func newSimulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate FILE...",
		Short: "Replay a scenario and show what evictd would evict",
		Long: `Simulate replays scenarios: files with a configuration, the pods of a node and
observations, step by step. It prints what evictd would decide in each step. It
runs evictd's own code with simulated time, on any machine. FILE may be - for the
standard input.

With -o json it prints one object per line: the pods and thresholds, then every
step.

It exits with 0 if all scenarios were replayed. If a file is invalid, it prints the
errors of all files, replays none and exits with 1.`,
		Example: `  # What would a threshold of 1Gi do on this node?
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
