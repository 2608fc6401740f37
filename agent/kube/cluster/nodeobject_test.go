package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/agent/kube"
)

const (
	memory   = "evictd.io/memory-pressure"
	disk     = "evictd.io/disk-pressure"
	shutdown = "evictd.io/node-shutdown"
)

// rawTaint returns a taint key:effect as the API server encodes it.
func rawTaint(s string) json.RawMessage {
	key, effect, _ := strings.Cut(s, ":")
	return json.RawMessage(fmt.Sprintf(`{"key":%q,"effect":%q}`, key, effect))
}

// taintsOf returns taints as key:effect.
func taintsOf(list []json.RawMessage) (texts []string) {
	for _, raw := range list {
		var t corev1.Taint
		if err := json.Unmarshal(raw, &t); err != nil {
			panic(err)
		}
		texts = append(texts, t.Key+":"+string(t.Effect))
	}
	return texts
}

func TestChangeTaints(t *testing.T) {
	now := time.Date(2026, 11, 23, 1, 2, 3, 4e6, time.UTC)
	for name, tt := range map[string]struct {
		taints string // separated by spaces; "" for no list
		want   string
		keep   bool
		patch  []string
		after  string
	}{
		"nothing":         {taints: "a:NoSchedule"},
		"no list":         {want: memory, patch: []string{"test /spec/taints null", "add /spec/taints []", "add /spec/taints/- +"}, after: memory + ":NoSchedule"},
		"two in no list":  {want: memory + " " + disk, patch: []string{"test /spec/taints null", "add /spec/taints []", "add /spec/taints/- +", "add /spec/taints/- +"}, after: disk + ":NoSchedule " + memory + ":NoSchedule"},
		"a list":          {taints: "b:NoExecute a:NoSchedule", want: memory, patch: []string{"add /spec/taints/- +"}, after: "b:NoExecute a:NoSchedule " + memory + ":NoSchedule"},
		"there":           {taints: "a:NoSchedule " + memory + ":NoSchedule", want: memory},
		"another effect":  {taints: memory + ":NoExecute", want: memory, patch: []string{"add /spec/taints/- +"}, after: memory + ":NoExecute " + memory + ":NoSchedule"},
		"another's":       {taints: memory + ":NoExecute evictd.io/quarantine:NoSchedule"},
		"stale":           {taints: disk + ":NoSchedule", patch: []string{"test /spec/taints/0 " + disk, "remove /spec/taints/0"}},
		"not known stale": {taints: disk + ":NoSchedule", want: memory, keep: true, patch: []string{"add /spec/taints/- +"}, after: disk + ":NoSchedule " + memory + ":NoSchedule"},
		"from the end": {
			taints: disk + ":NoSchedule a:NoSchedule " + memory + ":NoSchedule " + shutdown + ":NoSchedule b:NoExecute", want: shutdown,
			patch: []string{"test /spec/taints/2 " + memory, "remove /spec/taints/2", "test /spec/taints/0 " + disk, "remove /spec/taints/0"},
			after: "a:NoSchedule " + shutdown + ":NoSchedule b:NoExecute",
		},
		"duplicates": {taints: memory + ":NoSchedule a:NoSchedule " + memory + ":NoSchedule", want: memory, patch: []string{"test /spec/taints/2 " + memory, "remove /spec/taints/2"}, after: memory + ":NoSchedule a:NoSchedule"},
		"exchange":   {taints: memory + ":NoSchedule", want: disk, patch: []string{"test /spec/taints/0 " + memory, "remove /spec/taints/0", "add /spec/taints/- +"}, after: disk + ":NoSchedule"},
	} {
		o := &nodeObject{uid: "u"}
		for _, s := range strings.Fields(tt.taints) {
			o.taints = append(o.taints, rawTaint(s))
		}
		want := map[string]bool{}
		for _, key := range strings.Fields(tt.want) {
			want[key] = true
		}
		c := o.changeTaints(want, !tt.keep, now)
		var patch []string
		for i, op := range c.patch {
			if i == 0 {
				if op != (patchOperation{"test", "/metadata/uid", "u"}) {
					t.Errorf("%s: first operation %+v; want the test of the UID", name, op)
				}
				continue
			}
			text := op.Op + " " + op.Path
			switch v := op.Value.(type) {
			case json.RawMessage:
				if key := ownTaint(v); key != "" {
					text += " " + key
				} else {
					text += " " + string(v)
				}
			case []any:
				text += " []"
			case corev1.Taint:
				text += " +"
				if v.Effect != corev1.TaintEffectNoSchedule || v.TimeAdded == nil || !v.TimeAdded.Time.Equal(now) {
					t.Errorf("%s: adds %+v", name, v)
				}
			}
			patch = append(patch, text)
		}
		if diff := cmp.Diff(tt.patch, patch); diff != "" {
			t.Errorf("%s: patch (-want +got):\n%s", name, diff)
		}
		if got := strings.Join(taintsOf(c.after), " "); tt.patch != nil && got != tt.after {
			t.Errorf("%s: taints afterwards %s; want %s", name, got, tt.after)
		}
	}
}

