package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/evictd/evictd/agent/config/strict"
)

// FuzzParse parses arbitrary input as either kind of file. The result must be
// problems, or a configuration whose dump parses to the same one.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile(filepath.Join("testdata", "full.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(full))
	for _, seed := range []string{
		"", head, kubeletHead,
		head + "evictionHard: {memory.available: 5%, nodefs.available: 100%}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}",
		head + "evictionHard: {memory.available: 1e1000000000}", head + "trustAnnotations: ['~', \"\\u2028\", \"a\\tb\"]",
		head + "protect: {labelSelectors: ['a in (b), !c'], names: [a/b]}", head + "runtimeEndpoint: /a\nnodefsPath: /\ncgroupRoot: ''",
		kubeletHead + "evictionHard: {memory.available: 5%%, nodefs.available: NaN%}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 0s}",
		kubeletHead + "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: -1}, {priority: 0}]\nevictionPressureTransitionPeriod: -1m",
		kubeletHead + "systemReserved: {memory: 1e999}\nenforceNodeAllocatable: [pods, pods]\nimageMinimumGCAge: 0s",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse(Options{Path: "f"}, nil, []byte(text))
		kubelets, kubeletErr := parse(Options{KubeletPath: "k"}, []byte(text), nil)
		for _, result := range []struct {
			c   *Config
			err error
		}{{c, err}, {kubelets, kubeletErr}} {
			if result.err != nil {
				var problems strict.Problems
				if !errors.As(result.err, &problems) || len(problems) == 0 {
					t.Errorf("error %T %v; want Problems", result.err, result.err)
				}
				continue
			}
			again, err := parse(Options{Path: "dump"}, nil, []byte(dump(t, result.c)))
			if err != nil {
				t.Fatalf("the dump does not parse: %v\n%s", err, dump(t, result.c))
			}
			same(t, "dump", result.c, again)
		}
	})
}
