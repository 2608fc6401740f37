package strict

import "strings"

// Nearest returns the candidate that is nearest to a misspelled name: one that
// differs only in case, else the one with the fewest edits, up to a third of its
// letters. It returns "" if none is that near.
func Nearest(name string, candidates []string) string {
	best, fewest := "", len(name)
	for _, c := range candidates {
		if strings.EqualFold(name, c) {
			return c
		}
		limit := max(1, len(c)/3)
		if len(name) > len(c)+limit || len(c) > len(name)+limit {
			continue
		}
		if n := edits(strings.ToLower(name), strings.ToLower(c)); n <= limit && n < fewest {
			best, fewest = c, n
		}
	}
	return best
}

// edits returns the optimal string alignment distance of a and b: the number of
// letters that must be inserted, deleted, replaced or swapped with their
// neighbour.
func edits(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			replaced := last[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
