package metrics

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Heartbeat is the decision loop's sign of life. The zero Heartbeat has not
// beaten yet.
type Heartbeat struct{ last atomic.Pointer[time.Time] }

// Beat is called by the loop, once in each turn.
func (h *Heartbeat) Beat() {
	now := time.Now()
	h.last.Store(&now)
}

// Age returns how long ago the last beat was; ok is false where there was none.
func (h *Heartbeat) Age() (age time.Duration, ok bool) {
	last := h.last.Load()
	if last == nil {
		return 0, false
	}
	return time.Since(*last), true
}

// Verdict is what a check found.
type Verdict uint8

// The verdicts. Only Fail makes evictd not ready.
const (
	Pass Verdict = iota
	Warn
	Fail
)

// Check is one condition of readiness. Run must not wait for anything; detail
// says what is wrong, or what was found.
type Check struct {
	Name string
	Run  func() (v Verdict, detail string)
}

// Mux returns what is served over HTTP, on a mux of its own:
//
//	/metrics   the metrics
//	/healthz   200 while the loop's last beat is at most maxAge old, else 503
//	/readyz    200 while no check fails, else 503
//
// Both health pages list what they checked where they fail, and always with
// ?verbose.
func Mux(metrics http.Handler, beat *Heartbeat, maxAge time.Duration, ready ...Check) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /healthz", checks{{"loop", func() (Verdict, string) {
		age, ok := beat.Age()
		switch {
		case !ok:
			return Fail, "has not turned yet"
		case age > maxAge:
			return Fail, fmt.Sprintf("has not turned for %v, which should be at most %v", age.Round(time.Millisecond), maxAge)
		}
		return Pass, fmt.Sprintf("turned %v ago", age.Round(time.Millisecond))
	}}})
	mux.Handle("GET /readyz", checks(ready))
	return mux
}

type checks []Check

// ServeHTTP answers in the form of Kubernetes' components:
//
//	[+]observation ok
//	[!]pods warning: no pod may be evicted
//	[-]runtime failed: connection refused
func (cs checks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	code, conclusion := http.StatusOK, "ok"
	for _, c := range cs {
		verdict, detail := c.Run()
		if detail != "" {
			detail = ": " + detail
		}
		switch verdict {
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
