package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/evictd/evictd/agent/control"
)

// timeline prints what happens and when.
type timeline struct {
	out   io.Writer
	start time.Time
}

func newTimeline(out io.Writer) *timeline {
	// Times of other processes come without the monotonic clock, so that all are compared by the wall's.
	return &timeline{out: out, start: time.Now().Round(0)}
}

// say prints what happens now.
func (t *timeline) say(format string, args ...any) { t.at(time.Now(), format, args...) }

// at prints what happened at a time.
func (t *timeline) at(when time.Time, format string, args ...any) {
	fmt.Fprintf(t.out, "%8.3fs  %s\n", when.Round(0).Sub(t.start).Seconds(), fmt.Sprintf(format, args...))
}

// more prints what belongs to the line before.
func (t *timeline) more(format string, args ...any) {
	fmt.Fprintf(t.out, "%9s  %s\n", "", fmt.Sprintf(format, args...))
}

// voice lets somebody else tell what happens, line by line, until it is silenced.
type voice struct {
	timeline *timeline
	silent   atomic.Bool
}

func (v *voice) Write(line []byte) (int, error) {
	if !v.silent.Load() {
		v.timeline.say("%s", bytes.TrimSpace(line))
	}
	return len(line), nil
}

// chapter begins a new part.
func (t *timeline) chapter(format string, args ...any) {
	fmt.Fprintf(t.out, "\n%s\n", fmt.Sprintf(format, args...))
}

// verdict prints one thing that went as it should.
func (t *timeline) verdict(format string, args ...any) {
	fmt.Fprintf(t.out, "  ok  %s\n", fmt.Sprintf(format, args...))
}

// gaugeWidth is how many characters a gauge's bar has.
const gaugeWidth = 40

// gauge prints an amount of available memory against the threshold, which is the middle of its bar. The right end is
// high.
func (t *timeline) gauge(available, threshold, high int64) {
	step := float64(high-threshold) / (gaugeWidth / 2)
	filled := gaugeWidth/2 + int(float64(available-threshold)/step)
	filled = min(max(filled, 0), gaugeWidth)
	bar := []byte(strings.Repeat("#", filled) + strings.Repeat(".", gaugeWidth-filled))
	bar[gaugeWidth/2] = '|'
	side := "above"
	if available < threshold {
		side = "BELOW"
	}
	t.say("%8s  [%s]  %s %s the threshold", control.Bytes(available), bar, control.Bytes(max(available-threshold, threshold-available)), side)
}
