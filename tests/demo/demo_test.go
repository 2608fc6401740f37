package main

import (
	"strings"
	"testing"
)

func TestBar(t *testing.T) {
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
		if got := bar(tt.available, threshold, high); !strings.Contains(got, tt.bar) || !strings.Contains(got, tt.text) {
			t.Errorf("bar(%d, %d, %d) = %q; want %s and %q in it", tt.available, int64(threshold), int64(high), got, tt.bar, tt.text)
		}
	}
}
