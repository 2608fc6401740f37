package metrics

import (
	"bytes"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// scrapeInterval is how often the metrics are gathered at most.
const scrapeInterval = time.Second

// format is the only one that is served, uncompressed: every Prometheus accepts
// it, and one rendering serves all clients.
var format = expfmt.NewFormat(expfmt.TypeTextPlain)

// scrapes answers scrapes. Clients that ask within scrapeInterval get the same
// answer.
type scrapes struct {
	gatherer prometheus.Gatherer
	log      *slog.Logger

	mu       sync.Mutex
	gathered time.Time
	text     []byte // not changed once it is set
	failure  string // of the last time
}

// Handler answers scrapes.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return &scrapes{gatherer: m.registry, log: log}
}

// ServeHTTP answers with what could be gathered. It fails only where that is
// nothing.
func (s *scrapes) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text := s.current()
	if len(text) == 0 {
		http.Error(w, "no metric could be gathered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(format))
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // the client has gone
}

// current returns the metrics as text, at most scrapeInterval old.
func (s *scrapes) current() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.gathered.IsZero() || now.Sub(s.gathered) >= scrapeInterval {
		s.gathered = now
		s.text = s.gather()
	}
	return s.text
}

func (s *scrapes) gather() []byte {
	families, err := s.gatherer.Gather()
	var b bytes.Buffer
	b.Grow(len(s.text))
	e := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if failed := e.Encode(f); failed != nil && err == nil {
			err = failed
		}
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	if failure != s.failure && err != nil {
		s.log.Warn("could not gather all metrics", "error", err)
	}
	s.failure = failure
	return b.Bytes()
}
