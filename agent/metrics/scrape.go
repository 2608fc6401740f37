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

// gatherInterval is the minimum time between two gatherings of the metrics, which
// limits the CPU time for scrapes of several clients.
const gatherInterval = time.Second

// format is the only format served, uncompressed: every Prometheus accepts it, and
// one rendering serves all clients.
var format = expfmt.NewFormat(expfmt.TypeTextPlain)

// scrapeHandler serves the metrics. Requests within gatherInterval get the same
// response.
type scrapeHandler struct {
	gatherer prometheus.Gatherer
	log      *slog.Logger

	mu       sync.Mutex
	gathered time.Time
	text     []byte // not changed once it is set
	failure  string // of the last gathering
}

// Handler returns the handler of /metrics.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return &scrapeHandler{gatherer: m.registry, log: log}
}

// ServeHTTP serves all metrics that could be gathered. It fails only if none could.
func (s *scrapeHandler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	text := s.current()
	if len(text) == 0 {
		http.Error(w, "no metric could be gathered", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(format))
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // an error means that the client is gone
}

// current returns the metrics as text, at most gatherInterval old.
func (s *scrapeHandler) current() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.gathered.IsZero() || now.Sub(s.gathered) >= gatherInterval {
		s.gathered = now
		s.text = s.gather()
	}
	return s.text
}

func (s *scrapeHandler) gather() []byte {
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
