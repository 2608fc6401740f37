package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
	"github.com/evictd/evictd/agent/fence/plan"
)

// conditionsOf returns the conditions of a Node that are written by nodeConditions, and the number of others.
func conditionsOf(t *testing.T, api client.Client, node string) (own []string, others int) {
	t.Helper()
	n := &corev1.Node{}
	if err := api.Get(t.Context(), types.NamespacedName{Name: node}, n); err != nil {
		t.Fatal(err)
	}
	for _, c := range n.Status.Conditions {
		if !ours(c) {
			others++
			continue
		}
		if c.LastTransitionTime.IsZero() || c.LastHeartbeatTime.IsZero() {
			t.Errorf("condition %s of %s has no times: %+v", c.Type, node, c)
		}
		own = append(own, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return own, others
}

// testConditions returns a nodeConditions, and counts its writes.
func testConditions(t *testing.T, writes *int, nodes ...client.Object) (*nodeConditions, client.Client) {
	t.Helper()
	r, api := testReconciler(t, nil, interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
			*writes++
			return c.SubResource(sub).Patch(ctx, o, p, options...)
		},
	}, nodes...)
	return &nodeConditions{config: r.config, probes: &probes{}, cached: api, writer: api, log: slog.New(slog.DiscardHandler)}, api
}

// The conditions of configured nodes say what is wrong, are written when they change, and leave those of others alone.
func TestNodeConditions(t *testing.T) {
	writes := 0
	c, api := testConditions(t, &writes, deadNode(), healthyNode("n2"))
	device := probedDevice{"n1", "bmc1"}
	c.probes.known = map[probedDevice]*probe{device: {}}
	dryRun := func() { c.config.config.Policy.Enforce = false }
	for _, tt := range []struct {
		name   string
		change func()
		want   string
		writes int
	}{
		{"first", dryRun, "EvictdFenceConfigured=True Planned: the node has a plan, ; EvictdFenceDeviceReachable=Unknown NotProbed: the devices are not yet probed", 1},
		{"probed", func() { c.probes.known[device].ended = time.Now() }, "EvictdFenceDeviceReachable=True Answered", 1},
		{"failed", func() { c.probes.known[device].failure = "no session" }, "EvictdFenceDeviceReachable=False Unusable: device bmc1: no session", 1},
		{"new leader", func() { c.probes.known[device] = &probe{} }, "EvictdFenceDeviceReachable=False Unusable: device bmc1: no session", 0},
		{"not drilled", func() { c.config.config.Plans["n1"] = plugPlan() },
			"EvictdFenceConfigured=False NotDrilled: level 1 of power_management (bmc-off) is not used", 1},
		{"drilled", func() { c.config.shown = drills{"n1": {plugDigest()}} }, "EvictdFenceConfigured=True Planned", 1},
		{"read by Jobs", func() {
			p := plugPlan()
			p.PowerManagement[0].Methods[0].Executor = fence.InJob
			c.config.config.Plans["n1"], c.probes.known = p, nil
		}, "EvictdFenceDeviceReachable=Unknown NotProbed: no device of the plan is probed", 1},
		{"mistakes", func() {
			delete(c.config.config.Plans, "n1")
			c.config.config.Refused = []string{"n1"}
			c.config.problems = []plan.Problem{
				{Object: "ConfigMap evictd/fence-config-n1", Line: 2, Key: "x", Message: "is wrong", Remedy: "correct it"},
				{Object: "ConfigMap evictd/fence-config-n1", Message: "only a warning", Warning: true},
				{Object: "ConfigMap evictd/fence-config-n3", Message: "is another's"},
				{Object: "ConfigMap evictd/fence-config-rack-n1", Message: "is another's"},
			}
		}, "EvictdFenceConfigured=False Invalid: the node has no plan and is not fenced: ConfigMap evictd/fence-config-n1 line 2: x: is wrong; correct it", 1},
		{"no configuration", func() { c.config.config.Refused = nil }, "", 1},
	} {
		tt.change()
		before := writes
		c.look(t.Context())
		c.look(t.Context())
		own, others := conditionsOf(t, api, "n1")
		got := strings.Join(own, "; ")
		if !strings.Contains(got, tt.want) || (tt.want == "") != (got == "") || strings.Contains(got, "warning") || strings.Contains(got, "another") {
			t.Errorf("%s: conditions %q; want %q", tt.name, got, tt.want)
		}
		if writes-before != tt.writes || others != 1 {
			t.Errorf("%s: %d writes and %d other conditions; want %d and 1", tt.name, writes-before, others, tt.writes)
		}
		if own, _ := conditionsOf(t, api, "n2"); len(own) > 0 {
			t.Errorf("%s: conditions %v of a node without a configuration", tt.name, own)
		}
	}
}

// A Node whose status the API server finds invalid does not keep others from their conditions.
func TestNodeConditionsOfInvalidNode(t *testing.T) {
	writes := 0
	c, api := testConditions(t, &writes, healthyNode("n2"), healthyNode("n3"))
	for _, n := range []string{"n2", "n3"} {
		c.config.config.Plans[n] = fence.Plan{Hash: "h"}
	}
	c.writer = invalidStatus{api, "n2"}
	c.look(t.Context())
	if own, _ := conditionsOf(t, api, "n3"); len(own) != 2 {
		t.Errorf("conditions of n3 %v; want two", own)
	}
}

// invalidStatus is an API server that finds the status of a Node invalid.
type invalidStatus struct {
	client.Client
	node string
}

func (i invalidStatus) Status() client.SubResourceWriter {
	return invalidWriter{i.Client.Status(), i.node}
}

type invalidWriter struct {
	client.SubResourceWriter
	node string
}

func (i invalidWriter) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
	if o.GetName() == i.node {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, i.node, nil)
	}
	return i.SubResourceWriter.Patch(ctx, o, p, options...)
}

// A first configuration of many nodes is written bit by bit, and what could not be written follows.
func TestNodeConditionsAreWrittenSlowly(t *testing.T) {
	var nodes []client.Object
	for i := range 25 {
		nodes = append(nodes, healthyNode(fmt.Sprintf("w%02d", i)))
	}
	writes := 0
	c, api := testConditions(t, &writes, nodes...)
	for _, n := range nodes {
		c.config.config.Plans[n.GetName()] = fence.Plan{Hash: "h"}
	}
	working := c.writer
	c.writer = refusingStatus{}
	c.look(t.Context())
	if c.failed == "" {
		t.Error("an error of a write is not reported")
	}
	c.writer = working
	for _, want := range []int{10, 20, 25, 25} {
		if c.look(t.Context()); writes != want {
			t.Errorf("%d writes; want %d", writes, want)
		}
	}
	if own, _ := conditionsOf(t, api, "w24"); len(own) != 2 {
		t.Errorf("conditions of the last node %v; want two", own)
	}
}

// refusingStatus is an API server that refuses each write of a status.
type refusingStatus struct{ client.SubResourceWriter }

func (r refusingStatus) Status() client.SubResourceWriter { return r }

func (refusingStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return errors.New("refused")
}
