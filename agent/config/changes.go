package config

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Change is a field whose value differs between two configurations. Before or
// After is empty if that configuration does not have the field.
type Change struct {
	Field, Before, After string
}

// Changes returns the differences from an earlier configuration in the order of
// the fields. Fields that only the earlier one has come last.
func (c *Config) Changes(earlier *Config) ([]Change, error) {
	before, err := earlier.texts()
	if err != nil {
		return nil, err
	}
	after, err := c.texts()
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, v := range after {
		at := slices.IndexFunc(before, func(b text) bool { return b.field == v.field })
		switch {
		case at < 0:
			changes = append(changes, Change{Field: v.field, After: v.value})
		case before[at].value != v.value:
			changes = append(changes, Change{Field: v.field, Before: before[at].value, After: v.value})
		}
	}
	for _, v := range before {
		if !slices.ContainsFunc(after, func(a text) bool { return a.field == v.field }) {
			changes = append(changes, Change{Field: v.field, Before: v.value})
		}
	}
	return changes, nil
}

// text is a field and its value as printed for people.
type text struct{ field, value string }

func (c *Config) texts() ([]text, error) {
	values, err := c.Values()
	if err != nil {
		return nil, err
	}
	texts := make([]text, 0, len(values))
	for _, v := range values {
		value, isText := v.Value.(string)
		if !isText {
			b, err := json.Marshal(v.Value)
			if err != nil {
				return nil, fmt.Errorf("print %s: %w", v.Field, err)
			}
			value = string(b)
		}
		texts = append(texts, text{v.Field, value})
	}
	return texts, nil
}

// loggedChanges is the most changes in a log line: a file may have thousands.
const loggedChanges = 20

// ChangesText formats changes for a log line.
func ChangesText(changes []Change) string {
	if len(changes) == 0 {
		return "nothing"
	}
	var texts []string
	for i, c := range changes {
		if i == loggedChanges {
			texts = append(texts, fmt.Sprintf("and %d more", len(changes)-i))
			break
		}
		switch {
		case c.Before == "":
			texts = append(texts, c.Field+": now "+c.After)
		case c.After == "":
			texts = append(texts, c.Field+": no longer "+c.Before)
		default:
			texts = append(texts, c.Field+": "+c.Before+" -> "+c.After)
		}
	}
	return strings.Join(texts, "; ")
}

// NeedRestart returns the fields that differ and are read only at the start of evictd.
func NeedRestart(started, now *Config) (fields []string) {
	if now.RuntimeEndpoint != started.RuntimeEndpoint {
		fields = append(fields, "runtimeEndpoint")
	}
	if now.NodefsPath != started.NodefsPath {
		fields = append(fields, "nodefsPath")
	}
	if now.CgroupRoot != started.CgroupRoot {
		fields = append(fields, "cgroupRoot")
	}
	if now.MemoryAccounting != started.MemoryAccounting {
		fields = append(fields, "memoryAccounting")
	}
	if now.Notification != started.Notification {
		fields = append(fields, "notification")
	}
	if now.Pressure.Memory.Full != started.Pressure.Memory.Full {
		fields = append(fields, "pressure.memory.full")
	}
	if now.Kube != started.Kube {
		fields = append(fields, "kube")
	}
	if now.SelfFencing != started.SelfFencing || now.SelfFencing.Device != "" && now.DryRun != started.DryRun {
		fields = append(fields, "selfFencing")
	}
	return fields
}
