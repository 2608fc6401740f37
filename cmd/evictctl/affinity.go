package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/agent/affinity"
)

func newAffinityCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "affinity",
		Short: "Compare pods with nodes by node affinity",
		Long: `Affinity compares pods with nodes as evictd-controller does: by nodeSelector, by
requiredDuringSchedulingIgnoredDuringExecution, and by the annotation
` + affinity.Annotation + `. It reads files, without a cluster;
explain --live reads a pod of the cluster by kubectl.

Each -f is a file with Pods and workloads (Deployment, StatefulSet, DaemonSet,
ReplicaSet, ReplicationController, Job, CronJob), each --node one with Nodes, in
documents and lists of YAML or JSON; - is the standard input. Other kinds are
skipped with a warning. Unknown fields are errors.`,
		RunE: needsSubcommand,
		Example: `  kubectl get nodes -o yaml > nodes.yaml
  evictctl affinity match -f pod.yaml --node nodes.yaml`,
	}
	cmd.AddCommand(newAffinityMatchCommand(), newAffinityScoreCommand(), newAffinityExplainCommand())
	return cmd
}

// addAffinityFlags adds the files, and the RunE that reads them and calls run, which returns whether each pod has a
// node that matches. It returns the output format.
func addAffinityFlags(cmd *cobra.Command, run func(stdout io.Writer, in *affinityReader, format output) (bool, error)) *output {
	cmd.Args = cobra.NoArgs
	pods := cmd.Flags().StringArrayP("file", "f", nil, "read pods and workloads from this `FILE`; can be repeated")
	nodes := cmd.Flags().StringArray("node", nil, "read nodes from this `FILE`; can be repeated")
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case len(*pods) == 0:
			return usagef("%s needs -f FILE with a pod", cmd.CommandPath())
		case len(*nodes) == 0:
			return usagef("%s needs --node FILE with a node", cmd.CommandPath())
		}
		in, err := loadAffinity(cmd.InOrStdin(), *pods, *nodes)
		for _, w := range in.warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+printable(w))
		}
		if err != nil {
			return err
		}
		matched, err := run(cmd.OutOrStdout(), in, *format)
		if err == nil && !matched {
			return errReported
		}
		return err
	}
	return format
}

const affinityExits = `

It exits with 0 if each pod matches at least one of the nodes, with 1 if one does
not, and with 2 if a file can't be used; each problem is then printed as
FILE:LINE: error; what to do.`

func newAffinityMatchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "match -f FILE --node FILE",
		Short: "Print which pods match which nodes",
		Long: `Match prints for each pod and each node whether the pod can be placed there, and
what does not match.` + affinityExits,
		Example: `  evictctl affinity match -f deployment.yaml --node node.yaml

  # The nodes of the cluster
  kubectl get nodes -o yaml | evictctl affinity match -f pod.yaml --node -`,
	}
	addAffinityFlags(cmd, func(stdout io.Writer, in *affinityReader, format output) (bool, error) {
		results := matchAll(in)
		matched := allMatched(in, results)
		if format == outputJSON {
			return matched, printJSON(stdout, results)
		}
		var rows [][]string
		for _, m := range results {
			if m.Match {
				rows = append(rows, []string{m.Pod, m.Node, "match", ""})
			}
			for _, reason := range m.Reasons {
				rows = append(rows, []string{m.Pod, m.Node, "no match", reason.Message})
			}
		}
		return matched, printMatched(stdout, matched, []string{"POD", "NODE", "VERDICT", "REASON"}, rows)
	})
	return cmd
}

// printMatched prints a table with the verdict about all pods above it.
func printMatched(stdout io.Writer, matched bool, header []string, rows [][]string) error {
	var p page
	p.line("verdict: %s", verdictWord(matched))
	p.table(header, rows)
	return p.print(stdout)
}

// affinityReason is a part of a requirement in JSON.
type affinityReason struct {
	Source   string   `json:"source"`
	Term     *int     `json:"term,omitempty"` // the index
	Key      string   `json:"key,omitempty"`
	Field    bool     `json:"field,omitempty"`
	Operator string   `json:"operator,omitempty"`
	Values   []string `json:"values,omitempty"`
	Value    *string  `json:"value"` // null if the node has no such label
	Match    bool     `json:"match"`
	Message  string   `json:"message"`
}

