package main

import (
	"bufio"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/fence"
)

// drillScript is a kubectl that answers from files, and that puts drill.json in place of fences.json when a drill is asked
// for.
const drillScript = `#!/bin/sh
cd "${0%/*}"
echo "$*" >>calls
case "$*" in
"get nodefences.ha.k8s.io "*) cat fences.json ;;
"get node "*) cat node.json ;;
"get pods "*"--field-selector=spec.nodeName=host1"*) cat pods.json ;;
"cordon host1"*|"uncordon host1"*) ;;
"annotate nodefences.ha.k8s.io "*) mv drill.json fences.json ;;
"create -f - -o json"*) cat >request.json; mv drill.json fences.json; echo '{"metadata":{"uid":"request"}}' ;;
*) echo "error: unexpected: $*" >&2; exit 1 ;;
esac
`

// drillFence is the NodeFence of a drill that has passed.
func drillFence() nodeFence {
	f := recovered()
	f.Node, f.Metadata.UID, f.State.Drill, f.State.Phase = "host1", "drill", true, fence.Released
	f.State.History = []fence.Entry{
		{At: ago(5 * time.Minute), Reason: fence.ReasonActStarted, Message: "switch off by bmc-off (attempt 1)"},
		{At: ago(4 * time.Minute), Reason: fence.ReasonOffProven, Message: "two readings"},
		{At: ago(time.Minute), Reason: fence.ReasonRecovered, Message: "the quarantine is over"},
	}
	return f
}

func TestFenceDrill(t *testing.T) {
	earlier := recovered()
	earlier.Node, earlier.Metadata.UID, earlier.Metadata.Name = "host1", "earlier", "node-fence-host1"
	annotate, create := "annotate nodefences.ha.k8s.io node-fence-host1 evictd.io/fence-drill=node-uid --overwrite", "create -f - -o json"
	both := "host1\nswitch off\n"
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "db-0"}}
	refused := func(f *nodeFence) {
		f.State.History = append(f.State.History, fence.Entry{At: ago(0), Reason: fence.ReasonDrillRefused, Message: "not cordoned"})
	}
	for name, test := range map[string]struct {
		answers  string
		cordoned bool
		notReady bool
		fences   []nodeFence
		pods     []corev1.Pod
		change   func(*nodeFence)
		want     []string // calls that change the cluster
		out      string
		err      string
	}{
		"passed":            {answers: both, want: []string{"cordon host1", create, "uncordon host1"}, out: "proven off           1m"},
		"after a fence":     {answers: both, fences: []nodeFence{earlier}, want: []string{"cordon host1", annotate, "uncordon host1"}, out: "Ready again"},
		"cordoned before":   {answers: both, cordoned: true, want: []string{create}, out: "OffProven: two readings"},
		"no first answer":   {answers: "", err: "nothing was done"},
		"no second answer":  {answers: "host1\nyes\n", want: []string{"cordon host1", "uncordon host1"}, err: `nothing was switched off: "switch off" was not entered`},
		"being fenced":      {answers: both, fences: []nodeFence{gaveUp()}, err: "node host1 is being fenced"},
		"not Ready":         {answers: both, notReady: true, err: "node host1 is not Ready"},
		"pod":               {answers: both, pods: []corev1.Pod{pod}, err: "has the pods x/db-0; drain it"},
		"refused":           {answers: both, change: refused, want: []string{"cordon host1", create}, out: "DrillRefused: not cordoned", err: "it was refused"},
		"NodeFence deleted": {answers: both, want: []string{"cordon host1", create}, err: "the NodeFence of node host1 was not seen for 1s"},
		"not proven": {answers: both, change: func(f *nodeFence) { f.State.Proof, f.State.Phase = nil, "" },
			want: []string{"cordon host1", create}, err: "was not proven off"},
		"gave up": {answers: both, change: func(f *nodeFence) {
			f.State.FinishedAt, f.State.Result, f.State.Proof = metav1.MicroTime{}, "", nil
			f.State.Conditions = []metav1.Condition{{Type: fence.ConditionGaveUp, Status: metav1.ConditionTrue, Reason: "NotProven"}}
		}, want: []string{"cordon host1", create}, err: "GaveUp (NotProven)"},
		"another machine's plug": {answers: both, change: func(f *nodeFence) {
			f.State.FinishedAt, f.State.Result, f.State.Proof = metav1.MicroTime{}, "", nil
			f.State.Conditions = []metav1.Condition{{Type: fence.ConditionWaiting, Status: metav1.ConditionTrue, Reason: fence.ReasonDeviceReadsOff}}
		}, want: []string{"cordon host1", create}, err: "Waiting (DeviceReadsOff)"},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t.TempDir())
			status := corev1.ConditionTrue
			if test.notReady {
				status = corev1.ConditionUnknown
			}
			node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "host1", UID: "node-uid"}, Spec: corev1.NodeSpec{Unschedulable: test.cordoned}}
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
			after := drillFence()
			if test.change != nil {
				test.change(&after)
			}
			c.write(t, "node.json", node)
			c.write(t, "pods.json", corev1.PodList{Items: test.pods})
			c.write(t, "fences.json", map[string]any{"items": test.fences})
			drills := []nodeFence{after}
			if name == "NodeFence deleted" {
				drills = nil
			}
			c.write(t, "drill.json", map[string]any{"items": drills})
			if err := os.WriteFile(c.path("kubectl"), []byte(drillScript), 0o700); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			d := &drill{kubectl: &kubectl{program: c.path("kubectl")}, name: "host1", out: &out, interval: time.Millisecond, timeout: time.Second,
				in: bufio.NewReader(strings.NewReader(test.answers))}
			err := d.run(t.Context())
			if got := ""; err != nil {
				if got = err.Error(); test.err == "" || !strings.Contains(got, test.err) {
					t.Errorf("evictctl fence drill: error %q; want %q", got, test.err)
				}
			} else if test.err != "" {
				t.Errorf("evictctl fence drill: no error; want %q", test.err)
			}
			if !strings.Contains(out.String(), test.out) {
				t.Errorf("evictctl fence drill printed %q; want %q in it", &out, test.out)
			}
			calls, err := os.ReadFile(c.path("calls"))
			if err != nil {
				t.Fatal(err)
			}
			writes := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(calls)), "\n"), func(call string) bool { return strings.HasPrefix(call, "get ") })
			if !slices.Equal(writes, test.want) {
				t.Errorf("kubectl was called with %q; want %q", writes, test.want)
			}
			if request, err := os.ReadFile(c.path("request.json")); err == nil {
				for _, want := range []string{`"name":"node-fence-host1"`, `"evictd.io/fence-drill":"node-uid"`, `"node":"host1"`} {
					if !strings.Contains(string(request), want) {
						t.Errorf("created %s; want %s in it", request, want)
					}
				}
			}
		})
	}
}
