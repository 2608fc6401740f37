package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
)

// stopTimeout bounds how long Serve waits at its end for responses in progress, which
// take milliseconds.
const stopTimeout = 500 * time.Millisecond

// CheckWebConfig validates a web configuration file: TLS and basic authentication
// in the exporter toolkit's format. An empty path is valid.
func CheckWebConfig(path string) error {
	if err := web.Validate(path); err != nil {
		return fmt.Errorf("web configuration %s: %w", path, err)
	}
	return nil
}

// Options configure Serve.
type Options struct {
	Handler http.Handler
	// ConfigFile is a web configuration file, which is read for each connection.
	// Empty means none.
	ConfigFile string
	// PrepareThread is called on each thread that serves, and sets its priority.
	PrepareThread func() error
	Log           *slog.Logger
}

// Serve serves on the listener until ctx ends, and then returns nil. It closes the
// listener. Responses in progress get stopTimeout to finish. All clients together
// get maxConnections and cpuShare of a CPU; a client that needs more waits.
func Serve(ctx context.Context, l net.Listener, o Options) error {
	// HTTP/2 is disabled, because one of its connections serves many requests at
	// once, each on another goroutine.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	limited := newListener(l, o.PrepareThread, o.Log)
	server := &http.Server{
		Handler:   withoutBody(o.Handler),
		Protocols: &protocols,
		// Limits on one client; listener and conn have those on all clients together.
		// A response takes milliseconds, so a client that takes seconds hangs.
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   10 * time.Second,
		IdleTimeout:    2 * time.Minute, // a scraper keeps its connection between scrapes
		MaxHeaderBytes: 16 << 10,
		ConnState:      limited.connState,
		ErrorLog:       slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
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
	err := web.Serve(limited, server, &web.FlagConfig{WebConfigFile: &o.ConfigFile}, slog.New(&errorLimiter{Handler: o.Log.Handler()}))
	cancel()
	<-stopped
	// With an invalid configuration the toolkit returns without closing the listener.
	l.Close()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// withoutBody refuses requests with a body, which net/http would otherwise read.
func withoutBody(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			http.Error(w, "a request must not have a body", http.StatusRequestEntityTooLarge)
			return
		}
		h.ServeHTTP(w, r)
	})
}
