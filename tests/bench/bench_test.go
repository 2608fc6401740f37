package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []int64
		want   int64
	}{
		{[]int64{7}, 7},
		{[]int64{3, 1, 2}, 2},
		{[]int64{4, 1, 3, 2}, 2},
		{[]int64{math.MaxInt64, math.MaxInt64 - 1}, math.MaxInt64 - 1},
	} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median(%v) = %d; want %d", tt.values, got, tt.want)
		}
	}
}

func TestTestimony(t *testing.T) {
	const threshold = 100
	type sample struct {
		at        time.Duration
		available int64
	}
	for _, tt := range []struct {
		name    string
		samples []sample
		want    testimony
	}{
		{"never below", []sample{{1, 200}, {2, 100}}, testimony{lastAbove: 2, gap: 1}},
		{"equal is not below", []sample{{1, 100}, {3, 99}}, testimony{lastAbove: 1, below: 3, lowest: 99, gap: 2}},
		{"recovers", []sample{{1, 200}, {2, 90}, {3, 80}, {9, 100}, {10, 300}}, testimony{lastAbove: 1, below: 2, lowest: 80, recovered: 9, gap: 6}},
		{"falls again", []sample{{1, 200}, {2, 90}, {3, 150}, {4, 70}, {5, 120}}, testimony{lastAbove: 1, below: 2, lowest: 70, recovered: 5, gap: 1}},
		{"a gap before the crossing does not count", []sample{{50, 200}, {51, 200}, {52, 90}, {53, 110}}, testimony{lastAbove: 51, below: 52, lowest: 90, recovered: 53, gap: 1}},
		{"a gap after the recovery does not count", []sample{{1, 200}, {2, 90}, {3, 110}, {99, 300}}, testimony{lastAbove: 1, below: 2, lowest: 90, recovered: 3, gap: 1}},
	} {
		var got testimony
		var last time.Duration
		for _, s := range tt.samples {
			got.see(s.at, s.at-last, s.available, threshold)
			last = s.at
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(testimony{})); diff != "" {
			t.Errorf("%s: see(%v) (-want +got):\n%s", tt.name, tt.samples, diff)
		}
	}
}

func TestParseCPU(t *testing.T) {
	const after = " S 1 5085 5085 0 -1 4194560 3420 0 12 0 131 47 0 0 20 0 14 0 120834 1273692160 9811 18446744073709551615\n"
	for _, tt := range []struct {
		stat string
		want time.Duration
		ok   bool
	}{
		{"5085 (evictd)" + after, 1780 * time.Millisecond, true},
		{"5085 (a) Z 9 9 (b)" + after, 1780 * time.Millisecond, true},
		{"5085 (evictd) S 1 5085", 0, false},
		{"5085 (evictd) S 1 5085 5085 0 -1 4194560 3420 0 12 0 many 47 0 0", 0, false},
		{"", 0, false},
	} {
		got, err := parseCPU([]byte(tt.stat))
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("parseCPU(%q) = %v, %v; want %v, ok %t", tt.stat, got, err, tt.want, tt.ok)
		}
	}
}

func FuzzParseCPU(f *testing.F) {
	f.Add([]byte("5085 (evictd) S 1 5085 5085 0 -1 4194560 3420 0 12 0 131 47 0 0 20\n"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, stat []byte) {
		if d, err := parseCPU(stat); err != nil && d != 0 {
			t.Errorf("parseCPU(%q) = %v, %v; want no duration beside an error", stat, d, err)
		}
	})
}

func TestStatusField(t *testing.T) {
	const status = "Name:\tVmRSS: 1\nVmRSS:\t   39244 kB\nThreads:\t14\n"
	for _, tt := range []struct {
		key  string
		want int64
		ok   bool
	}{
		{"VmRSS:", 39244, true},
		{"Threads:", 14, true},
		{"RssAnon:", 0, false},
	} {
		got, err := statusField([]byte(status), tt.key)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("statusField(status, %q) = %d, %v; want %d, ok %t", tt.key, got, err, tt.want, tt.ok)
		}
	}
}

func TestCalibrate(t *testing.T) {
	const start = "earlyoom v1.7\nmem total: 24105 MiB, swap total:    0 MiB\n"
	for _, tt := range []struct {
		name, said string
		scale      float64
		ok         bool
	}{
		{"of all memory", start + "mem avail: 23483 of 24105 MiB (97.42%), swap free:    0 of    0 MiB ( 0.00%)\n", 1, true},
		{"of user memory", strings.Replace(start, "24105", "20000", 1) + "mem avail:  9000 of 10000 MiB (90.00%)\n", 0.5, true},
		{"no report", start, 1, false},
		{"no memory", start + "mem avail:     0 of     0 MiB\n", 1, false},
		{"another program", "hello\n", 1, false},
	} {
		e := withEarlyoom{scale: 1}
		err := e.calibrate([]byte(tt.said))
		if e.scale != tt.scale || (err == nil) != tt.ok {
			t.Errorf("%s: calibrate(%q) = %v, scale %v; want ok %t, scale %v", tt.name, tt.said, err, e.scale, tt.ok, tt.scale)
		}
	}
}

func TestPlanLeavesTheReserve(t *testing.T) {
	for _, available := range []int64{0, 4 * gibibyte, 6 * gibibyte, 8 * gibibyte, 24 * gibibyte, 512 * gibibyte} {
		p, err := planFor(available)
		if ok := available >= 8*gibibyte; (err == nil) != ok {
			t.Errorf("planFor(%d) = %+v, %v; want ok %t", available, p, err, ok)
		}
		if err == nil && (available-p.takes < reserve+gibibyte || p.drop <= 0 || p.takes <= p.drop) {
			t.Errorf("planFor(%d) = %+v; want a hog beyond the threshold that leaves %d", available, p, int64(reserve+gibibyte))
		}
	}
}

func TestPrintTable(t *testing.T) {
	var got strings.Builder
	err := printTable(&got, []string{"one", "two"}, []row{
		{"time", [][]int64{{1500000, 250000000}, nil}, milliseconds},
		{"size", [][]int64{{3 << 19}, {2 << 20, 1 << 20, 5 << 20}}, mebibyteText},
	})
	const want = `              one               two           
           median       max  median       max
   time    1.5 ms    250 ms       -         -
   size   1.5 MiB   1.5 MiB 2.0 MiB   5.0 MiB
`
	if fields := strings.Fields(got.String()); err != nil || !cmp.Equal(fields, strings.Fields(want)) {
		t.Errorf("printTable() = %v:\n%s\nwant\n%s", err, got.String(), want)
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want int
		says string
	}{
		{[]string{"-help"}, exitOK, "-bursts"},
		{[]string{"-no-such-flag"}, exitUsage, "no-such-flag"},
		{[]string{"-only", "burst"}, exitUsage, `no step "burst"`},
		{[]string{"-bursts", "0"}, exitUsage, "below 1"},
		{[]string{"now"}, exitUsage, "unexpected arguments"},
		{[]string{"-only", "idle", "-evictd", "/nowhere/evictd"}, exitFailure, "make build"},
	} {
		var stdout, stderr strings.Builder
		if got := run(tt.args, &stdout, &stderr); got != tt.want || !strings.Contains(stderr.String(), tt.says) {
			t.Errorf("run(%q) = %d, saying %q; want %d and %q", tt.args, got, stderr.String(), tt.want, tt.says)
		}
	}
}
