package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// median of values that need not be sorted; with an even number, the lower of the middle two, which was measured.
func median[T int64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

// row is one measure of all contenders: for each the values of its bursts.
type row struct {
	name   string
	values [][]int64
	format func(int64) string
}

// print prints medians and maxima side by side.
func printTable(out io.Writer, contenders []string, rows []row) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\t")
	for _, c := range contenders {
		fmt.Fprintf(w, "%s\t\t", c)
	}
	fmt.Fprint(w, "\n\t")
	for range contenders {
		fmt.Fprint(w, "median\tmax\t")
	}
	fmt.Fprintln(w)
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t", r.name)
		for _, values := range r.values {
			if len(values) == 0 {
				fmt.Fprint(w, "-\t-\t")
				continue
			}
			fmt.Fprintf(w, "%s\t%s\t", r.format(median(values)), r.format(slices.Max(values)))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// milliseconds prints nanoseconds.
func milliseconds(ns int64) string {
	ms := float64(ns) / float64(time.Millisecond)
	if ms < 100 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// mebibyteText prints bytes.
func mebibyteText(n int64) string { return fmt.Sprintf("%.1f MiB", mebibytes(n)) }
