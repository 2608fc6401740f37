package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// quantile returns the q-quantile of values, which need not be sorted, by the nearest rank. It panics without values.
func quantile(values []int64, q float64) int64 {
	sorted := slices.Sorted(slices.Values(values))
	rank := int(q * float64(len(sorted)))
	if float64(rank) < q*float64(len(sorted)) {
		rank++
	}
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func median(values []int64) int64 { return quantile(values, 0.5) }

// mean panics without values.
func mean(values []int64) (sum int64) {
	for _, v := range values {
		sum += v
	}
	return sum / int64(len(values))
}

// early returns the number of values that are not above zero: kills before the crossing or at the same time.
func early(values []int64) (n int) {
	for _, v := range values {
		if v <= 0 {
			n++
		}
	}
	return n
}

// milliseconds formats microseconds.
func milliseconds(us int64) string {
	ms := float64(us) / 1000
	switch {
	case ms < 10 && ms > -10:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// size formats KiB.
func size(kib int64) string {
	if mib := float64(kib) / 1024; mib < 100 {
		return fmt.Sprintf("%.1f MiB", mib)
	}
	return fmt.Sprintf("%d MiB", kib/1024)
}

func mebibytes(n int64) float64 { return float64(n) / mebibyte }

func microseconds(d time.Duration) int64 { return d.Microseconds() }

// counts formats numbers by name, the largest first.
func counts[K ~string](n map[K]int) string {
	names := slices.SortedFunc(maps.Keys(n), func(a, b K) int { return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(a, b)) })
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %d", name, n[name]))
	}
	return strings.Join(parts, ", ")
}
