package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
)

//go:embed picture.svg.tmpl
var pictureText string

// HTML's templates escape what is put into SVG as well.
var pictureTemplate = template.Must(template.New("picture").Parse(pictureText))

// bar is one contender's: medians and maxima in milliseconds.
type bar struct {
	name                               string
	killed, killedMost, back, backMost float64
}

// bars are those of the bursts at full speed on the machine itself.
func (b *book) bars() []bar {
	var bars []bar
	for _, g := range b.groups("bursts") {
		if g.on != native || g.name != besideCache(fullSpeed, warmCache) {
			continue
		}
		for _, c := range g.all {
			if len(c.Killed) == 0 {
				continue
			}
			ms := func(us int64) float64 { return float64(us) / 1000 }
			bars = append(bars, bar{
				name: c.Contender, killed: ms(median(c.Killed)), killedMost: ms(quantile(c.Killed, 1)),
				back: ms(median(c.Back)), backMost: ms(quantile(c.Back, 1)),
			})
		}
	}
	return bars
}

// The measures of the picture, in its own units.
const (
	pictureWidth = 920
	pictureLeft  = 180
	pictureRight = 780
	pictureTop   = 58
	rowHeight    = 40
)

// drawn is a bar with its places.
type drawn struct {
	Name, Killed, Back                                        string
	Ours                                                      bool
	Y, TextY, KilledY, KilledTextY, BackTop, BackY, BackTextY int
	KilledWidth, KilledX, KilledMostX, KilledTextX            int
	BackWidth, BackX, BackMostX, BackTextX                    int
}

type tick struct {
	X    int
	Name string
}

// scale is logarithmic: whole powers of ten from the least to the most.
type scale struct{ from, to int }

func scaleFor(bars []bar) scale {
	high := 1.0
	for _, b := range bars {
		high = max(high, b.killedMost, b.backMost)
	}
	return scale{-1, int(math.Ceil(math.Log10(high)))} // what is shorter than 0.1 ms is at the edge
}

// x is the place of a time in milliseconds.
func (s scale) x(ms float64) int {
	if ms <= 0 {
		return pictureLeft
	}
	at := (math.Log10(ms) - float64(s.from)) / float64(s.to-s.from)
	return pictureLeft + int(math.Round(min(max(at, 0), 1)*(pictureRight-pictureLeft)))
}

func (s scale) ticks() (all []tick) {
	for e := s.from; e <= s.to; e++ {
		ms := math.Pow10(e)
		name := fmt.Sprintf("%g ms", ms)
		if ms >= 1000 {
			name = fmt.Sprintf("%g s", ms/1000)
		}
		all = append(all, tick{s.x(ms), name})
	}
	return all
}

// short writes milliseconds, the median and the maximum.
func short(median, most float64) string {
	write := func(ms float64) string {
		digits := 0
		switch size := math.Abs(ms); {
		case size < 10:
			digits = 2
		case size < 100:
			digits = 1
		}
		return strconv.FormatFloat(ms, 'f', digits, 64)
	}
	return write(median) + " ms, max " + write(most)
}

// drawBars draws medians as bars and maxima as lines.
func drawBars(bars []bar) ([]byte, error) {
	s := scaleFor(bars)
	var all []drawn
	for i, b := range bars {
		y := pictureTop + i*rowHeight + 6
		d := drawn{
			Name: b.name, Ours: strings.HasPrefix(b.name, "evictd"),
			Killed: short(b.killed, b.killedMost), Back: short(b.back, b.backMost),
			Y: y, TextY: y + 17, KilledY: y + 5, KilledTextY: y + 10, BackTop: y + 14, BackY: y + 19, BackTextY: y + 24,
			KilledX: s.x(b.killed), KilledMostX: s.x(b.killedMost), BackX: s.x(b.back), BackMostX: s.x(b.backMost),
		}
		d.KilledWidth, d.BackWidth = max(d.KilledX-pictureLeft, 1), max(d.BackX-pictureLeft, 1)
		d.KilledTextX, d.BackTextX = max(d.KilledX, d.KilledMostX)+6, max(d.BackX, d.BackMostX)+6
		all = append(all, d)
	}
	bottom := pictureTop + len(bars)*rowHeight + 2
	var out bytes.Buffer
	err := pictureTemplate.Execute(&out, map[string]any{
		"Width": pictureWidth, "Height": bottom + 26, "Left": pictureLeft, "NameX": pictureLeft - 10,
		"Top": pictureTop, "Bottom": bottom, "Foot": bottom + 16,
		"Title": "From the crossing of the threshold on",
		"About": "upper bar: until the SIGKILL, lower bar: until memory is back above; medians, the lines end at the maxima; logarithmic",
		"Ticks": s.ticks(), "Bars": all,
	})
	return out.Bytes(), err
}
