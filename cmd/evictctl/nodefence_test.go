package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/evictd/evictd/agent/fence"
)

// fenceNow is when the fences of the tests are printed.
var fenceNow = time.Date(2026, 3, 1, 12, 10, 0, 0, time.UTC)

const fenceUID = "7d3b2a52-61b7-4f0e-9d7c-2b7f3a0e8f11"

// ago returns the time d before fenceNow.
func ago(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(fenceNow.Add(-d)) }

// gaveUp returns a fence whose BMC ignores commands.
func gaveUp() nodeFence {
	off := fence.Intent{ID: "2-power-0-0", Step: fence.PowerManagement, Method: "bmc-off", Action: fence.Off, Attempt: 2, Deadline: ago(3 * time.Minute)}
	return nodeFence{
		Metadata: metav1.ObjectMeta{Name: "node-fence-host1", UID: fenceUID, CreationTimestamp: metav1.NewTime(fenceNow.Add(-10 * time.Minute))},
		Node:     "host1",
		Progress: fence.Progress{Step: fence.PowerManagement, Status: fence.Error, Retries: 1},
		State: fence.Detail{
			Target:  fence.Target{UID: "node-uid", SystemUUID: "a1234567-89ab-cdef-a123-456789abcdef", BootID: "boot-1"},
			Plan:    fence.Plan{Hash: "b852809570ccd56d", PowerManagement: []fence.Level{{Methods: []fence.Method{{Name: "bmc-off", Action: fence.Off, Device: "ipmi://192.0.2.1:623"}}}}},
			Attempt: 2, Since: ago(2 * time.Minute),
			Acts:     []fence.Act{{Intent: off, Outcome: fence.Outcome{Intent: off.ID, Kind: fence.Succeeded, Ended: ago(4 * time.Minute)}}},
			Readings: []fence.Reading{{Device: "ipmi://192.0.2.1:623", Power: fence.PowerUnknown, Error: "no answer \x1b[2J", Ended: ago(time.Minute)}},
			Conditions: []metav1.Condition{
				{Type: fence.ConditionGaveUp, Status: metav1.ConditionTrue, Reason: fence.ReasonNotProven, Message: "the machine is not proven off", LastTransitionTime: metav1.NewTime(fenceNow.Add(-2 * time.Minute))},
				{Type: fence.ConditionWaiting, Status: metav1.ConditionFalse, Reason: "Ended"},
			},
			History: []fence.Entry{{At: ago(2 * time.Minute), Step: fence.PowerManagement, Status: fence.Error, Reason: fence.ConditionGaveUp, Message: "NotProven: the machine is not proven off"}},
		},
	}
}

// withIntent returns a fence with an act in flight.
func withIntent() nodeFence {
	f := gaveUp()
	f.Node, f.Status, f.State.Conditions = "host2", fence.Running, nil
	f.State.Intent = &fence.Intent{Step: fence.PowerManagement, Method: "bmc-off", Action: fence.Off, Deadline: ago(-30 * time.Second)}
	f.State.NextAttempt = ago(-time.Minute)
	return f
}

// recovered returns a fence that has ended.
func recovered() nodeFence {
	f := gaveUp()
	f.Node, f.Step, f.Status, f.Retries = "host0", fence.Recovery, fence.Done, 0
	f.State.Conditions, f.State.Result, f.State.FinishedAt = nil, fence.Recovered, ago(time.Hour)
	f.State.Proof = &fence.Proof{How: fence.ByReadings, Readings: f.State.Readings, At: ago(2 * time.Hour)}
	return f
}

func TestFencePages(t *testing.T) {
	list := []nodeFence{gaveUp(), withIntent(), recovered()}
	var p page
	p = *fencesPage(list, fenceNow)
	golden(t, "fence-list.txt", p.b.String())
	p = *fencesPage(nil, fenceNow)
	golden(t, "fence-list-none.txt", p.b.String())
	for _, f := range list {
		p = *fencePage(&f, fenceNow)
		golden(t, "fence-show-"+f.Node+".txt", p.b.String())
	}
}

// cluster is a directory with a kubectl that answers from files and logs its arguments.
type cluster string

