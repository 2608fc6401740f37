package main

import (
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/affinity"
)

func newAffinityExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain -f FILE --node FILE | --live POD",
		Short: "Print each requirement of pods and what the nodes have",
		Long: `Explain prints for each pod and each node every requirement with the label of the
node and the verdict, every preferred term, whether the pod would violate the
annotation if it ran there, and where the node affinity proposal and Kubernetes
interpret the pod in different ways. evictd follows Kubernetes.` + affinityExits + `

With --live it explains a pod of the cluster, which it reads with its node by kubectl
and your credentials: whether evictd-controller would evict it, the first thing in
these objects that holds the eviction back and what to do, and the events of
evictd-controller. A pod that is Pending is compared with all nodes. It then exits
with 0 if the pod does not violate, with 1 if it does, or is Pending and matches no
node, and with 2 if its annotation can't be read or kubectl fails.`,
		Example: `  evictctl affinity explain -f pod.yaml --node node.yaml

  # Why is this pod not evicted?
  evictctl affinity explain --live -n shop web-0 --controller-namespace evictd`,
	}
	format := addAffinityFlags(cmd, func(stdout io.Writer, in *affinityReader, format output) (bool, error) {
		explained := explainAll(in)
		matches := make([]affinityMatch, len(explained))
		for i, e := range explained {
			matches[i] = e.affinityMatch
		}
		matched := allMatched(in, matches)
		if format == outputJSON {
			return matched, printJSON(stdout, explained)
		}
		var p page
		for i, e := range explained {
			if i > 0 {
				p.line("")
			}
			printExplained(&p, e)
			if (i+1)%len(in.nodes) == 0 {
				printDifferences(&p, e.Differences) // the last node of the pod
			}
		}
		return matched, p.print(stdout)
	})
	addLive(cmd, format)
	return cmd
}

// affinityExplained is all that is known of a pod and a node, in JSON.
type affinityExplained struct {
	affinityMatch
	Violates     bool                 `json:"violates"`
	Requirements []affinityReason     `json:"requirements"`
	Preferred    []affinityPreferred  `json:"preferred"`
	Differences  []affinityDifference `json:"differences"`
}

// affinityPreferred is a preferred term in JSON.
type affinityPreferred struct {
	Weight       int32    `json:"weight"`
	Match        bool     `json:"match"`
	Requirements []string `json:"requirements"`
}

// affinityDifference is an affinity.Difference in JSON.
type affinityDifference struct {
	Field      string `json:"field"`
	Proposal   string `json:"proposal"`
	Kubernetes string `json:"kubernetes"`
}

// explainAll compares each pod with each node.
func explainAll(in *affinityReader) []affinityExplained {
	out := []affinityExplained{}
	matches := matchAll(in)
	for i, p := range in.pods {
		for j, n := range in.nodes {
			e := affinityExplained{
				affinityMatch: matches[i*len(in.nodes)+j], Violates: !p.requirement.MatchesExecution(n),
				Requirements: []affinityReason{}, Preferred: []affinityPreferred{}, Differences: []affinityDifference{},
			}
			for _, c := range p.requirement.Explain(n) {
				e.Requirements = append(e.Requirements, newAffinityReason(c.Reason, c.Match))
			}
			for _, c := range p.preferred.Explain(n) {
				e.Preferred = append(e.Preferred, affinityPreferred{c.Weight, c.Match, append([]string{}, c.Requirements...)})
			}
			for _, d := range p.differences {
				e.Differences = append(e.Differences, affinityDifference(d))
			}
			out = append(out, e)
		}
	}
	return out
}

func verdictWord(match bool) string {
	if match {
		return "match"
	}
	return "no match"
}

// printExplained adds a pod and a node to a page.
func printExplained(p *page, e affinityExplained) {
	p.line("pod: %s (%s)", e.Pod, e.Place)
	p.line("node: %s", e.Node)
	p.line("verdict: %s", verdictWord(e.Match))
	violates := "no, " + affinity.Annotation + " matches or is absent"
	if e.Violates {
		violates = "yes, a pod that runs here does not match " + affinity.Annotation
	}
	p.line("violates: %s", violates)
	if len(e.Requirements) == 0 {
		p.line("The pod requires nothing of its node.")
	}
	var rows [][]string
	for _, r := range e.Requirements {
		term := "-"
		if r.Term != nil {
			term = strconv.Itoa(*r.Term + 1)
		}
		rows = append(rows, []string{r.Source, term, verdictWord(r.Match), r.Message})
	}
	p.table([]string{"SOURCE", "TERM", "VERDICT", "REQUIREMENT AND LABEL"}, rows)
	rows = nil
	for i, t := range e.Preferred {
		text := strings.Join(t.Requirements, " and ")
		if text == "" {
			text = "nothing: an empty term adds 0"
		}
		rows = append(rows, []string{strconv.Itoa(i + 1), strconv.Itoa(int(t.Weight)), verdictWord(t.Match), text})
	}
	p.table([]string{"PREFERRED", "WEIGHT", "VERDICT", "REQUIREMENTS"}, rows)
}

// printDifferences adds where the proposal and Kubernetes differ about a pod.
func printDifferences(p *page, differences []affinityDifference) {
	var rows [][]string
	for _, d := range differences {
		rows = append(rows, []string{d.Field, "proposal: " + d.Proposal + "; Kubernetes and evictd: " + d.Kubernetes})
	}
	p.table([]string{"DIFFERENT MEANING", "PROPOSAL AND KUBERNETES"}, rows)
}
