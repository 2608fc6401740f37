package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/fence"
	fenceplan "github.com/evictd/evictd/agent/fence/plan"
)

func newFenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Validate, print and confirm how dead nodes are fenced",
		RunE:  needsSubcommand,
		Example: `  evictctl fence config check fencing.yaml
  evictctl fence plan host1 fencing.yaml
  evictctl fence list`,
	}
	config := &cobra.Command{
		Use:     "config",
		Short:   "Validate the configuration of fencing",
		RunE:    needsSubcommand,
		Example: `  evictctl fence config check fencing.yaml`,
	}
	config.AddCommand(newFenceCheckCommand())
	cmd.AddCommand(config)
	cmd.AddCommand(newFenceConfirmCommand())
	cmd.AddCommand(newFenceDrillCommand())
	cmd.AddCommand(newFenceListCommand())
	cmd.AddCommand(newFencePlanCommand())
	cmd.AddCommand(newFenceShowCommand())
	return cmd
}

func newFenceCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Validate ConfigMaps and Secrets of fencing",
		Long: `Check reads the ConfigMaps and Secrets in YAML files, with one or more documents
and with lists, in the same way as evictd-controller reads those of its namespace.
It needs no cluster. It prints all problems at once, each as

  OBJECT line LINE: KEY: error; what to do

LINE is the line in the text of the properties. Lines that begin with "warning:" are
about valid configurations.

Of Secrets only the keys are read: their values can be empty.

A FILE that ends in .xml is the metadata of a ClusterLabs fence agent, as printed by
"fence_NAME -o metadata". The parameters of a fence agent without such a file are not
checked, with a warning.

It exits with 0 if all is valid, and with 1 if it is not.`,
		Example: `  # Before you apply the configuration
  evictctl fence config check fencing.yaml

  # Which nodes can be fenced with the configuration of the cluster?
  kubectl -n evictd get configmaps,secrets -o yaml > all.yaml
  evictctl fence config check all.yaml

  # With the parameters of a fence agent
  fence_apc -o metadata > fence_apc.xml
  evictctl fence config check fencing.yaml fence_apc.xml`,
		Args: cobra.MinimumNArgs(1),
	}
	namespace := addNamespaceFlag(cmd)
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		c, problems, err := loadFencing(files, *namespace)
		if err != nil {
			return err
		}
		valid := !slices.ContainsFunc(problems, func(p fenceplan.Problem) bool { return !p.Warning })
		if *format == outputJSON {
			err = printJSON(cmd.OutOrStdout(), fencingVerdict(c, problems, valid))
		} else {
			printProblems(cmd.ErrOrStderr(), problems)
			err = printNodes(cmd.OutOrStdout(), c)
		}
		if err != nil {
			return err
		}
		if !valid {
			return errReported
		}
		return nil
	}
	return cmd
}

func addNamespaceFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("namespace", "n", "", "read the objects of this `NAMESPACE`, and those without one")
}

// fenceProblem is a fenceplan.Problem in JSON.
type fenceProblem struct {
	Object  string `json:"object"`
	Line    int    `json:"line,omitempty"`
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	Warning bool   `json:"warning"`
}

// fenceVerdict is the result of a check.
type fenceVerdict struct {
	Valid    bool              `json:"valid"`
	Enforce  bool              `json:"enforce"`
	Plans    map[string]string `json:"plans"` // hashes, by node
	Refused  []string          `json:"refused"`
	Problems []fenceProblem    `json:"problems"`
}

func fencingVerdict(c fenceplan.Config, problems []fenceplan.Problem, valid bool) fenceVerdict {
	v := fenceVerdict{Valid: valid, Enforce: c.Policy.Enforce, Plans: map[string]string{}, Refused: append([]string{}, c.Refused...), Problems: []fenceProblem{}}
	for node, p := range c.Plans {
		v.Plans[node] = p.Hash
	}
	for _, p := range problems {
		v.Problems = append(v.Problems, fenceProblem(p))
	}
	return v
}

func printProblems(stderr io.Writer, problems []fenceplan.Problem) {
	for _, p := range problems {
		text := printable(p.String())
		if p.Warning {
			text = "warning: " + text
		}
		fmt.Fprintln(stderr, text)
	}
}

// printNodes prints which nodes have a plan.
func printNodes(stdout io.Writer, c fenceplan.Config) error {
	names := slices.Clone(c.Refused)
	for node := range c.Plans {
		names = append(names, node)
	}
	slices.Sort(names)
	var p page
	for _, node := range names {
		text := "has no plan and is not fenced"
		if found, ok := c.Plans[node]; ok {
			text = "has a plan, " + found.Hash
		}
		p.addLine(printable(node) + ": " + text)
	}
	return p.print(stdout)
}

func newFencePlanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan NODE FILE...",
		Short: "Print how a node is fenced",
		Long: `Plan reads files as "evictctl fence config check" does, and prints the plan of one
node: the methods in their order with their devices and parameters, and the times.
It prints no secrets: it has none. SECRETS are the objects whose values
evictd-controller reads when it acts.

A note says if the node's BMC is its only power device. It loses power together with
the machine, and can't prove then that the machine is off.

It exits with 1 if the node has no plan.`,
		Example: `  evictctl fence plan host1 fencing.yaml

  # The plan as it is saved in a NodeFence
  evictctl fence plan host1 -o json fencing.yaml`,
		Args: cobra.MinimumNArgs(2),
	}
	namespace := addNamespaceFlag(cmd)
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, problems, err := loadFencing(args[1:], *namespace)
		if err != nil {
			return err
		}
		printProblems(cmd.ErrOrStderr(), problems)
		found, ok := c.Plans[args[0]]
		switch {
		case !ok && slices.Contains(c.Refused, args[0]):
			return fmt.Errorf("print the plan: node %s has none because of the problems above; correct them", args[0])
		case !ok:
			return fmt.Errorf("print the plan: node %s has none: there is no ConfigMap fence-config-%[1]s; create it", args[0])
		case *format == outputJSON:
			return printJSON(cmd.OutOrStdout(), found)
		}
		return printPlan(cmd.OutOrStdout(), args[0], c.Policy, found)
	}
	return cmd
}

// printPlan prints a plan as tables.
func printPlan(stdout io.Writer, node string, policy fence.Policy, found fence.Plan) error {
	mode := "dry-run: nothing is switched"
	if policy.Enforce {
		mode = "enforce"
	}
	var p page
	p.line("node: %s", node)
	p.line("plan: %s", found.Hash)
	p.line("mode: %s", mode)
	p.line("applies to: %s", policy.AppliesTo)
	p.line("kdump: %s", found.Kdump)
	if fenceplan.OnlyBMC(found) {
		p.line("note: the node's only power device is its BMC, and both lose power together: a node without power can't be proven off; " +
			"its fence waits for a person, or until the BMC answers. A second device, such as a PDU, could prove it")
	}
	var methods, parameters [][]string
	for _, step := range []struct {
		name   fence.StepName
		levels []fence.Level
	}{{fence.Isolation, found.Isolation}, {fence.PowerManagement, found.PowerManagement}, {fence.Recovery, found.Recovery}} {
		for i, level := range step.levels {
			for _, m := range level.Methods {
				methods = append(methods, []string{string(step.name), strconv.Itoa(i + 1), m.Name, string(m.Action), m.Device})
				parameters = append(parameters, []string{m.Name, methodParameters(m)})
			}
		}
	}
	p.table([]string{"STEP", "LEVEL", "METHOD", "ACTION", "DEVICE"}, methods)
	p.table([]string{"METHOD", "PARAMETERS AND SECRETS"}, parameters)
	p.table([]string{"TIME", "VALUE"}, timingRows(found.Timings))
	return p.print(stdout)
}

// methodParameters describes a method, without its action and its device.
func methodParameters(m fence.Method) string {
	success := "no"
	if m.MustSuccess {
		success = "yes"
	}
	parts := []string{"agent=" + m.Agent, "identity=" + string(m.Identity), "must_success=" + success, "timeout=" + span(m.Deadline.Duration)}
	if m.Unverified != "" {
		parts = append(parts, "unverified="+string(m.Unverified))
	}
	if m.SeparatePower {
		parts = append(parts, "separate_power=yes")
	}
	var keys []string
	for key := range m.Parameters {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		parts = append(parts, key+"="+m.Parameters[key])
	}
	text := strings.Join(parts, " ")
	for _, s := range fenceplan.Sources(m) {
		text += ", " + s.String()
	}
	return text
}

func timingRows(t fence.Timings) [][]string {
	rows := [][]string{}
	for _, row := range []struct {
		key   string
		value time.Duration
	}{
		{"grace", t.Grace.Duration}, {"power_delay", t.PowerDelay.Duration},
		{"kdump_max_wait", t.KdumpMaxWait.Duration}, {"proof_timeout", t.ProofTimeout.Duration},
		{"proof_interval", t.ProofInterval.Duration}, {"settle", t.Settle.Duration}, {"release_timeout", t.ReleaseTimeout.Duration},
		{"untaint_delay", t.UntaintDelay.Duration}, {"return_timeout", t.ReturnTimeout.Duration}, {"healthy_delay", t.HealthyDelay.Duration},
		{"total_timeout", t.TotalTimeout.Duration}, {"backoff", t.Backoff.Duration},
	} {
		rows = append(rows, []string{row.key, span(row.value)})
	}
	return append(rows, []string{"giveup_retries", strconv.Itoa(int(t.Retries))})
}
