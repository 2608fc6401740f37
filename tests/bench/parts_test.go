package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/tests/hog/stamp"
)

func TestParts(t *testing.T) {
	const us = time.Microsecond
	whole := recordTimes{"bpf", 900 * us, 1100 * us, 1150 * us, 1300 * us, 1310 * us}
	unconfirmed := whole
	unconfirmed.confirmed = 0
	for _, tt := range []struct {
		name string
		a    recordTimes
		want []int64
	}{
		{"all known", whole, []int64{100, 20, 30, 150, 10, 90, 200}},
		{"ordered by the loop", unconfirmed, nil},
		{"none", recordTimes{}, nil},
	} {
		if got := tt.a.parts(1000*us, 1400*us, []time.Duration{90 * us, 1120 * us, 1140 * us, 1160 * us}); !cmp.Equal(got, tt.want) {
			t.Errorf("%s: parts() = %v; want %v", tt.name, got, tt.want)
		}
	}
}

func TestRecordTimesOf(t *testing.T) {
	before, wall := stamp.Now(), time.Now()
	got := recordTimesOf(&evict.Record{Lane: "bpf", CrossingSeen: wall.Round(0), Decided: wall.Add(time.Millisecond).Round(0)})
	if got.lane != "bpf" || got.above != 0 || got.seen < before || got.seen > stamp.Now() || got.decided-got.seen != time.Millisecond {
		t.Errorf("recordTimesOf() = %+v; want a crossing seen after %v and decided 1 ms later", got, before)
	}
}

func TestPartsTable(t *testing.T) {
	c := &crossings{Case: "case", Contender: allLanes}
	for i := range int64(100) {
		c.Killed = append(c.Killed, 1000-i) // the first is the slowest
		c.Uncertainty = append(c.Uncertainty, 130)
		c.Parts = append(c.Parts, []int64{500 - i, 200, 150, 100, 50, 300, 30})
	}
	c.Killed, c.Uncertainty, c.Parts = append(c.Killed, 9000), append(c.Uncertainty, 130), append(c.Parts, nil) // a crossing without parts
	got := partsTable([]*crossings{c, {Case: "case", Contender: earlyoom, Killed: []int64{1}}})
	want := [][]string{
		{"evictd, all lanes", "median", "100", "0.95 ms", "0.45 ms", "0.20 ms", "0.15 ms", "0.10 ms", "0.05 ms", "0.30 ms", "0.03 ms", "0.13 ms"},
		{"evictd, all lanes", "p99", "100", "1.00 ms", "0.50 ms", "0.20 ms", "0.15 ms", "0.10 ms", "0.05 ms", "0.30 ms", "0.03 ms", "0.13 ms"},
		{"evictd, all lanes", "mean of the 2 slowest", "100", "1.00 ms", "0.50 ms", "0.20 ms", "0.15 ms", "0.10 ms", "0.05 ms", "0.30 ms", "0.03 ms", "0.13 ms"},
	}
	if diff := cmp.Diff(want, got.rows); diff != "" {
		t.Errorf("partsTable() (-want +got):\n%s", diff)
	}
}
