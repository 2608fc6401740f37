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

// Limits on what one client may do; see listener and conn for all together.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second
	idleTimeout  = 2 * time.Minute // more than a usual scrape interval
	stopTimeout  = 500 * time.Millisecond
	maxHeader    = 16 << 10
)

// CheckWebConfig reports what is wrong with a web configuration file: TLS and
// basic authentication in the exporter toolkit's format. No file is fine.
func CheckWebConfig(path string) error {
	if err := web.Validate(path); err != nil {
		return fmt.Errorf("web configuration %s: %w", path, err)
	}
	return nil
}

// Options are what Serve needs.
type Options struct {
	Handler http.Handler
	// ConfigFile is a web configuration file, which is read anew for each
	// connection; empty is none.
	ConfigFile string
	// Thread is called on each thread that serves, and gives it its priority.
	Thread func() error
	Log    *slog.Logger
}

// Serve answers on the listener, which it closes, until ctx ends; that is nil.
// Answers under way get stopTimeout to finish. All clients together get
// maxConnections and cpuShare of a processor: a client that asks for more waits.
func Serve(ctx context.Context, l net.Listener, o Options) error {
	// One connection of HTTP/2 would carry many requests at once, on goroutines
	// of their own.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	bounded := newListener(l, o.Thread, o.Log)
	server := &http.Server{
		Handler:           withoutBody(o.Handler),
		Protocols:         &protocols,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         bounded.follow,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
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
	err := web.Serve(bounded, server, &web.FlagConfig{WebConfigFile: &o.ConfigFile}, slog.New(&sparing{Handler: o.Log.Handler()}))
	cancel()
	<-stopped
	// Where the configuration is broken the toolkit returns before it serves.
	l.Close()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// withoutBody refuses requests with a body, which net/http would read.
func withoutBody(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			http.Error(w, "a request has no body", http.StatusRequestEntityTooLarge)
			return
		}
		h.ServeHTTP(w, r)
	})
}
