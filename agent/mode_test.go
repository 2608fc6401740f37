package agent

import (
	"strings"
	"testing"

	"github.com/evictd/evictd/agent/config"
	"github.com/evictd/evictd/agent/kube"
	"github.com/evictd/evictd/kernel/cgroup"
)

// Next to a kubelet evictd enforces only if evictd-kube has said that it may report evictions.
func TestCannotReport(t *testing.T) {
	d := &daemon{options: Options{Procfs: t.TempDir()}}
	for _, tt := range []struct {
		facts *kube.Facts
		want  string
	}{{nil, "kube.uid"}, {kube.NewFacts(), "never connected"}} {
		d.facts = tt.facts
		if got := d.modeFacts(&cgroup.Hierarchy{})(&config.Config{}).CannotReport; !strings.Contains(got, tt.want) {
			t.Errorf("CannotReport = %q; want %q", got, tt.want)
		}
	}
}

// If the filesystem of the node is not the host's, or evictd itself is not on the host, it stays in dry run.
func TestMisplaced(t *testing.T) {
	for _, why := range []string{"", "nodefs is that of a container"} {
		d := &daemon{options: Options{Procfs: "/proc"}, rootProblem: why}
		h, err := cgroup.Find("/sys/fs/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		if got := d.modeFacts(h)(&config.Config{}).Misplaced; got != why {
			t.Errorf("Misplaced = %q; want %q", got, why)
		}
	}
}
