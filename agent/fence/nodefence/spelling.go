package nodefence

import (
	"errors"
	"fmt"
	"strings"

	"github.com/evictd/evictd/agent/fence"
)

// steps and statuses have the accepted spellings, folded by fold. Each step has more than one in the node fencing
// proposal.
var (
	steps = map[string]fence.StepName{
		"isolation":        fence.Isolation,
		"power-management": fence.PowerManagement,
		"power-managment":  fence.PowerManagement,
		"recovery":         fence.Recovery,
		"recover":          fence.Recovery,
	}
	statuses = map[string]fence.Status{
		"new":     fence.New,
		"running": fence.Running,
		"done":    fence.Done,
		"error":   fence.Error,
	}
)

// fold returns a spelling without what it may differ in: case, and "_" for "-".
func fold(s string) string { return strings.ReplaceAll(strings.ToLower(s), "_", "-") }

// Normalize replaces the step and the status by evictd's spellings of them. An unknown one stays, and is an error.
// Every reader of a NodeFence calls it before it uses the object, which must not be one that a cache shares.
func (f *NodeFence) Normalize() error {
	var problems []error
	if step, ok := steps[fold(string(f.Step))]; ok {
		f.Step = step
	} else {
		problems = append(problems, fmt.Errorf(
			"read NodeFence %s: step is %q; set it to Isolation, Power-Management or Recovery", f.Name, f.Step))
	}
	if status, ok := statuses[fold(string(f.Status))]; ok {
		f.Status = status
	} else {
		problems = append(problems, fmt.Errorf(
			"read NodeFence %s: status is %q; set it to New, Running, Done or Error", f.Name, f.Status))
	}
	return errors.Join(problems...)
}
