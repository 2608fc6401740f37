// Package settings reads the ConfigMap with the settings of evictions for node affinity. It does no I/O:
// evictd-controller gives it the data of the ConfigMap from its watch, evictctl what kubectl printed.
package settings

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/affinity"
	"github.com/evictd/evictd/agent/properties"
)

const (
	// Name is the name of the ConfigMap with the settings, and configKey its data key.
	Name, configKey = "cluster-affinity-config", "config.properties"
	// maxProblems is how many mistakes are reported.
	maxProblems = 20
)

// setting is a key of the ConfigMap.
type setting struct {
	key string
	// set sets the value. Its error says what is right.
	set func(value string) error
}

// keys returns those that set a configuration.
func keys(c *affinity.Config, percentage, perMinute *int32) []setting {
	const day = 24 * time.Hour
	return []setting{
		{"debounce", properties.Duration(&c.Debounce, time.Second, day)},
		{"storm_percentage", properties.Number(percentage, 0, 100)},
		{"storm_confirmed", func(value string) error { c.StormConfirmed = value; return nil }},
		{"per_minute", properties.Number(perMinute, 1, 1000)},
		{"when_no_node_fits", properties.OneOf(&c.EvictUnplaceable, map[string]bool{"keep": false, "evict": true}, "write keep or evict")},
		{"bare_pods", properties.OneOf(&c.EvictBare, map[string]bool{"keep": false, "evict": true}, "write keep or evict")},
		{"enforce_ignored", func(value string) (err error) {
			c.EnforceIgnored, err = properties.ParseSwitch(value)
			return err
		}},
		{"progress_timeout", properties.Duration(&c.ProgressTimeout, time.Second, day)},
	}
}

// Parse returns the configuration that the data of the ConfigMap describes, and all mistakes in it. With a
// mistake it is the default: dry run. Without the ConfigMap, data is nil.
func Parse(data map[string]string, enforce bool) (affinity.Config, []string) {
	c := affinity.DefaultConfig()
	c.Enforce = enforce
	if data == nil {
		return c, nil
	}
	percentage, perMinute := int32(c.StormPercentage), int32(c.PerMinute)
	known := keys(&c, &percentage, &perMinute)
	var problems []string
	fail := func(line int, key, message, remedy string) {
		text := message + "; " + remedy
		if key != "" {
			text = key + ": " + text
		}
		if line > 0 {
			text = fmt.Sprintf("line %d: %s", line, text)
		}
		problems = append(problems, text)
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if key != configKey {
			fail(0, key, "is not a data key of this ConfigMap", "put the properties into the data key "+configKey)
		}
	}
	text, ok := data[configKey]
	if !ok {
		fail(0, configKey, "is missing", "put the properties into the data key "+configKey)
	}
	values, errs := properties.Parse(text)
	for _, e := range errs {
		fail(e.Line, e.Key, e.Message, e.Remedy)
	}
	seen := make(map[string]int)
	for _, v := range values {
		name := properties.Fold(v.Key)
		i := slices.IndexFunc(known, func(s setting) bool { return s.key == name })
		switch {
		case i < 0:
			fail(v.Line, v.Key, "is not a key of this ConfigMap", "the keys are "+keyNames(known))
			continue
		case seen[name] > 0:
			fail(v.Line, v.Key, fmt.Sprintf("is given twice, first in line %d", seen[name]), "remove one of the lines")
		}
		seen[name] = v.Line
		if err := known[i].set(v.Value); err != nil {
			fail(v.Line, v.Key, fmt.Sprintf("is %.64q", v.Value), err.Error())
		}
	}
	if len(problems) > 0 {
		if more := len(problems) - maxProblems; more > 0 {
			problems = append(problems[:maxProblems], fmt.Sprintf("%d more problems are not shown", more))
		}
		return affinity.DefaultConfig(), problems
	}
	c.StormPercentage, c.PerMinute = int(percentage), int(perMinute)
	return c, nil
}

func keyNames(known []setting) string {
	names := make([]string, len(known))
	for i := range known {
		names[i] = known[i].key
	}
	return strings.Join(names, ", ")
}
