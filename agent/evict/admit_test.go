package evict

import (
	"testing"

	"github.com/evictd/evictd/agent/signal"
)

func TestAdmit(t *testing.T) {
	bestEffort := Pod{QoS: BestEffort}
	burstable := Pod{QoS: Burstable}
	tolerating := func(key, operator, value, effect string) Pod {
		return Pod{QoS: BestEffort, Tolerations: []Toleration{{Key: "other", Operator: "Exists"}, {key, operator, value, effect}}}
	}
	const taint = "node.kubernetes.io/memory-pressure"
	memory, disk, pid := signal.MemoryPressure, signal.DiskPressure, signal.PIDPressure
	for _, tt := range []struct {
		name       string
		conditions []signal.Condition
		pod        Pod
		want       bool
	}{
		{"no conditions", nil, bestEffort, true},
		{"memory, best effort", []signal.Condition{memory}, bestEffort, false},
		{"memory, burstable", []signal.Condition{memory}, burstable, true},
		{"memory, guaranteed", []signal.Condition{memory}, Pod{QoS: Guaranteed}, true},
		{"memory, static", []signal.Condition{memory}, Pod{QoS: BestEffort, Static: true}, true},
		{"disk, burstable", []signal.Condition{disk}, burstable, false},
		{"PIDs, guaranteed", []signal.Condition{pid}, Pod{QoS: Guaranteed}, false},
		{"memory and disk, burstable", []signal.Condition{disk, memory}, burstable, false},
		{"memory and PIDs, guaranteed", []signal.Condition{memory, pid}, Pod{QoS: Guaranteed}, false},
		{"all, critical", []signal.Condition{disk, memory, pid}, aPod("p", withPriority(2_000_000_000)), true},
		{"tolerating disk pressure does not help", []signal.Condition{disk}, Pod{QoS: BestEffort, Tolerations: []Toleration{{Operator: "Exists"}}}, false},
		{"tolerating", []signal.Condition{memory}, tolerating(taint, "Exists", "", "NoSchedule"), true},
		{"any effect", []signal.Condition{memory}, tolerating(taint, "Exists", "", ""), true},
		{"another effect", []signal.Condition{memory}, tolerating(taint, "Exists", "", "NoExecute"), false},
		{"any key", []signal.Condition{memory}, tolerating("", "Exists", "", ""), true},
		{"another key", []signal.Condition{memory}, tolerating("node.kubernetes.io/disk-pressure", "Exists", "", ""), false},
		{"equal to the empty value", []signal.Condition{memory}, tolerating(taint, "Equal", "", "NoSchedule"), true},
		{"equal by default", []signal.Condition{memory}, tolerating(taint, "", "", "NoSchedule"), true},
		{"equal to another value", []signal.Condition{memory}, tolerating(taint, "Equal", "true", "NoSchedule"), false},
		{"equal without a key", []signal.Condition{memory}, tolerating("", "Equal", "", "NoSchedule"), false},
		{"unknown operator", []signal.Condition{memory}, tolerating(taint, "Lt", "", "NoSchedule"), false},
	} {
		if got := Admit(tt.conditions, &tt.pod); got != tt.want {
			t.Errorf("%s: Admit() = %t; want %t", tt.name, got, tt.want)
		}
	}
}