func TestChangeConditions(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 5e6, time.UTC)
	before, since := now.Add(-time.Hour).Truncate(time.Second), now.Add(-time.Minute).Truncate(time.Second)
	state := func(status bool, since time.Time) *kube.NodeState {
		return &kube.NodeState{Number: 1, Conditions: []kube.NodeCondition{{Type: "EvictdDiskPressure", Status: status, Since: since}}}
	}
	has := func(status, reason, message string, at time.Time) map[string]corev1.NodeCondition {
		return map[string]corev1.NodeCondition{"EvictdDiskPressure": {
			Type: "EvictdDiskPressure", Status: corev1.ConditionStatus(status), Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(at), LastHeartbeatTime: metav1.NewTime(at),
		}}
	}
	text := kube.NodeConditions["EvictdDiskPressure"]
	isFalse := has("False", text.FalseReason, text.FalseMessage, before)
	for name, tt := range map[string]struct {
		has       map[string]corev1.NodeCondition
		state     *kube.NodeState
		heartbeat bool
		want      string // status/reason at the transition; "" for no write
		at        time.Time
	}{
		"absent":                    {nil, state(false, since), false, "False/EvictdHasNoDiskPressure", since},
		"absent, no time":           {nil, state(false, time.Time{}), false, "False/EvictdHasNoDiskPressure", now.Truncate(time.Second)},
		"in the future":             {nil, state(false, now.Add(time.Hour)), false, "False/EvictdHasNoDiskPressure", now.Truncate(time.Second)},
		"same":                      {isFalse, state(false, since), false, "", time.Time{}},
		"heartbeat":                 {isFalse, state(false, since), true, "False/EvictdHasNoDiskPressure", before},
		"change":                    {isFalse, state(true, since), false, "True/EvictdHasDiskPressure", since},
		"change before the present": {has("Unknown", "EvictdGone", gone[1], since), state(true, before), false, "True/EvictdHasDiskPressure", now.Truncate(time.Second)},
		"another reason":            {has("False", "Other", "m", before), state(false, since), false, "False/EvictdHasNoDiskPressure", before},
		"dry run":                   {isFalse, &kube.NodeState{Number: 2}, false, "Unknown/EvictdDryRun", now.Truncate(time.Second)},
		"stopped":                   {isFalse, &kube.NodeState{Number: 2, Stopped: true}, false, "Unknown/EvictdStopped", now.Truncate(time.Second)},
		"gone":                      {isFalse, nil, false, "Unknown/EvictdGone", now.Truncate(time.Second)},
		"no heartbeat of Unknown":   {has("Unknown", "EvictdGone", gone[1], before), nil, true, "", time.Time{}},
		"stopped, then dry run":     {has("Unknown", stopped[0], stopped[1], before), &kube.NodeState{}, false, "Unknown/EvictdDryRun", before},
		"absent in dry run":         {nil, &kube.NodeState{Number: 1}, true, "", time.Time{}},
	} {
		o := &nodeObject{conditions: tt.has}
		got, at := "", time.Time{}
		for _, c := range o.changeConditions(tt.state, tt.heartbeat, now) {
			got, at = got+string(c.Status)+"/"+c.Reason, c.LastTransitionTime.Time
			if !c.LastHeartbeatTime.Time.Equal(now.Truncate(time.Second)) || c.Message == "" || c.Type != "EvictdDiskPressure" {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if got != tt.want || !at.Equal(tt.at) {
			t.Errorf("%s: %s at %v; want %s at %v", name, got, at, tt.want, tt.at)
		}
	}
}

// A Node can have 100 KB and whatever other clients write; only what is needed is kept.
func TestDecodeNode(t *testing.T) {
	o, err := decodeNode([]byte(`{"metadata":{"uid":"u","labels":{"a":"b"}},"spec":{"taints":[{"key":"a","effect":"NoSchedule","new":1},7]},
		"status":{"images":[{"names":["x"]}],"conditions":[{"type":"Ready","status":"True"},{"type":"EvictdPIDPressure","status":"True","lastTransitionTime":"x"},
		{"type":"EvictdDiskPressure","status":"False","lastTransitionTime":"2026-11-23T01:02:03Z"},"x"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if o.uid != "u" || len(o.taints) != 2 || string(o.taints[0]) != `{"key":"a","effect":"NoSchedule","new":1}` || len(o.conditions) != 1 || o.conditions["EvictdDiskPressure"].Status != "False" {
		t.Errorf("node %+v", o)
	}
	if c := o.changeTaints(map[string]bool{memory: true}, true, time.Now()); len(c.added) != 1 || len(c.removed) != 0 {
		t.Errorf("change %+v; want one taint added", c)
	}
	for _, s := range []string{``, `{`, `{"spec":{"taints":{}}}`} {
		if _, err := decodeNode([]byte(s)); err == nil {
			t.Errorf("decodeNode(%q) = nil; want an error", s)
		}
	}
}

func TestNodeOutcome(t *testing.T) {
	answer := func(code int32, message string, causes ...metav1.StatusCause) error {
		return fmt.Errorf("patch: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: message, Details: &metav1.StatusDetails{Causes: causes}}})
	}
	for name, tt := range map[string]struct {
		err  error
		want outcome
	}{
		"done":                   {nil, succeeded},
		"a test has failed":      {answer(422, "the server rejected our request due to an error in our request"), conflict},
		"a policy":               {answer(422, `nodes "n1" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no`), refused},
		"taint there already":    {answer(422, "Node is invalid", metav1.StatusCause{Type: metav1.CauseTypeFieldValueDuplicate, Field: "spec.taints[3]"}), conflict},
		"another UID":            {answer(422, "Node is invalid", metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "metadata.uid"}), podGone},
		"another invalid field":  {answer(422, "Node is invalid", metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.podCIDR"}), refused},
		"no Node":                {answer(404, "not found"), podGone},
		"conflict":               {answer(409, "modified"), conflict},
		"forbidden":              {answer(403, "no"), forbidden},
		"too many":               {answer(429, "later"), later},
		"a proxy":                {answer(422, "x", metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse}), later},
		"no answer":              {errors.New("EOF"), later},
		"error of the server":    {answer(500, "x"), later},
		"unsupported media type": {answer(http.StatusUnsupportedMediaType, "x"), refused},
	} {
		if got := nodeOutcomeOf(tt.err); got != tt.want {
			t.Errorf("%s: outcome %d; want %d", name, got, tt.want)
		}
	}
	if keys := taintKeys(); len(keys) != len(kube.NodeConditions) || !slices.IsSorted(keys) {
		t.Errorf("taintKeys() = %v", keys)
	}
}
