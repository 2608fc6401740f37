package loop

import (
	"testing"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Next to a kubelet whose threshold is not below evictd's, evictd leaves a signal to it, in dry run
// too. It does not if the kubelet's thresholds are not known, or if it is not to regard the kubelet.
func TestSignalsOfTheKubelet(t *testing.T) {
	threshold := func(value string) []signal.Threshold {
		v, err := signal.ParseThreshold(value)
		if err != nil {
			t.Fatal(err)
		}
		return []signal.Threshold{{Signal: signal.PIDAvailable, Value: v}}
	}
	for _, tt := range []struct {
		name, more string
		kubelet    bool
		thresholds []signal.Threshold
		want       []string
	}{
		{"kubelet's is higher", "", true, threshold("200"), nil},
		{"dry run", "dryRun: true\n", true, threshold("200"), nil},
		{"kubelet's is lower", "", true, threshold("20"), []string{"evict a hard true grace 1s reported"}},
		{"kubelet has none", "", true, []signal.Threshold{}, []string{"evict a hard true grace 1s reported"}},
		{"not known", "", true, nil, []string{"evict a hard true grace 1s reported"}},
		{"no kubelet", "", false, threshold("200"), []string{"evict a hard true grace 1s reported"}},
		{"override", "kubelet: override\n", true, threshold("200"), []string{"evict a hard true grace 1s"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run(t, settings+tt.more, func(n *node) {
				n.observe(signal.PIDAvailable, 50)
				n.pass(5 * time.Second)
				n.wantCalls("below the threshold", tt.want...)
				if v := n.last(); len(v.Orders.Met) != 1 {
					t.Errorf("met: %v; want pid.available", v.Orders.Met)
				}
			}, func(n *node, o *Options) {
				n.add("a", gi)
				n.pods[0].Usage.PIDs = 600
				n.changeHandle("a", kubeletsPod(true))
				n.kubelet = tt.kubelet
				o.KubeletThresholds = func() []signal.Threshold { return tt.thresholds }
			})
		})
	}
}
