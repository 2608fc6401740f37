package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// Limits on what a client may do. The socket is root's, so they are against
// mistakes rather than attacks: a stuck client must not hold the daemon's
// memory while that is short, nor its end: stopTimeout is how long an answer under
// way is waited for, and a connection on which nothing was asked yet, which net/http
// takes for one for its first five seconds.
const (
	readTimeout   = 5 * time.Second
	writeTimeout  = 10 * time.Second
	idleTimeout   = 10 * time.Second
	stopTimeout   = 300 * time.Millisecond
	maxHeader     = 8 << 10
	maxConcurrent = 8
)

// Source knows the answers. Its methods are called from several goroutines,
// must not wait for anything slow, and return values that nobody changes
// afterwards.
type Source interface {
	Status() Status
	Explain(signal.Signal) (Explanation, error)
	Shutdown() Shutdown
	// BeginShutdown and CancelShutdown are commands. They return when the command
	// has been taken, or why it was not.
	BeginShutdown(context.Context) error
	CancelShutdown(context.Context) error
	// Reload reads the configuration again. It returns when that is in force, or
	// why it is not.
	Reload(context.Context) error
}

// Server answers what is asked over the control socket.
type Server struct {
	source Source
	log    *slog.Logger
	busy   chan struct{} // as many as may be answered at once
}

// New returns a server of what the source knows. It logs what goes wrong with a
// connection, at debug level, and answers that break off.
func New(source Source, log *slog.Logger) *Server {
	return &Server{source: source, log: log, busy: make(chan struct{}, maxConcurrent)}
}

// Serve answers on the listener, which it closes, until ctx ends; that is nil.
// Answers under way get a second to finish.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(grace) != nil {
			server.Close()
		}
	}()
	err := server.Serve(l)
	cancel()
	<-stopped
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve control socket: %w", err)
	}
	return nil
}

// Handler returns the API's own mux.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, http.StatusOK, s.source.Status())
	})
	mux.HandleFunc("GET /v1/records", func(w http.ResponseWriter, _ *http.Request) {
		s.answer(w, http.StatusOK, Records{Records: s.source.Status().Records})
	})
	mux.HandleFunc("GET /v1/explain", s.explain)
	s.addShutdown(mux)
	s.addReload(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.busy <- struct{}{}:
			defer func() { <-s.busy }()
		default:
			s.fail(w, http.StatusServiceUnavailable, "too many requests at once")
			return
		}
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // instead of reading it
			s.fail(w, http.StatusRequestEntityTooLarge, "a question has no body")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	name := signal.MemoryAvailable.String()
	if r.URL.Query().Has("signal") {
		name = r.URL.Query().Get("signal")
	}
	sig, ok := signal.Parse(name)
	if !ok {
		s.fail(w, http.StatusBadRequest, UnknownSignal(name))
		return
	}
	explanation, err := s.source.Explain(sig)
	if err != nil {
		s.fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	s.answer(w, http.StatusOK, explanation)
}

// UnknownSignal says that a name is no signal, and which are.
func UnknownSignal(name string) string {
	names := make([]string, 0, signal.Count)
	for _, s := range signal.All() {
		names = append(names, s.String())
	}
	return fmt.Sprintf("unknown signal %q: it is one of %s", name, strings.Join(names, ", "))
}

// failure is the body of an answer that is not 200.
type failure struct {
	Error string `json:"error"`
}

func (s *Server) fail(w http.ResponseWriter, code int, message string) {
	s.answer(w, code, failure{Error: message})
}

// answer encodes before it writes, so that what can't be encoded is told
// instead of an answer that breaks off.
func (s *Server) answer(w http.ResponseWriter, code int, body any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(body); err != nil {
		s.log.Error("control answer not encoded", "error", err)
		http.Error(w, `{"error":"the answer could not be encoded"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(code)
	if _, err := w.Write(b.Bytes()); err != nil {
		s.log.Debug("control answer broke off", "error", err)
	}
}
