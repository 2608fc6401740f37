package metrics

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Heartbeat records the time of the decision loop's last iteration. The zero
// Heartbeat has none yet.
type Heartbeat struct{ last atomic.Pointer[time.Time] }

// Beat records an iteration. The loop calls it once in each.
func (h *Heartbeat) Beat() {
	now := time.Now()
	h.last.Store(&now)
}

// Age returns the time since the last beat; ok is false if there was none.
func (h *Heartbeat) Age() (age time.Duration, ok bool) {
	last := h.last.Load()
	if last == nil {
		return 0, false
	}
	return time.Since(*last), true
}

// Result states whether a check passed.
type Result uint8

// The verdicts. Only Fail makes evictd not ready.
const (
	Pass Result = iota
	Warn
	Fail
)

// Check is one condition of readiness. Run must not block. Detail states the
// problem, or what was found.
type Check struct {
	Name string
	Run  func() (v Result, detail string)
}

// Mux returns a new mux that serves:
//
//	/metrics   the metrics
//	/healthz   200 while the loop's last beat is at most maxAge old, else 503
//	/readyz    200 while no check fails, else 503
//
// Both health pages list their checks if they fail, and always with ?verbose.
func Mux(metrics http.Handler, beat *Heartbeat, maxAge time.Duration, ready ...Check) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /healthz", checks{{"loop", func() (Result, string) {
		age, ok := beat.Age()
		switch {
		case !ok:
			return Fail, "no iteration yet"
		case age > maxAge:
			return Fail, fmt.Sprintf("no iteration for %v; want at most %v", age.Round(time.Millisecond), maxAge)
		}
		return Pass, fmt.Sprintf("last iteration %v ago", age.Round(time.Millisecond))
	}}})
	mux.Handle("GET /readyz", checks(ready))
	return mux
}

type checks []Check

// ServeHTTP responds in the format of Kubernetes' components:
//
//	[+]observation ok
//	[!]pods warning: no pod is eligible for eviction
//	[-]runtime failed: connection refused
func (cs checks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	code, conclusion := http.StatusOK, "ok"
	for _, c := range cs {
		result, detail := c.Run()
		if detail != "" {
			detail = ": " + detail
		}
		switch result {
		case Fail:
			code, conclusion = http.StatusServiceUnavailable, "failed"
			fmt.Fprintf(&b, "[-]%s failed%s\n", c.Name, detail)
		case Warn:
			fmt.Fprintf(&b, "[!]%s warning%s\n", c.Name, detail)
		default:
			fmt.Fprintf(&b, "[+]%s ok%s\n", c.Name, detail)
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	if code != http.StatusOK || r.URL.Query().Has("verbose") {
		fmt.Fprint(w, b.String())
	}
	fmt.Fprintln(w, conclusion)
}
