package controller

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/evictd/evictd/agent/fence"
)

// A machine that was registered again under another name has two Nodes, one of them dead. It is not switched off.
func TestSharedUUID(t *testing.T) {
	for name, uuid := range map[string]string{"same": machine, "order of SMBIOS": "674523a1-ab89-efcd-a123-456789abcdef"} {
		synctest.Test(t, func(t *testing.T) {
			d := &faultyDevice{uuid: machine, status: func(context.Context) (fence.Power, error) { return fence.PowerOn, nil }}
			renamed := healthyNode("n2")
			renamed.Status.NodeInfo.SystemUUID = uuid
			r, api := testReconciler(t, d, interceptor.Funcs{}, deadNode(), renamed, healthyNode("n3"),
				leaseOf("n1", time.Now().Add(-time.Hour)))
			reconcileFor(t, r, 30*time.Minute)
			if n := d.called("off"); n != 0 {
				t.Errorf("%s: off was sent %d times; want never", name, n)
			}
			if nf := getFence(t, api); nf == nil || nf.State.Target.SystemUUID != "" || nf.State.Proof != nil {
				t.Errorf("%s: fence = %+v; want one without a UUID", name, nf)
			}
		})
	}
}

// The other Node may appear after the fence began.
func TestSharedUUIDLater(t *testing.T) {
	renewed := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	renamed := healthyNode("n2")
	renamed.Status.NodeInfo.SystemUUID = machine
	for identity, reason := range map[fence.IdentityCheck]string{fence.CheckUUID: "same systemUUID", fence.CheckNone: ""} {
		r, api := testReconciler(t, nil, interceptor.Funcs{}, deadNode(), renamed, leaseOf("n1", renewed),
			runningFence(func(s *fence.State) { s.Intent = &fence.Intent{ID: "1"} }))
		r.saved("n1").resourceVersion = getFence(t, api).ResourceVersion
		o := offOrder("1")
		o.lease, o.method.Identity = renewed, identity
		err := r.checkAct(t.Context(), o)
		if reason == "" && err != nil || reason != "" && (err == nil || !strings.Contains(err.Error(), reason)) {
			t.Errorf("identity=%s: checkAct = %v; want %q", identity, err, reason)
		}
	}
}
