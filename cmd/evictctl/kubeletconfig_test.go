package main

import (
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/signal"
)

func TestKubeletLine(t *testing.T) {
	for want, k := range map[string]control.KubeletConfiguration{
		"configuration not known": {},
		"configuration not known: the user of evictd-kube may not get nodes/configz": {Error: "the user of evictd-kube may not get nodes/configz"},
		"configuration read 12s ago; fits evictd's":                                  {Known: true, AgeSeconds: new(12.0)},
		"configuration read 12s ago; evicts for nodefs.available, imagefs.available; 1 difference, see evictctl probe": {
			Known: true, AgeSeconds: new(12.0), Left: control.List[string]{"nodefs.available", "imagefs.available"}, Differences: make(control.List[control.KubeletDifference], 1),
		},
		"configuration read 1h ago, and now not: it does not answer; 2 differences, see evictctl probe": {
			Known: true, AgeSeconds: new(3600.0), Error: "it does not answer", Differences: make(control.List[control.KubeletDifference], 2),
		},
	} {
		if got := kubeletLine(&k); got != want {
			t.Errorf("kubeletLine(%+v) = %q; want %q", k, got, want)
		}
	}
}

// The probe shows each difference with its consequence and remedy.
func TestProbeShowsDifferences(t *testing.T) {
	k := control.KubeletConfiguration{Known: true, Differences: control.List[control.KubeletDifference]{
		{Field: "evictionHard.nodefs.available", Kubelet: "10%", Want: "5%", Consequence: "evictd leaves this signal to the kubelet", Remedy: "set it to 5%"},
		{Field: "evictionSoft.nodefs.available", Kubelet: "15%", Consequence: "the kubelet evicts too", Remedy: "remove it"},
	}}
	var b strings.Builder
	if err := probePage(&probed{Daemon: &probedDaemon{Kubelet: &k}}, &control.Status{}).print(&b); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(b.String()), " ")
	for _, want := range []string{
		"kubelet: configuration read; 2 differences", "evictionHard.nodefs.available 10% 5% evictd leaves this signal to the kubelet; set it to 5%",
		"evictionSoft.nodefs.available 15% - the kubelet evicts too; remove it",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("probe prints\n%s\nwant %q", b.String(), want)
		}
	}
}

func TestStatusShowsThresholdsLeftToKubelet(t *testing.T) {
	rows := signalRows([]control.SignalStatus{{
		Signal: signal.NodeFsAvailable, Status: control.Observed, Available: new(int64(7)), Capacity: new(int64(100)),
		Thresholds: control.List[control.ThresholdStatus]{{Value: "10%", Kubelet: "15%"}, {Value: "20%", Soft: true}},
	}}, now)
	if len(rows) != 2 || rows[0][3] != "ok; left to the kubelet, with its 15%" || rows[1][3] != "ok" {
		t.Errorf("signalRows() = %q", rows)
	}
}

// A threshold that is left to the kubelet is not within a grace period.
func TestThresholdState(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		threshold control.ThresholdStatus
		want      string
	}{
		{control.ThresholdStatus{Kubelet: "10%"}, "ok"},
		{control.ThresholdStatus{Met: true, Kubelet: "10%"}, "met for 1m, left to the kubelet"},
		{control.ThresholdStatus{Met: true, Past: true}, "met for 1m"},
		{control.ThresholdStatus{Met: true, Soft: true}, "met for 1m, within its grace period"},
	} {
		tt.threshold.Since = now.Add(-time.Minute)
		if got := thresholdState(&control.SignalStatus{Status: control.Observed}, &tt.threshold, now); got != tt.want {
			t.Errorf("thresholdState(%+v) = %q; want %q", tt.threshold, got, tt.want)
		}
	}
}
