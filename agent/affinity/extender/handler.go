package extender

import (
	"bytes"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// MaxBody is the length limit of a request in bytes. 50,000 names have at most 13 MB, and a Pod of the API server has
	// about 1.5 MB.
	MaxBody = 16 << 20
	// maxKept is that of a buffer that is kept for the next request.
	maxKept = 4 << 20
	// transferTimeout bounds the reading of a body, and the writing of the answer.
	transferTimeout = 5 * time.Second
	// panicInterval is that of log lines about panics.
	panicInterval = time.Minute
)

// Nodes is a cache of Nodes.
type Nodes interface {
	// Node returns a Node, which is not changed afterwards, and nil if the cache does not have it.
	Node(name string) *corev1.Node
	// Synced reports whether the cache has had all Nodes.
	Synced() bool
}

// Handler answers the verb filter. It may be called concurrently.
type Handler struct {
	nodes   Nodes
	client  func(remote string) netip.Addr
	log     *slog.Logger
	metrics *metrics
	limit   limiter
	buffers sync.Pool
	whole   sync.Once

	mu       sync.Mutex
	panicked time.Time // when the last panic was logged
}

// New returns a handler. The function client returns whom a remote address belongs to.
func New(nodes Nodes, client func(remote string) netip.Addr, log *slog.Logger) *Handler {
	return &Handler{
		nodes: nodes, client: client, log: log, metrics: newMetrics(), buffers: sync.Pool{New: func() any { return new(buffer) }},
	}
}

// buffer is the memory of a request.
type buffer struct {
	body    bytes.Buffer
	limited io.LimitedReader
	answer  answer
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	h.metrics.ended(h.serve(w, r), time.Since(began))
}

// serve answers a request. A panic is an answer, too: a text must not end the process.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (how result) {
	defer func() {
		if p := recover(); p != nil {
			h.logPanic(p)
			http.Error(w, "internal error", http.StatusInternalServerError)
			how = resultPanic
		}
	}()
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return refuse(w, http.StatusMethodNotAllowed, "only POST is answered", resultRefused)
	}
	if !isJSON(r.Header.Get("Content-Type")) {
		return refuse(w, http.StatusUnsupportedMediaType, "Content-Type is not application/json", resultRefused)
	}
	if !h.nodes.Synced() {
		return refuse(w, http.StatusServiceUnavailable, "the cache of Nodes is not complete", resultNotReady)
	}
	client := h.client(r.RemoteAddr)
	if !h.limit.begin(client) {
		return refuse(w, http.StatusServiceUnavailable, "too many requests in flight", resultBusy)
	}
	defer h.limit.end(client)
	b := h.buffers.Get().(*buffer)
	defer h.keep(b)
	return h.read(w, r, b)
}

// isJSON reports whether a content type is that of the scheduler.
func isJSON(value string) bool {
	if value == "application/json" {
		return true
	}
	kind, _, err := mime.ParseMediaType(value)
	return err == nil && kind == "application/json"
}

// refuse answers with a status. The scheduler ignores the text; a person who tries the address reads it.
func refuse(w http.ResponseWriter, status int, why string, how result) result {
	w.Header().Set("Connection", "close") // what is left of the body is not read
	http.Error(w, why, status)
	return how
}

// read reads the body and answers.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, b *buffer) result {
	if r.ContentLength > MaxBody {
		return refuse(w, http.StatusRequestEntityTooLarge, "the body is too large", resultTooLarge)
	}
	// The answer may take as long again. A recorder of a test has no deadlines, nor has a connection that was closed.
	control := http.NewResponseController(w)
	deadline := time.Now().Add(transferTimeout)
	_, _ = control.SetReadDeadline(deadline), control.SetWriteDeadline(deadline.Add(transferTimeout))
	if r.ContentLength > 0 {
		// ReadFrom has room for MinRead bytes when it meets the end. Growing by the way doubles the memory each time.
		b.body.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	b.limited = io.LimitedReader{R: r.Body, N: MaxBody + 1}
	if _, err := b.body.ReadFrom(&b.limited); err != nil {
		return refuse(w, http.StatusRequestTimeout, "the body could not be read", resultAborted)
	}
	if b.limited.N == 0 {
		return refuse(w, http.StatusRequestEntityTooLarge, "the body is too large", resultTooLarge)
	}
	parsed, err := parse(b.body.Bytes())
	if err != nil {
		return refuse(w, http.StatusBadRequest, err.Error(), resultRefused)
	}
	return h.filter(w, &parsed, &b.answer)
}

// filter answers a request that was parsed.
func (h *Handler) filter(w http.ResponseWriter, r *request, a *answer) result {
	if r.names == nil {
		h.metrics.whole.Inc()
		h.whole.Do(func() {
			h.log.Warn("a scheduler sends whole Nodes, and scores them without their pods; set nodeCacheCapable: true of the extender")
		})
	}
	if !r.annotated {
		return written(writeAll(w, r), resultUnrestricted)
	}
	pod, err := decodePod(r.pod)
	if err != nil {
		return refuse(w, http.StatusBadRequest, err.Error(), resultRefused)
	}
	required, unrestricted, invalid := requirement(pod)
	if unrestricted {
		return written(writeAll(w, r), resultUnrestricted)
	}
	open, end := `{"NodeNames":[`, `]`
	if r.names != nil {
		a.compareNames(required, invalid, r.names, r.count, h.nodes)
		h.metrics.unknown.Add(float64(a.unknown))
	} else {
		open, end = `{"Nodes":{"items":[`, `]}`
		if err := a.compareNodes(required, invalid, r.items, r.count); err != nil {
			return refuse(w, http.StatusBadRequest, err.Error(), resultRefused)
		}
	}
	how := resultMatched
	switch {
	case invalid != nil:
		how = resultInvalid
	case len(a.passed) == 0:
		how = resultNone
	}
	return written(a.write(w, open, end), how)
}

// written returns how a request ended whose answer was written or not.
func written(err error, how result) result {
	if err != nil {
		return resultAborted
	}
	return how
}

// keep keeps the memory of a request for the next one, unless it is large.
func (h *Handler) keep(b *buffer) {
	if b.body.Cap()+cap(b.answer.passed)+cap(b.answer.failed) > maxKept {
		return
	}
	b.body.Reset()
	b.limited = io.LimitedReader{}
	b.answer = answer{passed: b.answer.passed[:0], failed: b.answer.failed[:0]}
	h.buffers.Put(b)
}

// logPanic logs a panic, at most one a minute: pods of every user are compared.
func (h *Handler) logPanic(p any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.panicked) < panicInterval {
		return
	}
	h.panicked = time.Now()
	h.log.Error("answering a scheduler panicked; it is refused", "panic", p, "stack", string(debug.Stack()))
}