func newAffinityReason(r affinity.Reason, match bool) affinityReason {
	out := affinityReason{
		Source: r.Source, Key: r.Key, Field: r.Field, Operator: string(r.Operator), Values: r.Values,
		Match: match, Message: r.Message(),
	}
	if r.Present {
		out.Value = &r.Value
	}
	if r.Term >= 0 {
		out.Term = &r.Term
	}
	return out
}

// affinityMatch is the comparison of a pod with a node in JSON.
type affinityMatch struct {
	Pod     string           `json:"pod"`
	Place   string           `json:"place"`
	Node    string           `json:"node"`
	Match   bool             `json:"match"`
	Reasons []affinityReason `json:"reasons"`
}

// matchAll compares each pod with each node.
func matchAll(in *affinityReader) []affinityMatch {
	out := []affinityMatch{}
	for _, p := range in.pods {
		for _, n := range in.nodes {
			v := p.requirement.Match(n)
			m := affinityMatch{Pod: p.name, Place: p.place, Node: n.Name, Match: v.Match, Reasons: []affinityReason{}}
			for _, r := range v.Reasons {
				m.Reasons = append(m.Reasons, newAffinityReason(r, false))
			}
			out = append(out, m)
		}
	}
	return out
}

// allMatched says whether each pod matches a node. The results are those of matchAll.
func allMatched(in *affinityReader, results []affinityMatch) bool {
	for ofPod := range slices.Chunk(results, len(in.nodes)) {
		if !slices.ContainsFunc(ofPod, func(m affinityMatch) bool { return m.Match }) {
			return false
		}
	}
	return true
}

func newAffinityScoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "score -f FILE --node FILE",
		Short: "Print which nodes the pods prefer",
		Long: `Score prints for each pod the nodes in the order of its preference: by the sum of
the weights of the preferredDuringSchedulingIgnoredDuringExecution terms that match,
and by the score of 0 to 100 that the scheduler makes of it among the nodes that
match what the pod requires.` + affinityExits,
		Example: `  evictctl affinity score -f pod.yaml --node nodes.yaml`,
	}
	addAffinityFlags(cmd, func(stdout io.Writer, in *affinityReader, format output) (bool, error) {
		scores, matched := scoreAll(in)
		if format == outputJSON {
			return matched, printJSON(stdout, scores)
		}
		var rows [][]string
		for _, s := range scores {
			row := []string{s.Pod, s.Node, "-", "-", "no match"}
			if s.Match {
				row = []string{s.Pod, s.Node, strconv.FormatInt(s.Sum, 10), strconv.FormatInt(s.Score, 10), "match"}
			}
			rows = append(rows, row)
		}
		return matched, printMatched(stdout, matched, []string{"POD", "NODE", "SUM", "SCORE", "VERDICT"}, rows)
	})
	return cmd
}

// affinityScore is the preference of a pod for a node in JSON.
type affinityScore struct {
	Pod   string `json:"pod"`
	Place string `json:"place"`
	Node  string `json:"node"`
	Match bool   `json:"match"` // a node that does not match has no score
	Sum   int64  `json:"sum"`
	Score int64  `json:"score"`
}

// scoreAll returns the nodes of each pod in the order of preference, and whether each pod matches one.
func scoreAll(in *affinityReader) ([]affinityScore, bool) {
	out := []affinityScore{}
	matched := true
	for _, p := range in.pods {
		var nodes []*corev1.Node
		var scores []affinityScore
		for _, n := range in.nodes {
			if p.requirement.Matches(n) {
				nodes = append(nodes, n)
			} else {
				scores = append(scores, affinityScore{Pod: p.name, Place: p.place, Node: n.Name})
			}
		}
		matched = matched && len(nodes) > 0
		for _, s := range p.preferred.Scores(nodes) {
			scores = append(scores, affinityScore{
				Pod: p.name, Place: p.place, Node: s.Node, Match: true, Sum: s.Sum, Score: s.Score,
			})
		}
		slices.SortStableFunc(scores, func(a, b affinityScore) int {
			if a.Match != b.Match {
				if a.Match {
					return -1
				}
				return 1
			}
			return cmp.Or(-cmp.Compare(a.Sum, b.Sum), cmp.Compare(a.Node, b.Node))
		})
		out = append(out, scores...)
	}
	return out, matched
}
