package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
)

func newFenceShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show NODE",
		Short: "Print one fence: what was done, read and decided",
		Long: `Show prints the NodeFence of a node: how far it is, the machine, what was sent to its
power devices and what they answered, the readings and the proof that it is off, the
conditions, the history, and what a person can do. It runs kubectl, with your
credentials.

It exits with 1 if the node has no NodeFence.`,
		Example: `  evictctl fence show host1`,
		Args:    cobra.ExactArgs(1),
	}
	k := addKubectlFlags(cmd)
	format := addOutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := fenceOf(cmd.Context(), k, args[0])
		if err != nil {
			return err
		}
		if *format == outputJSON {
			return printJSON(cmd.OutOrStdout(), f)
		}
		return fencePage(f, time.Now()).print(cmd.OutOrStdout())
	}
	return cmd
}

// fencePage is the text output of evictctl fence show.
func fencePage(f *nodeFence, now time.Time) *page {
	p, d := &page{}, &f.State
	p.line("node: %s, UID %s", f.Node, orDash(d.Target.UID))
	p.line("fence: %s, created %s", f.Metadata.UID, at(f.Metadata.CreationTimestamp.Time))
	p.line("stage: %s for %s; attempt %d, %d repeated", f.stage(), between(f.since(), now), d.Attempt, f.Retries)
	p.line("machine: systemUUID %s, boot ID %s", orDash(d.Target.SystemUUID), orDash(d.Target.BootID))
	p.line("plan: %s", orDash(d.Plan.Hash))
	if i := d.Intent; i != nil {
		p.line("in flight: %s by %s on %s, until %s", i.Action, i.Method, deviceOf(d, i), at(i.Deadline.Time))
	}
	if !d.NextAttempt.IsZero() {
		p.line("next: attempt at %s, in %s", at(d.NextAttempt.Time), between(now, d.NextAttempt.Time))
	}
	p.line("proof: %s", proofText(d.Proof))
	p.line("to do: %s", remedy(f))
	p.table([]string{"CONDITION", "SINCE", "REASON"}, conditionRows(d.Conditions))
	p.table([]string{"ATTEMPT", "ACTION", "METHOD", "ENDED", "OUTCOME"}, actRows(d.Acts))
	p.table([]string{"DEVICE", "POWER", "READ", "ERROR"}, readingRows(d.Readings))
	var history [][]string
	for _, e := range d.History {
		history = append(history, []string{at(e.At.Time), e.Reason, e.Message})
	}
	p.table([]string{"AT", "REASON", "MESSAGE"}, history)
	return p
}

// deviceOf returns the device of an intent.
func deviceOf(d *fence.Detail, i *fence.Intent) string {
	levels := map[fence.StepName][]fence.Level{
		fence.Isolation: d.Plan.Isolation, fence.PowerManagement: d.Plan.PowerManagement, fence.Recovery: d.Plan.Recovery,
	}[i.Step]
	if int(i.Level) < len(levels) && int(i.Index) < len(levels[i.Level].Methods) {
		return orDash(levels[i.Level].Methods[i.Index].Device)
	}
	return "-"
}

func proofText(proof *fence.Proof) string {
	switch {
	case proof == nil:
		return "none: the machine is not known to be off"
	case proof.How == fence.Confirmed:
		return "a person confirmed at " + at(proof.At.Time) + " that the machine is off"
	case proof.How == fence.ByWatchdog:
		return "no reading: the node's watchdog must have reset the machine before " + at(proof.At.Time)
	}
	return fmt.Sprintf("%d readings, complete at %s", len(proof.Readings), at(proof.At.Time))
}

// remedy returns what a person can do about a fence.
func remedy(f *nodeFence) string {
	s := f.state()
	is := func(condition string) bool { return meta.IsStatusConditionTrue(f.State.Conditions, condition) }
	switch {
	case !f.State.FinishedAt.IsZero():
		return "nothing; the fence has ended"
	case s.DryRun:
		return "set mode=enforce in cluster-fence-config, then delete this NodeFence if the node is still dead"
	case is(fence.ConditionVerificationFailed) && s.Kdump != nil && !s.Kdump.Released.IsZero() && s.FirstOff.IsZero():
		return "reboot the node: its pods were released because of datagrams of its dump kernel, and may still run on it"
	case is(fence.ConditionVerificationFailed):
		return "another machine may have been switched off: correct the devices of the node's fence-methods; then switch this " +
			"machine off yourself and run evictctl fence confirm " + f.Node
	case is(fence.ConditionGaveUp), is(fence.ConditionIdentityMismatch):
		return "repair the power device; or switch the machine off yourself and run evictctl fence confirm " + f.Node
	case is(fence.ConditionReleaseStuck):
		return "find out why the pods and volumes that the condition names are not gone"
	case is(fence.ConditionNodeDidNotReturn):
		return "look at the machine's console; nothing that was done is undone"
	}
	return "nothing; evictd-controller goes on by itself"
}

func conditionRows(conditions []metav1.Condition) [][]string {
	var rows [][]string
	for _, c := range conditions {
		if c.Status == metav1.ConditionTrue {
			rows = append(rows, []string{c.Type, at(c.LastTransitionTime.Time), c.Reason + ": " + c.Message})
		}
	}
	return rows
}

func actRows(acts []fence.Act) [][]string {
	var rows [][]string
	for _, a := range acts {
		outcome := string(a.Outcome.Kind)
		if a.Outcome.Message != "" {
			outcome += ": " + a.Outcome.Message
		}
		rows = append(rows, []string{strconv.Itoa(int(a.Attempt)), string(a.Action), a.Method, at(a.Outcome.Ended.Time), outcome})
	}
	return rows
}

func readingRows(readings []fence.Reading) [][]string {
	var rows [][]string
	for _, r := range readings {
		rows = append(rows, []string{r.Device, string(r.Power), at(r.Ended.Time), orDash(r.Error)})
	}
	return rows
}
