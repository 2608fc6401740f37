package metrics

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// countingCollector counts how often it is collected. If it is broken, its metric
// is invalid.
type countingCollector struct {
	n      int
	broken bool
}

var gathered = prometheus.NewDesc("gathered", "Number of collections.", nil, nil)

func (g *countingCollector) Describe(chan<- *prometheus.Desc) {}

func (g *countingCollector) Collect(to chan<- prometheus.Metric) {
	g.n++
	if g.broken {
		to <- prometheus.NewInvalidMetric(gathered, errors.New("broken"))
		return
	}
	to <- prometheus.MustNewConstMetric(gathered, prometheus.GaugeValue, float64(g.n))
}

func TestScrapesShareResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &countingCollector{}
		r := prometheus.NewRegistry()
		r.MustRegister(g, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "other"}, func() float64 { return 7 }))
		s := &scrapeHandler{gatherer: r, log: discard}
		for i, tt := range []struct {
			pause  time.Duration
			broken bool
			want   string
		}{
			{0, false, "gathered 1"},
			{0, false, "gathered 1"},
			{999 * time.Millisecond, false, "gathered 1"},
			{time.Millisecond, false, "gathered 2"},
			{time.Second, true, "other 7"}, // the metrics that could be gathered
		} {
			time.Sleep(tt.pause)
			g.broken = tt.broken
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			if w.Code != 200 || !strings.Contains(w.Body.String(), tt.want) || w.Header().Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
				t.Errorf("scrape %d = %d %v %q; want %q", i, w.Code, w.Header(), w.Body, tt.want)
			}
		}
	})
	r := prometheus.NewRegistry()
	r.MustRegister(&countingCollector{broken: true})
	if code, _ := request(&scrapeHandler{gatherer: r, log: discard}, "GET", "/metrics"); code != 500 {
		t.Errorf("scrape without a valid metric = %d; want 500", code)
	}
}
