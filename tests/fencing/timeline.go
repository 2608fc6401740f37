package fencing

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/evictd/evictd/tests/bmc"
)

// Timeline has what has happened in a cluster, in order.
type Timeline struct {
	mu     sync.Mutex
	audit  auditReader
	bmcs   map[string]*bmc.Simulator // by machine
	calls  map[string]int            // how many of the BMC's log are events
	events []Event
}

func newTimeline(auditLog string) *Timeline {
	return &Timeline{
		audit: auditReader{file: auditLog, taints: map[string][]corev1.Taint{}, fences: map[string]string{}, pods: map[string]string{}},
		bmcs:  map[string]*bmc.Simulator{}, calls: map[string]int{},
	}
}

func (t *Timeline) add(e Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, e)
}

// Events returns all events until now, oldest first.
func (t *Timeline) Events() ([]Event, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	more, err := t.audit.read()
	if err != nil {
		return nil, err
	}
	t.events = append(t.events, more...)
	for machine, sim := range t.bmcs {
		calls, err := sim.Log()
		if err != nil {
			return nil, err
		}
		for _, c := range calls[t.calls[machine]:] {
			t.events = append(t.events, callEvent(machine, c))
		}
		t.calls[machine] = len(calls)
	}
	slices.SortStableFunc(t.events, func(a, b Event) int { return a.At.Compare(b.At) })
	return slices.Clone(t.events), nil
}

func callEvent(machine string, c bmc.Call) Event {
	e := Event{At: c.At, Kind: Kind("BMC: " + c.Action), Object: machine, Node: machine, Ignored: c.Effect != "done"}
	switch c.Action {
	case "power 0":
		e.Kind = CommandOff
	case "power 1":
		e.Kind = CommandOn
	}
	return e
}

// Find returns the first event of a kind for which all of some conditions are true.
func Find(events []Event, kind Kind, match ...func(*Event) bool) (Event, bool) {
	i := slices.IndexFunc(events, func(e Event) bool {
		return e.Kind == kind && !slices.ContainsFunc(match, func(m func(*Event) bool) bool { return !m(&e) })
	})
	if i < 0 {
		return Event{}, false
	}
	return events[i], true
}

// On matches the events of a node.
func On(node string) func(*Event) bool {
	return func(e *Event) bool { return e.Node == node || e.Object == node }
}

// Detail matches the events with a detail.
func Detail(detail string) func(*Event) bool {
	return func(e *Event) bool { return e.Detail == detail }
}

// Violations returns what was released from a machine while that was on, or while nobody knew: a pod that was removed
// by somebody other than the node's kubelet, a volume that was detached before the pod, an out-of-service taint, and
// such a taint that was still there when the machine was switched on.
func Violations(events []Event) (list []string) {
	off, running := map[string]bool{}, map[string]bool{}
	tainted := map[string]bool{}
	for _, e := range events {
		violation := ""
		switch e.Kind {
		case CommandOff:
			off[e.Object] = off[e.Object] || !e.Ignored
		case CommandOn:
			if e.Ignored {
				continue
			}
			off[e.Object] = false
			if tainted[e.Object] {
				violation = "the machine is switched on with the out-of-service taint"
			}
		case OutOfService:
			tainted[e.Node] = true
			violation = "the machine is on"
		case InService:
			// The removal must have ended before the machine is switched on.
			tainted[e.Node] = slices.ContainsFunc(events, func(o Event) bool {
				return o.Kind == CommandOn && o.Object == e.Node && !o.At.Before(e.At) && o.At.Before(e.Done)
			})
		case PodRuns:
			running[e.Node] = true
		case PodRemoved:
			if e.By != e.Node { // not the kubelet
				violation = "the machine is on"
			} else {
				running[e.Node] = false
			}
		case AttachmentDeleted:
			if running[e.Node] {
				violation = "the machine is on and its pod was running"
			}
		}
		if violation != "" && (e.Kind == CommandOn || !off[e.Node]) {
			list = append(list, fmt.Sprintf("%s at %s: %s", strings.TrimSpace(e.String()), e.At.Format("15:04:05.000"), violation))
		}
	}
	return list
}

// Print returns the events with their seconds since a time.
func Print(events []Event, start time.Time) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "%8.3fs  %s\n", e.At.Sub(start).Seconds(), e)
	}
	return b.String()
}
