package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

// The dimensions of the chart, in SVG user units.
const (
	chartWidth = 920
	chartLeft  = 180
	chartRight = 780
	chartTop   = 58
	rowHeight  = 40
)

// chartHead is a format for the width, the height and a description.
const chartHead = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title about">
<title id="title">From the crossing of the threshold on</title>
<desc id="about">%[3]s</desc>
<style>
text { font: 13px -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.small { font-size: 11px; fill: #59636e }
.grid { stroke: #59636e; stroke-opacity: .25 }
.most { stroke: #59636e; stroke-width: 1.5 }
.killed { fill: #0969da }
.back { fill: #8c959f }
.ours .killed { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.small { fill: #9198a1 }
.grid, .most { stroke: #9198a1 }
.killed { fill: #4493f8 }
.back { fill: #656c76 }
.ours .killed { fill: #3fb950 }
}
</style>
<text x="12" y="24" class="title">From the crossing of the threshold on</text>
<text x="12" y="43" class="small">upper bar: until the SIGKILL; lower bar: until memory is above the threshold again; bars: median, lines: maximum; logarithmic scale</text>
`

// chartX returns the x coordinate of a time in microseconds. The scale is logarithmic and begins at 0.1 ms.
func chartX(us, most int64) int {
	share := math.Log10(float64(max(us, 1))/100) / math.Log10(float64(most)/100)
	return chartLeft + int(math.Round(min(max(share, 0), 1)*(chartRight-chartLeft)))
}

// chart draws the bursts at full speed with the largest cache, on the native machine in the default configuration.
func (b *resultSet) chart() []byte {
	var rows []*crossings
	most := int64(1000)
	for _, c := range b.crossings(native, "bursts") {
		if c.Case != caseWithCache(fullSpeed, largeCache) || c.Contender == countingCache || len(c.Killed) == 0 {
			continue
		}
		rows = append(rows, c)
		for most < max(quantile(c.Killed, 1), quantile(c.Back, 1)) {
			most *= 10
		}
	}
	var out, about bytes.Buffer
	bottom := chartTop + len(rows)*rowHeight + 2
	for us := int64(100); us <= most; us *= 10 {
		fmt.Fprintf(&out, `<line class="grid" x1="%[1]d" x2="%[1]d" y1="%[2]d" y2="%[3]d"/><text class="small" x="%[1]d" y="%[4]d" text-anchor="middle">%[5]g ms</text>`+"\n",
			chartX(us, most), chartTop, bottom, bottom+16, float64(us)/1000)
	}
	for i, c := range rows {
		y, class := chartTop+i*rowHeight+6, "other"
		if strings.HasPrefix(c.Contender, "evictd") {
			class = "ours"
		}
		fmt.Fprintf(&about, "%s: %s to the SIGKILL, %s until memory is above the threshold again. ", c.Contender, milliseconds(median(c.Killed)), milliseconds(median(c.Back)))
		fmt.Fprintf(&out, `<g class="%s"><text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", class, chartLeft-10, y+17, html.EscapeString(c.Contender))
		for _, bar := range []struct {
			class string
			y     int
			times []int64
		}{{"killed", y, c.Killed}, {"back", y + 14, c.Back}} {
			middle, end := median(bar.times), quantile(bar.times, 1)
			fmt.Fprintf(&out, `<rect class="%s" x="%d" y="%d" width="%d" height="11"/>`, bar.class, chartLeft, bar.y, max(chartX(middle, most)-chartLeft, 1))
			fmt.Fprintf(&out, `<line class="most" x1="%d" x2="%[2]d" y1="%[3]d" y2="%[3]d"/>`, chartX(middle, most), chartX(end, most), bar.y+5)
			fmt.Fprintf(&out, `<text class="small" x="%d" y="%d">%s, max %s</text>`+"\n", chartX(end, most)+6, bar.y+10, milliseconds(middle), milliseconds(end))
		}
		out.WriteString("</g>\n")
	}
	head := fmt.Appendf(nil, chartHead, chartWidth, bottom+26, html.EscapeString(about.String()))
	return append(append(head, out.Bytes()...), "</svg>\n"...)
}
