package plan

import (
	"testing"

	"github.com/evictd/evictd/agent/fence"
)

func TestOnlyBMC(t *testing.T) {
	off := func(device string) fence.Method { return fence.Method{Action: fence.Off, Device: device} }
	separate := off("ipmi://10.0.0.1:623")
	separate.SeparatePower = true
	clean, wd := fence.Method{Action: fence.CleanPods}, fence.Method{Action: fence.Watchdog}
	for _, tt := range []struct {
		name   string
		levels [][]fence.Method
		want   bool
	}{
		{"ipmi", [][]fence.Method{{off("ipmi://10.0.0.1:623"), clean}}, true},
		{"ipmi and Redfish of the BMC", [][]fence.Method{{off("ipmi://10.0.0.1:623")}, {off("redfish://10.0.0.1:443/1")}}, true},
		{"a plug in the level", [][]fence.Method{{off("ipmi://10.0.0.1:623"), off("fence_apc://10.0.0.2/1")}}, false},
		{"a plug in another level", [][]fence.Method{{off("ipmi://10.0.0.1:623")}, {off("fence_apc://10.0.0.2/1")}}, false},
		{"a watchdog", [][]fence.Method{{off("ipmi://10.0.0.1:623")}, {wd}}, false},
		{"power of its own", [][]fence.Method{{separate}}, false},
		{"a plug alone", [][]fence.Method{{off("fence_apc://10.0.0.2/1")}}, false},
		{"nothing", nil, false},
	} {
		var p fence.Plan
		for _, methods := range tt.levels {
			p.PowerManagement = append(p.PowerManagement, fence.Level{Methods: methods})
		}
		if got := OnlyBMC(p); got != tt.want {
			t.Errorf("%s: OnlyBMC = %t; want %t", tt.name, got, tt.want)
		}
	}
}
