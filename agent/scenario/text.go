package scenario

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/evictd/evictd/agent/signal"
)

// WriteText replays the scenario as text.
func (s *Scenario) WriteText(w io.Writer) error {
	var b strings.Builder
	h := s.Header()
	b.WriteString("pods\n")
	writePods(&b, h.Pods)
	b.WriteString("thresholds\n")
	writeThresholds(&b, h.Thresholds)
	for step := range s.Replay() {
		step.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writePods(b *strings.Builder, pods []Pod) {
	if len(pods) == 0 {
		b.WriteString("  none\n")
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, p := range pods {
		scores := make([]string, len(p.Containers))
		for i, c := range p.Containers {
			scores[i] = fmt.Sprintf("%s %d", c.Name, c.OOMScoreAdj)
		}
		class := string(p.QoSClass)
		if p.Critical {
			class += ", critical"
		}
		fmt.Fprintf(t, "  %s\t%s\toom_score_adj: %s\n", p.Pod, class, strings.Join(scores, ", "))
	}
	t.Flush() // writes to memory and can't fail
}

func writeThresholds(b *strings.Builder, thresholds []Threshold) {
	if len(thresholds) == 0 {
		b.WriteString("  none\n")
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, one := range thresholds {
		when := "at once"
		if one.GracePeriod != "0s" {
			when = "after " + one.GracePeriod
		}
		if one.MinReclaim != "0" {
			when += ", until " + one.MinReclaim + " above it"
		}
		fmt.Fprintf(t, "  %s\t< %s\t%s\n", one.Signal, one.Value, when)
	}
	t.Flush()
}

// write prints the step without empty lines.
func (s *Step) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n", s.At)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "  %-11s %s\n", name, text)
		}
	}
	for _, e := range s.Errors {
		line("error", e)
	}
	line("met", join(s.Met, signal.Signal.String, ", "))
	line("waiting", join(s.Waiting, func(w signal.Signal) string { return w.String() + " (file cache caused the crossing)" }, ", "))
	line("conditions", join(s.Conditions, func(c signal.Condition) string { return string(c) }, ", "))
	for _, p := range s.Added {
		line("added", fmt.Sprintf("%s, %s", p.Pod, p.QoSClass))
	}
	for _, kind := range s.Reclaim {
		line("reclaim", "unused "+string(kind))
	}
	line("ranking", strings.Join(s.Ranking, " > "))
	line("exempt", join(s.Exempt, func(e Exempt) string { return e.Pod + " (" + e.Reason + ")" }, ", "))
	for _, e := range s.Evictions {
		line("evict", fmt.Sprintf("%s for %s, grace %ds", e.Pod, e.Signal, e.GracePeriodSeconds))
		line("", strings.TrimSpace(e.Message))
	}
	line("refuses", strings.Join(s.Admission.refused(), ", "))
	for _, key := range slices.Sorted(maps.Keys(s.Admitted)) {
		verdict := " refused"
		if s.Admitted[key] {
			verdict = " admitted"
		}
		line("admission", key+verdict)
	}
	if len(s.Met)+len(s.Conditions)+len(s.Evictions)+len(s.Errors) == 0 {
		line("met", "none")
	}
}

// refused returns the kinds of new pods that the node does not accept.
func (a Admission) refused() []string {
	var kinds []string
	for _, k := range []struct {
		name     string
		admitted bool
	}{{"critical", a.Critical}, {"Guaranteed", a.Guaranteed}, {"Burstable", a.Burstable}, {"BestEffort", a.BestEffort}} {
		if !k.admitted {
			kinds = append(kinds, k.name)
		}
	}
	return kinds
}

func join[T any](list []T, text func(T) string, separator string) string {
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = text(one)
	}
	return strings.Join(texts, separator)
}
