package scenario

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteText replays the scenario as text.
func (s *Shutdown) WriteText(w io.Writer) error {
	var b strings.Builder
	h := s.Header()
	b.WriteString("groups\n")
	h.write(&b)
	for step := range s.Replay() {
		step.write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (h *ShutdownHeader) write(b *strings.Builder) {
	if len(h.Groups) == 0 {
		b.WriteString("  none: no pod is stopped\n")
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, g := range h.Groups {
		pods := strings.Join(g.Pods, ", ")
		if len(g.LaterWaves) > 0 {
			pods = strings.TrimPrefix(pods+"; then "+strings.Join(g.LaterWaves, ", "), "; ")
		}
		if pods == "" {
			pods = "no pods"
		}
		fmt.Fprintf(t, "  from %d\t%s\t%s\n", g.Priority, g.Time, pods)
	}
	t.Flush() // writes to memory and can't fail
	fmt.Fprintf(b, "needs %s", h.Needs)
	if h.Allowed != nil {
		fmt.Fprintf(b, ", allowed %s", *h.Allowed)
	}
	b.WriteString("\n")
}

// write prints the instant without empty lines.
func (s *ShutdownStep) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n", s.At)
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(b, "  %-7s %s\n", name, text)
		}
	}
	line("event", s.Event)
	line("added", strings.Join(s.Added, ", "))
	for _, g := range s.Gone {
		how := " stopped after "
		if g.Killed {
			how = " killed after "
		}
		line("gone", g.Pod+how+g.After)
	}
	for _, stop := range s.Stop {
		line("stop", fmt.Sprintf("%s, grace %ds: %s", stop.Pod, stop.GracePeriodSeconds, stop.Reason))
	}
	line("kill", strings.Join(s.Kill, ", "))
	if s.Group != nil {
		line("phase", fmt.Sprintf("%s, from %d", s.Phase, *s.Group))
	} else {
		line("phase", s.Phase)
	}
}
