package controller

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/evictd/evictd/agent/fence"
)

// A device that both Jobs and this process use is probed by a method that needs no Job, wherever that stands.
func TestProbesMixedExecutors(t *testing.T) {
	inJob, local := offMethod(), offMethod()
	inJob.Name, inJob.Executor = "in-job", fence.InJob
	level := func(methods ...fence.Method) []fence.Level { return []fence.Level{{Methods: methods}} }
	for name, tt := range map[string]struct {
		plan  fence.Plan
		want  int // probes in 40 minutes
		power bool
	}{
		"local":               {fence.Plan{PowerManagement: level(local)}, 1, true},
		"Job":                 {fence.Plan{PowerManagement: level(inJob)}, 0, true},
		"Job, then local":     {fence.Plan{PowerManagement: level(inJob, local)}, 1, true},
		"Job, local recovery": {fence.Plan{PowerManagement: level(inJob), Recovery: level(local)}, 1, true},
		"no power":            {fence.Plan{Isolation: level(inJob), Recovery: level(local)}, 1, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &faultyDevice{uuid: machine, status: on}
			n := healthyNode("n1")
			n.Status.NodeInfo.SystemUUID = machine
			p, _ := testProbes(t, d, n)
			p.config.config.Plans["n1"] = tt.plan
			probeFor(t, p, 40*time.Minute)
			if got := d.called("status"); got != tt.want {
				t.Errorf("%s: %d probes; want %d", name, got, tt.want)
			}
			if _, power := probedMethod(tt.plan, "bmc1"); power != tt.power {
				t.Errorf("%s: switches the power: %t; want %t", name, power, tt.power)
			}
		})
	}
}
