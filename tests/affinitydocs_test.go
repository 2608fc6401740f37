package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/affinity"
)

// affinityDocs are the READMEs of node affinity during execution.
var affinityDocs = []string{
	"agent/affinity/README.md", "deploy/kubernetes/kube-scheduler/README.md", "deploy/kubernetes/controller-webhook/README.md",
}

// Each metric, event, hold and label value of node affinity during execution is in one of its READMEs.
func TestAffinityIsDocumented(t *testing.T) {
	var docs strings.Builder
	for _, name := range affinityDocs {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		docs.Write(text)
	}
	word := func(name string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(docs.String())
	}
	named := regexp.MustCompile(`"((?:evictd_|kube_affinity_)\w+|NodeAffinity\w*|AffinityConfigInvalid)"`)
	// A constant of a label: `budgeted OutcomeKind = "budget"`, `AffinityLate = "late"`, `resultBusy result = "busy"`.
	value := regexp.MustCompile(`(?m)^\t(?:\w+ +(?:OutcomeKind|result)|Affinity\w+|refused\w+|state\w+) += "([\w-]+)"`)
	found := map[string]bool{}
	for _, pattern := range []string{
		"agent/affinity/*.go", "agent/affinity/*/*.go", "agent/controller/affinity/*.go", "agent/controller/serving/*.go",
		"agent/kube/affinityadmission.go", "agent/kube/cluster/affinity.go", "agent/metrics/kubernetes.go",
	} {
		files, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range slices.Concat(named.FindAllStringSubmatch(string(text), -1), value.FindAllStringSubmatch(string(text), -1)) {
				name := m[1]
				if strings.HasPrefix(name, "kube_") {
					name = "evictd_" + name
				}
				found[name] = true
			}
		}
	}
	for _, hold := range affinity.Holds() {
		found[string(hold)] = true
	}
	for _, name := range []string{
		"evictd_affinity_held", "evictd_webhook_refused_total", "evictd_affinity_extender_requests_total", "evictd_kube_affinity_admission_total",
		"NodeAffinityStorm", "NodeAffinityInvalid", "AffinityConfigInvalid", "many-budgets", "in_flight", "overloaded", "invalid-annotation", "would-reject", "malformed",
	} {
		if !found[name] {
			t.Errorf("%s is not found in the source; is it written in another way?", name)
		}
	}
	for name := range found {
		if !word(name) {
			t.Errorf("%s is in no README", name)
		}
	}
}
