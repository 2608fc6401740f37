package main

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/kernel"
	"github.com/evictd/evictd/kernel/meminfo"
)

// chapter begins a new part.
func (d *demo) chapter(format string, args ...any) { fmt.Fprintf(d.out, "\n"+format+"\n", args...) }

// say prints what happens now, at what happened at a time.
func (d *demo) say(format string, args ...any) { d.at(time.Now(), format, args...) }

func (d *demo) at(when time.Time, format string, args ...any) {
	fmt.Fprintf(d.out, "%8.3fs  %s\n", when.Round(0).Sub(d.start).Seconds(), fmt.Sprintf(format, args...))
}

// more prints what belongs to the line before.
func (d *demo) more(format string, args ...any) {
	fmt.Fprintf(d.out, "           "+format+"\n", args...)
}

// ok prints one thing that went as it should.
func (d *demo) ok(format string, args ...any) { fmt.Fprintf(d.out, "  ok  "+format+"\n", args...) }

// Write prints what the node logs while it starts.
func (d *demo) Write(line []byte) (int, error) {
	if d.node == nil {
		d.say("%s", bytes.TrimSpace(line))
	}
	return len(line), nil
}

// gauge is memory.available at a time.
type gauge struct {
	at        time.Time
	available int64
}

// available reads memory.available as evictd computes it where active file cache counts as available.
func (d *demo) available() (int64, error) {
	i, err := meminfo.Read(kernel.FS("/proc"))
	n := int64(i.MemTotal) - int64(i.Hugetlb) - int64(i.WorkingSet()) + int64(i.ActiveFile)
	if err == nil && (d.lowest == 0 || n < d.lowest) {
		d.lowest = n
	}
	return n, err
}

// showAvailable prints memory.available if it has changed by 192 MiB or was printed a second ago.
func (d *demo) showAvailable() error {
	n, err := d.available()
	if change := max(n-d.shown.available, d.shown.available-n); err == nil && (change >= 192*mebibyte || time.Since(d.shown.at) >= time.Second) {
		d.shown = gauge{time.Now(), n}
		d.say("%s", bar(n, d.threshold, d.calm))
	}
	return err
}

// bar draws available memory against the threshold, which is the middle. The right end is high.
func bar(available, threshold, high int64) string {
	const width = 40
	step := float64(high-threshold) / (width / 2)
	filled := min(max(width/2+int(float64(available-threshold)/step), 0), width)
	line := []byte(strings.Repeat("#", filled) + strings.Repeat(".", width-filled))
	line[width/2] = '|'
	side := "above"
	if available < threshold {
		side = "BELOW"
	}
	return fmt.Sprintf("%8s  [%s]  %s %s the threshold", control.Bytes(available), line, control.Bytes(max(available-threshold, threshold-available)), side)
}
