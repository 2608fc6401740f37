package bpf

import (
	"fmt"
	"testing"
	"time"
)

func BenchmarkSample(b *testing.B) {
	_, s := openSampler(b, Options{})
	tickNow(b, s)
	var sample Sample
	for b.Loop() {
		if err := s.Sample(&sample); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKick measures a request for a tick, and the tick itself in the kernel.
func BenchmarkKick(b *testing.B) {
	_, s := openSampler(b, Options{})
	before, err := s.Stats()
	for err != nil {
		before, err = s.Stats()
	}
	for b.Loop() {
		if err := s.Kick(); err != nil {
			b.Fatal(err)
		}
	}
	after, err := s.Stats()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(after.RunTime-before.RunTime)/float64(after.Ticks-before.Ticks), "ns/tick")
}

// BenchmarkWalk measures a walk of 200 cgroups with its table, and reading the table.
func BenchmarkWalk(b *testing.B) {
	_, s := openSampler(b, Options{})
	top := makeCgroup(b)
	for i := range 199 {
		top.child(b, fmt.Sprint(i))
	}
	setPods(b, s, top)
	rows := make([]Row, 0, 200)
	var inKernel, reading time.Duration
	var walks int
	for b.Loop() {
		if err := s.Walk(time.Second); err != nil {
			b.Fatal(err)
		}
		stats, err := s.Stats()
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		if rows, _, err = s.Rows(rows); err != nil || len(rows) != 200 {
			b.Fatalf("Rows() = %d rows, %v; want 200", len(rows), err)
		}
		reading += time.Since(start)
		inKernel += stats.WalkTime
		walks++
	}
	b.ReportMetric(float64(inKernel)/float64(walks), "ns/walk")
	b.ReportMetric(float64(reading)/float64(walks), "ns/reading")
}
