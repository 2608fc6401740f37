package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

// testProbes returns the probes of the device of n1.
func testProbes(t *testing.T, d *faultyDevice, objects ...client.Object) (*probes, *events.FakeRecorder) {
	t.Helper()
	r, api := testReconciler(t, d, interceptor.Funcs{}, objects...)
	recorded := events.NewFakeRecorder(10)
	return &probes{config: r.config, cached: api, executor: r.executor, recorder: recorder{recorded}, log: slog.New(slog.DiscardHandler)}, recorded
}

// probeFor probes for a time.
func probeFor(t *testing.T, p *probes, d time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		t.Error(err)
	}
}

func on(context.Context) (fence.Power, error) { return fence.PowerOn, nil }

// A device is probed once an hour, and reported when it can no longer be used and when it can again.
func TestProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine, status: on}
		n := healthyNode("n1")
		n.Status.NodeInfo.SystemUUID = machine
		p, recorded := testProbes(t, d, n)
		probeFor(t, p, 9*time.Second)
		if n := testutil.CollectAndCount(p, "evictd_fence_device_reachable"); n != 0 && d.called("status") == 0 {
			t.Error("there is a result before the first probe")
		}
		probeFor(t, p, 30*time.Minute)
		if got := d.called("status"); got != 1 {
			t.Errorf("probes after 30 min = %d; want 1", got)
		}
		probeFor(t, p, 10*time.Hour)
		if got := d.called("status"); got < 10 || got > 12 {
			t.Errorf("probes after 10.5 h = %d; want one an hour", got)
		}
		inJob := *p.config.config.Plans["n1"].PowerManagement[0].Methods[0].DeepCopy()
		inJob.Executor, inJob.Device = fence.InJob, "pdu"
		plan := p.config.config.Plans["n1"]
		plan.Isolation = []fence.Level{{Methods: []fence.Method{inJob}}}
		p.config.config.Plans["n1"] = plan
		before := d.called("status")
		probeFor(t, p, 30*time.Minute)
		if got := d.called("status"); got > before+1 || len(p.devicesOf("n1")) != 1 {
			t.Errorf("%d probes in 30 min, %d devices; want none of a device that is read by Jobs", got-before, len(p.devicesOf("n1")))
		}
		if d.called("off")+d.called("on") > 0 || len(recorded.Events) > 0 {
			t.Errorf("calls %v, %d events; want readings alone", d.calls, len(recorded.Events))
		}
		metrics := func(reachable int) {
			t.Helper()
			want := fmt.Sprintf("# HELP evictd_fence_device_reachable Whether all devices of a node answered their last probe as its own.\n"+
				"# TYPE evictd_fence_device_reachable gauge\nevictd_fence_device_reachable{node=\"n1\"} %d\n"+
				"# HELP evictd_fence_devices Devices of all plans, by the result of their last probe.\n# TYPE evictd_fence_devices gauge\n"+
				"evictd_fence_devices{state=\"reachable\"} %[1]d\nevictd_fence_devices{state=\"unknown\"} 0\n"+
				"evictd_fence_devices{state=\"unreachable\"} %d\n", reachable, 1-reachable)
			if err := testutil.CollectAndCompare(p, strings.NewReader(want), "evictd_fence_device_reachable", "evictd_fence_devices"); err != nil {
				t.Error(err)
			}
			if age := time.Since(p.devicesOf("n1")[0].ended); age > 70*time.Minute {
				t.Errorf("the last probe was %v ago", age)
			}
		}
		metrics(1)
		d.status = func(context.Context) (fence.Power, error) { return "", errors.New("no route to host") }
		probeFor(t, p, 5*time.Hour)
		metrics(0)
		d.status = on
		probeFor(t, p, 5*time.Hour)
		metrics(1)
		for _, want := range []string{"Warning FenceDeviceUnreachable device bmc1 could not be used to fence the node: no route to host; the node has no other device",
			"Normal FenceDeviceReachable device bmc1"} {
			if e := <-recorded.Events; !strings.HasPrefix(e, want) {
				t.Errorf("event %q; want %q", e, want)
			}
		}
		if len(recorded.Events) > 0 {
			t.Errorf("one more event: %s", <-recorded.Events)
		}
		p.config.config.Plans = nil
		probeFor(t, p, time.Minute)
		if n := testutil.CollectAndCount(p, "evictd_fence_device_reachable", "evictd_fence_device_probe_timestamp_seconds"); n != 0 {
			t.Errorf("%d series of a node without a plan", n)
		}
	})
}

// A device of a node with a fence is not probed before that has ended.
func TestNoProbeInFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &faultyDevice{uuid: machine, status: on}
		p, _ := testProbes(t, d, deadNode(), runningFence(nil))
		probeFor(t, p, 3*time.Hour)
		if got := d.called("status"); got != 0 {
			t.Errorf("probes = %d; want none while the fence goes on", got)
		}
	})
}

func TestProbeFailure(t *testing.T) {
	n := healthyNode("n1")
	n.Status.NodeInfo.SystemUUID = machine
	for _, tt := range []struct {
		name    string
		reading fence.Reading
		check   fence.IdentityCheck
		dead    bool
		port    bool
		want    string
	}{
		{name: "on", reading: fence.Reading{Power: fence.PowerOn, UUID: machine}, check: fence.CheckUUID},
		{name: "another machine", reading: fence.Reading{Power: fence.PowerOn, UUID: "b" + machine[1:]}, check: fence.CheckUUID, want: "does not match"},
		{name: "no UUID", reading: fence.Reading{Power: fence.PowerOn}, check: fence.CheckUUID, want: "does not match"},
		{name: "identity=none", reading: fence.Reading{Power: fence.PowerOn}, check: fence.CheckNone},
		{name: "error", reading: fence.Reading{Power: fence.PowerUnknown, Error: "timeout"}, want: "timeout"},
		{name: "unknown", reading: fence.Reading{Power: fence.PowerUnknown}, want: "does not say"},
		{name: "off while Ready", reading: fence.Reading{Power: fence.PowerOff}, check: fence.CheckNone, want: "reads off although"},
		{name: "off while dead", reading: fence.Reading{Power: fence.PowerOff}, check: fence.CheckNone, dead: true},
		{name: "port off", reading: fence.Reading{Power: fence.PowerOff}, check: fence.CheckNone, port: true},
	} {
		node := n
		if tt.dead {
			node = deadNode()
		}
		got := probeFailure(&tt.reading, &fence.Method{Identity: tt.check}, node, !tt.port)
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: probeFailure = %q; want %q", tt.name, got, tt.want)
		}
	}
}