// newCluster returns a cluster with a node whose fence is f.
func newCluster(t *testing.T, f nodeFence, ready string) cluster {
	t.Helper()
	c := cluster(t.TempDir())
	c.write(t, "fences.json", map[string]any{"kind": "List", "items": []nodeFence{f}})
	c.write(t, "node.json", map[string]any{
		"metadata": map[string]any{"name": f.Node, "uid": "node-uid"},
		"status":   map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": ready}}},
	})
	// The annotation's removal is seen by evictd-controller.
	withdrawn := f
	withdrawn.State.ConfirmOff = ""
	c.write(t, "withdrawn.json", map[string]any{"items": []nodeFence{withdrawn}})
	script := `#!/bin/sh
cd "${0%/*}"
echo "$*" >>calls
case "$*" in
"get nodefences.ha.k8s.io -o json"*) cat fences.json ;;
"get node -o json "*) cat node.json ;;
"annotate node "*" evictd.io/confirm-off-"*) mv withdrawn.json fences.json ;;
"annotate node "*) ;;
*) echo "error: unexpected: $*" >&2; exit 1 ;;
esac
`
	if err := os.WriteFile(c.path("kubectl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c cluster) path(name string) string { return filepath.Join(string(c), name) }

func (c cluster) write(t *testing.T, name string, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.path(name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// annotations returns the calls of kubectl that change the Node.
func (c cluster) annotations(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(c.path("calls"))
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for call := range strings.Lines(string(text)) {
		if strings.HasPrefix(call, "annotate") {
			calls = append(calls, strings.TrimSpace(call))
		}
	}
	return calls
}

func TestFenceConfirm(t *testing.T) {
	set := "annotate node host1 evictd.io/confirm-off=" + fenceUID + " --overwrite"
	for _, test := range []struct {
		name   string
		change func(*nodeFence)
		ready  string
		uid    string
		want   []string
		errs   string
	}{
		{name: "gave up", uid: fenceUID, want: []string{set}},
		{name: "other fence", uid: "other", errs: "node host1 has the fence " + fenceUID + ", not other"},
		{name: "counted before", change: func(f *nodeFence) { f.State.ConfirmOff = fenceUID }, uid: fenceUID,
			want: []string{"annotate node host1 evictd.io/confirm-off-", set}},
		{name: "ready", ready: "True", uid: fenceUID, errs: "the node host1 is Ready: its machine is not off"},
		{name: "dry run", change: func(f *nodeFence) { f.State.DryRun = true }, uid: fenceUID, errs: "is a dry run, which releases nothing"},
		{name: "ended", change: func(f *nodeFence) { f.State.FinishedAt, f.State.Result = ago(0), fence.Recovered }, uid: fenceUID, errs: "ended at 2026-03-01T12:10:00Z: Recovered"},
		{name: "releasing", change: func(f *nodeFence) { f.Status, f.State.Phase = fence.Running, fence.Releasing }, uid: fenceUID,
			errs: "is past the proof that the machine is off (Power-Management/Running Releasing)"},
		{name: "replaced", change: func(f *nodeFence) { f.State.Target.UID = "earlier" }, uid: fenceUID, errs: "the Node host1 was replaced"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := gaveUp()
			if test.change != nil {
				test.change(&f)
			}
			if test.ready == "" {
				test.ready = "Unknown"
			}
			c := newCluster(t, f, test.ready)
			code, out, errs := call("fence", "confirm", "host1", "--fence", test.uid, "--kubectl", c.path("kubectl"))
			wantCode, wantOut := 0, "confirmed that the machine of node host1 is off; see evictctl fence show host1\n"
			if test.errs != "" {
				wantCode, wantOut = 1, ""
			}
			if code != wantCode || out != wantOut || !strings.Contains(errs, test.errs) {
				t.Errorf("evictctl fence confirm = %d, %q, %q; want %d, %q, an error with %q", code, out, errs, wantCode, wantOut, test.errs)
			}
			if got := c.annotations(t); fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("kubectl was called with %q; want %q", got, test.want)
			}
		})
	}
}

// TestFenceConfirmAsks: without --fence nothing is confirmed unless the name of the node is entered.
func TestFenceConfirmAsks(t *testing.T) {
	for answer, confirmed := range map[string]bool{"host1\n": true, " host1": true, "host10\n": false, "yes\n": false, "": false} {
		c := newCluster(t, gaveUp(), "False")
		root := newRootCommand()
		var out strings.Builder
		root.SetArgs([]string{"fence", "confirm", "host1", "--kubectl", c.path("kubectl")})
		root.SetIn(strings.NewReader(answer))
		root.SetOut(&out)
		err := root.Execute()
		if got := err == nil; got != confirmed || (len(c.annotations(t)) > 0) != confirmed {
			t.Errorf("answer %q: error %v, calls %q; want confirmed: %t", answer, err, c.annotations(t), confirmed)
		}
		if !strings.Contains(out.String(), "fence: "+fenceUID) {
			t.Errorf("answer %q: the fence is not shown before the question:\n%s", answer, &out)
		}
	}
}

func TestFenceOfClusterFails(t *testing.T) {
	f := gaveUp()
	c := newCluster(t, f, "False")
	kubectl := c.path("kubectl")
	for _, test := range []struct {
		args []string
		errs string
	}{
		{[]string{"show", "host9", "--kubectl", kubectl}, "node host9 has no NodeFence"},
		{[]string{"list", "--kubectl", c.path("missing")}, "no such file or directory"},
		{[]string{"list", "--kubectl", "kubectl-that-is-not-there"}, "install kubectl, or name it with --kubectl"},
		{[]string{"list", "--kubectl", "false"}, "run false get nodefences.ha.k8s.io: exit status 1"},
		{[]string{"list", "--kubectl", "echo"}, "read what echo get nodefences.ha.k8s.io printed: invalid character"},
	} {
		code, _, errs := call(append([]string{"fence"}, test.args...)...)
		if code != 1 || !strings.Contains(errs, test.errs) {
			t.Errorf("evictctl fence %v = %d, %q; want 1 and an error with %q", test.args, code, errs, test.errs)
		}
	}
	code, out, errs := call("fence", "list", "-o", "json", "--kubectl", kubectl, "--kubeconfig", "/k", "--context", "c")
	var got []nodeFence
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil || len(got) != 1 || got[0].Metadata.UID != types.UID(fenceUID) {
		t.Errorf("evictctl fence list -o json = %d, %q, %q (%v); want one fence", code, out, errs, err)
	}
	calls, err := os.ReadFile(c.path("calls"))
	if want := "get nodefences.ha.k8s.io -o json --kubeconfig=/k --context=c\n"; err != nil || !strings.HasSuffix(string(calls), want) {
		t.Errorf("kubectl was called with %q (%v); want %q last", calls, err, want)
	}
}
