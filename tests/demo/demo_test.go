package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWitness(t *testing.T) {
	const threshold = 100
	begin := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	type sample struct {
		ms        int
		available int64
	}
	for _, tt := range []struct {
		name    string
		samples []sample
		want    testimony
	}{
		{"never below", []sample{{1, 200}, {2, 100}}, testimony{available: 100}},
		{"below", []sample{{1, 100}, {2, 99}, {3, 98}}, testimony{available: 98, crossed: at(2), lowest: 98}},
		{"back", []sample{{1, 200}, {2, 90}, {3, 100}, {4, 150}}, testimony{available: 150, crossed: at(2), lowest: 90, recovered: at(3)}},
		{"below again", []sample{{1, 90}, {2, 110}, {3, 80}}, testimony{available: 80, crossed: at(1), lowest: 80}},
		{"back again", []sample{{1, 90}, {2, 110}, {3, 80}, {4, 120}}, testimony{available: 120, crossed: at(1), lowest: 80, recovered: at(4)}},
	} {
		w := witness{threshold: threshold}
		for _, s := range tt.samples {
			w.see(at(s.ms), s.available, nil)
		}
		got, err := w.testify()
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(testimony{})); diff != "" || err != nil {
			t.Errorf("%s: testify() after %v = %v (-want +got):\n%s", tt.name, tt.samples, err, diff)
		}
	}
}

// A crossing that was over between two looks is taken from whoever saw it, and one that was seen is not.
func TestWitnessBelieves(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	w := witness{threshold: 100}
	w.see(at(1), 200, nil)
	if !w.believe(at(2), 90) || w.believe(at(3), 80) {
		t.Error("believe() = false, or twice true; want true once")
	}
	w.see(at(4), 150, nil)
	want := testimony{available: 150, crossed: at(2), lowest: 90, recovered: at(4)}
	if got, err := w.testify(); got != want || err != nil {
		t.Errorf("testify() = %+v, %v; want %+v", got, err, want)
	}
}

// What could not be read is neither 0 nor forgotten.
func TestWitnessKeepsAnError(t *testing.T) {
	w := witness{threshold: 100}
	broken := errors.New("broken")
	w.see(time.Unix(1, 0), 0, broken)
	w.see(time.Unix(2, 0), 200, nil)
	if got, err := w.testify(); !errors.Is(err, broken) || !got.crossed.IsZero() {
		t.Errorf("testify() = %+v, %v; want no crossing and the error %v", got, err, broken)
	}
}

func TestGauge(t *testing.T) {
	const threshold, high = 10 * gibibyte, 12 * gibibyte
	for _, tt := range []struct {
		available int64
		bar, text string
	}{
		{high, "[" + strings.Repeat("#", 20) + "|" + strings.Repeat("#", 19) + "]", "12Gi"},
		{high + gibibyte, "[" + strings.Repeat("#", 20) + "|" + strings.Repeat("#", 19) + "]", "3Gi above the threshold"},
		{threshold + gibibyte, "[" + strings.Repeat("#", 20) + "|" + strings.Repeat("#", 9) + strings.Repeat(".", 10) + "]", "1Gi above the threshold"},
		{threshold, "[" + strings.Repeat("#", 20) + "|" + strings.Repeat(".", 19) + "]", "0 above the threshold"},
		{threshold - gibibyte, "[" + strings.Repeat("#", 10) + strings.Repeat(".", 10) + "|" + strings.Repeat(".", 19) + "]", "1Gi BELOW the threshold"},
		{0, "[" + strings.Repeat(".", 20) + "|" + strings.Repeat(".", 19) + "]", "10Gi BELOW the threshold"},
	} {
		var out strings.Builder
		newTimeline(&out).gauge(tt.available, threshold, high)
		if got := out.String(); !strings.Contains(got, tt.bar) || !strings.Contains(got, tt.text) {
			t.Errorf("gauge(%d, %d, %d) = %q; want %s and %q in it", tt.available, int64(threshold), int64(high), got, tt.bar, tt.text)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"-help"}, exitOK, "-dry-run"},
		{[]string{"-no-such-flag"}, exitUsage, "no-such-flag"},
		{[]string{"now"}, exitUsage, `unexpected argument "now"`},
		{[]string{"-evictd", "/nowhere/evictd"}, exitFailure, "make build"},
	} {
		var stdout, stderr strings.Builder
		if got := run(tt.args, &stdout, &stderr); got != tt.want || !strings.Contains(stderr.String(), tt.says) {
			t.Errorf("run(%q) = %d, saying %q; want %d and %q", tt.args, got, stderr.String(), tt.want, tt.says)
		}
	}
}
