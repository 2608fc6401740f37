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

const (
	// stopTimeout bounds how long Serve waits at its end for responses in progress.
	// It also waits that long for a connection without a request, which net/http
	// counts as active for its first five seconds.
	stopTimeout = 300 * time.Millisecond
	// maxConcurrent is the maximum number of requests in progress.
	maxConcurrent = 8
)

// Source supplies the data. Its methods are called from several goroutines. The
// read methods do not wait for the decision loop, and return values that are not
// changed afterwards.
type Source interface {
	Status() Status
	// Explain reads the cgroup tree. It fails before the first observation.
	Explain(signal.Signal) (Explanation, error)
	Shutdown() Shutdown
	// BeginShutdown and CancelShutdown return when the command was accepted, or an
	// error with the reason why it was rejected.
	BeginShutdown(context.Context) error
	CancelShutdown(context.Context) error
	// Reload reads the configuration again. It returns when the new one is in
	// force, or an error with the reason why it is not.
	Reload(context.Context) error
}

// Server serves a Source over the control socket.
type Server struct {
	source Source
	log    *slog.Logger
	slots  chan struct{} // one element for each request in progress
}

// New returns a server of the source. It logs connection errors at debug level.
func New(source Source, log *slog.Logger) *Server {
	return &Server{source: source, log: log, slots: make(chan struct{}, maxConcurrent)}
}

// Serve serves on the listener until ctx ends, and then returns nil. It closes the
// listener. Responses in progress get stopTimeout to finish.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	// Only root can connect, so the limits guard against mistakes rather than attacks:
	// a client that hangs must not use evictd's memory under pressure for long. A read
	// takes milliseconds and a command up to commandTimeout, which WriteTimeout includes.
	server := &http.Server{
		Handler:        s.Handler(),
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   10 * time.Second,
		IdleTimeout:    10 * time.Second,
		MaxHeaderBytes: 8 << 10,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
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

// Handler returns the handler of the API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		s.respond(w, http.StatusOK, s.source.Status())
	})
	mux.HandleFunc("GET /v1/records", func(w http.ResponseWriter, _ *http.Request) {
		s.respond(w, http.StatusOK, Records{Records: s.source.Status().Records})
	})
	mux.HandleFunc("GET /v1/explain", s.explain)
	s.addShutdown(mux)
	s.addReload(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			s.fail(w, http.StatusServiceUnavailable, "too many requests at once")
			return
		}
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close") // instead of reading it
			s.fail(w, http.StatusRequestEntityTooLarge, "a request must not have a body")
			return
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			refused := &statusWriter{ResponseWriter: w}
			mux.ServeHTTP(refused, r) // sets the header Allow
			s.fail(w, refused.code, "this evictd has no "+r.Method+" "+r.URL.Path)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// statusWriter keeps the status of a response and drops the body.
type statusWriter struct {
	http.ResponseWriter
	code int
}

func (w *statusWriter) WriteHeader(code int) { w.code = code }

func (w *statusWriter) Write(b []byte) (int, error) { return len(b), nil }

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
		s.fail(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	s.respond(w, http.StatusOK, explanation)
}

// UnknownSignal returns the error message for an unknown signal, which lists the
// known ones.
func UnknownSignal(name string) string {
	names := make([]string, 0, signal.Count)
	for _, s := range signal.All() {
		names = append(names, s.String())
	}
	return fmt.Sprintf("unknown signal %q; want one of %s", name, strings.Join(names, ", "))
}

// failure is the body of a response with another status than 200.
type failure struct {
	Error string `json:"error"`
}

func (s *Server) fail(w http.ResponseWriter, code int, message string) {
	s.respond(w, code, failure{Error: message})
}

// respond encodes the body before it writes the header, so that an encoding error
// becomes status 500 instead of a truncated response.
func (s *Server) respond(w http.ResponseWriter, code int, body any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(body); err != nil {
		s.log.Error("could not encode response on control socket", "error", err)
		http.Error(w, `{"error":"could not encode the response"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(code)
	if _, err := w.Write(b.Bytes()); err != nil {
		s.log.Debug("could not write response on control socket", "error", err)
	}
}
