package settings

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/affinity"
)

func TestParse(t *testing.T) {
	text := func(s string) map[string]string { return map[string]string{configKey: s} }
	whole := affinity.Config{
		Enforce: true, EnforceIgnored: true, EvictBare: true, EvictUnplaceable: true, Debounce: 3 * time.Second, StormPercentage: 0,
		StormConfirmed: "abc", PerMinute: 7, ProgressTimeout: time.Hour,
	}
	enforced := affinity.DefaultConfig()
	enforced.Enforce = true
	for name, tt := range map[string]struct {
		data map[string]string
		want affinity.Config
		// problems are parts of the problems, in order.
		problems []string
	}{
		"no ConfigMap": {nil, enforced, nil},
		"comments":     {text("# nothing\n\n"), enforced, nil},
		"all": {text("debounce=3s\nstorm_percentage=0\nstorm_confirmed=abc\nPer-Minute=7\nwhen_no_node_fits=evict\nbare_pods=evict\n" +
			"enforce_ignored=yes\nprogress_timeout=3600\n"), whole, nil},
		"values": {text("debounce=0s\nper_minute=0\nbare_pods=yes\nenforce_ignored=perhaps\nx=1\nper_minute=2"), affinity.DefaultConfig(), []string{
			`line 6: per_minute: is given twice`, `line 1: debounce: is "0s"; write a duration from 1s`, `line 2: per_minute: is "0"; write a number from 1`,
			`line 3: bare_pods: is "yes"; write keep or evict`, `line 4: enforce_ignored: is "perhaps"; write yes or no`, `line 5: x: is not a key of this ConfigMap; the keys are debounce, storm_percentage`,
		}},
		"two spellings": {text("per_minute=1\nper-minute=2"), affinity.DefaultConfig(), []string{"line 2: per-minute: is given twice, first in line 1"}},
		"wrong key":     {map[string]string{"config": "debounce=3s"}, affinity.DefaultConfig(), []string{"config: is not a data key", configKey + ": is missing"}},
		"empty":         {map[string]string{}, affinity.DefaultConfig(), []string{configKey + ": is missing"}},
	} {
		got, problems := Parse(tt.data, true)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: Parse: (-want +got):\n%s", name, diff)
		}
		if !slices.EqualFunc(problems, tt.problems, strings.Contains) {
			t.Errorf("%s: problems:\n%s\nwant:\n%s", name, strings.Join(problems, "\n"), strings.Join(tt.problems, "\n"))
		}
	}
	if got, problems := Parse(text("debounce=3s"), false); got.Enforce || len(problems) > 0 {
		t.Errorf("in mode observe: Enforce = %t, problems %v; want false and none", got.Enforce, problems)
	}
	if _, problems := Parse(text(strings.Repeat("=\n", 1000)), true); len(problems) != maxProblems+1 {
		t.Errorf("%d problems are shown; want %d", len(problems), maxProblems+1)
	}
}
