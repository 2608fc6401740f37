package loop

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/act"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

// Dry run is the same run with another actuator: each pod is reported once, and counts as
// gone.
func TestDryRun(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		run(t, settings, func(n *node) {
			n.hot.hangs = hangs
			n.grow("b", 15*gi+gi/2)
			n.alarm()
			n.pass(5 * time.Second)
			first := "hot b dry run true"
			if hangs {
				first = "own dry run b"
			}
			n.wantCalls("below the threshold", first, "dry run: follow b")
			n.wantResult("b", evict.ResultDryRun)
			if !n.runs("b") || len(n.last().State.DryRunVictims) != 1 || !n.hot.table.DryRun {
				t.Errorf("b runs %t, dry-run victims %+v, dry run of the table %t; want b left alone and counted as gone", n.runs("b"), n.last().State.DryRunVictims, n.hot.table.DryRun)
			}
			if got, want := n.messages(), []string{"would evict pod", "dry run: pod left alone"}; !slices.Equal(got, want) {
				t.Errorf("messages = %q; want %q", got, want)
			}
			if !strings.Contains(n.log.String(), "dry run: nothing is evicted") {
				t.Error("the log does not say that evictd is in dry run")
			}
		}, func(n *node, _ *Options) { n.add("b", gi); n.facts.Configured = "--dry-run was given" })
	}
}

// A refusal in dry run is not reported to the reclaimer, which does not wait for the pod.
func TestRefusedInDryRun(t *testing.T) {
	run(t, settings+"dryRun: true\n", func(n *node) {
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(time.Second)
		n.wantCalls("below the threshold", "hot b dry run true", "dry run: follow b")
		n.wantResult("b", evict.ResultFailed)
	}, func(n *node, _ *Options) {
		n.add("b", gi)
		n.refuses["b"] = &act.WrongVictimError{Essential: true}
	})
}

// The reclaimer does not wait for disk space in dry run, which frees none.
func TestDiskInDryRun(t *testing.T) {
	run(t, settings+"dryRun: true\n", func(n *node) {
		n.observe(signal.NodeFsAvailable, gi/2)
		for range 2 {
			n.pass(5 * time.Second)
			n.wantCalls("below the threshold", "reclaim nodefs.available")
			n.result <- evict.ReclaimReport{}
		}
		n.pass(time.Second)
		n.wantCalls("when nothing was reclaimed", "dry run: evict a")
	}, func(n *node, _ *Options) { n.add("a", gi) })
}

// When dry run begins during a pod's grace period, a hard threshold does not end that
// period early.
func TestHardThresholdAfterAReloadToDryRun(t *testing.T) {
	run(t, softSettings, func(n *node) {
		n.grow("b", 14*gi)
		n.alarm()
		n.pass(11 * time.Second)
		n.wantCalls("in force", "evict b hard false grace 30s")
		if err := n.Reload(n.t.Context(), parse(t, softSettings+"dryRun: true\n")); err != nil {
			n.t.Fatal(err)
		}
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.pass(500 * time.Millisecond)
		n.wantCalls("in dry run", "dry run: escalate b")
	}, func(n *node, _ *Options) { n.add("a", gi/4); n.add("b", gi) })
}

// The reclaimer gets the end of a real eviction also when dry run has begun since.
func TestVictimEndsAfterAReloadToDryRun(t *testing.T) {
	run(t, settings, func(n *node) {
		n.grow("b", 15*gi+gi/2)
		n.alarm()
		n.wantCalls("in force", "hot b dry run false", "follow b")
		if err := n.Reload(n.t.Context(), parse(t, settings+"dryRun: true\n")); err != nil {
			n.t.Fatal(err)
		}
		n.pass(5 * time.Second)
		n.wantCalls("in dry run", "evicted s-b 0")
	}, func(n *node, _ *Options) { n.add("b", gi); n.dying = 3 * time.Second })
}
