package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/agent/metrics"
)

// nodeObjectStatus describes what evictd-kube maintains on the Node object.
func nodeObjectStatus(s kube.NodeStatus, now time.Time) *control.NodeObject {
	n := &control.NodeObject{Decided: s.Decided, UnwrittenSeconds: control.Age(s.Unwritten, now), Why: s.Why}
	for _, m := range kube.Maintained {
		wanted, written := find(s.Wanted, m.Type), find(s.Written, m.Type)
		if wanted == nil && written == nil {
			continue
		}
		c := control.NodeCondition{Type: m.Type, Taint: kube.NodeConditions[m.Type].Taint, Status: conditionStatus(wanted)}
		if wanted != nil {
			c.Since = wanted.Since
		}
		if s.Reported {
			c.Written = conditionStatus(written)
		}
		n.Conditions = append(n.Conditions, c)
	}
	return n
}

// find returns the condition of a type; nil if there is none.
func find(list []kube.NodeCondition, name string) *kube.NodeCondition {
	if i := slices.IndexFunc(list, func(c kube.NodeCondition) bool { return c.Type == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// conditionStatus returns the status of a condition as the Node object has it. It is Unknown for
// one that is not maintained.
func conditionStatus(c *kube.NodeCondition) string {
	switch {
	case c == nil:
		return "Unknown"
	case c.Status:
		return "True"
	}
	return "False"
}

// nodeObjectWarning returns a warning if the conditions of the Node have not been written for
// unansweredLimit; "" otherwise.
func nodeObjectWarning(s kube.NodeStatus, now time.Time) string {
	if s.Unwritten.IsZero() || now.Sub(s.Unwritten) < unansweredLimit {
		return ""
	}
	why := s.Why
	if why == "" {
		why = "no answer of evictd-kube"
	}
	return fmt.Sprintf("conditions and taints of the Node have not been written for %v: %s", now.Sub(s.Unwritten).Round(time.Second), why)
}

// nodeObjectMetrics adds the state of the Node object. A condition has the name that it has in
// evictd_node_condition.
func nodeObjectMetrics(m *metrics.Kubernetes, s kube.NodeStatus, now time.Time) {
	m.ConditionsReported = map[string]bool{}
	for _, c := range kube.Maintained {
		written := find(s.Written, c.Type)
		m.ConditionsReported[string(c.Condition)] = written != nil && written.Status
	}
	if !s.Unwritten.IsZero() {
		m.ConditionsUnwritten = max(0, now.Sub(s.Unwritten))
	}
}
