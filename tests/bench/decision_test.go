package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const benchmarkText = `goos: linux
cpu: AMD EPYC
BenchmarkStep/idle/110-2         	    1492	     15788 ns/op	   13200 B/op	       4 allocs/op
BenchmarkStep/evicting/5000-2      	       6	   3383425.5 ns/op	  537366 B/op	    5055 allocs/op
BenchmarkObservation/walk/110-2  	     645	    386945 ns/op	      32 B/op	       0 allocs/op
BenchmarkObservation/files/500-2 	      21	  27861702 ns/op	     186 B/op	       3 allocs/op
PASS
`

func TestParseBenchmarks(t *testing.T) {
	got, err := parseBenchmarks([]byte(benchmarkText), decisionBenchmarks)
	want := []*timing{
		{What: "Step, no threshold crossed, 110 pods", Runs: 1492, Nanoseconds: 15788, Bytes: 13200, Allocations: 4},
		{What: "Step, a victim to be chosen, 5000 pods", Runs: 6, Nanoseconds: 3383425.5, Bytes: 537366, Allocations: 5055},
		{What: "observation, by a BPF walk, 110 pods", Runs: 645, Nanoseconds: 386945, Bytes: 32},
		{What: "observation, by files, 500 pods", Runs: 21, Nanoseconds: 27861702, Bytes: 186, Allocations: 3},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(timing{})); diff != "" || err != nil {
		t.Errorf("parseBenchmarks() = %v (-want +got):\n%s", err, diff)
	}
	filter := []benchmark{{"BenchmarkFilter/annotation", "extender", "nodes"}}
	got, err = parseBenchmarks([]byte("BenchmarkFilter/annotation/5000-2  1065  972406 ns/op  3301546 p99-ns  267029 B/op  5176 allocs/op\n"), filter)
	want = []*timing{{What: "extender, 5000 nodes", Runs: 1065, Nanoseconds: 972406, P99: 3301546, Bytes: 267029, Allocations: 5176}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(timing{})); diff != "" || err != nil {
		t.Errorf("parseBenchmarks() of one with a percentile = %v (-want +got):\n%s", err, diff)
	}
	for name, text := range map[string]string{
		"a skipped benchmark": strings.Replace(benchmarkText, "BenchmarkObservation/walk", "--- SKIP: Walk", 1),
		"no number":           strings.Replace(benchmarkText, "13200", "many", 1),
	} {
		if _, err := parseBenchmarks([]byte(text), decisionBenchmarks); err == nil {
			t.Errorf("%s: parseBenchmarks() = nil; want an error", name)
		}
	}
}
